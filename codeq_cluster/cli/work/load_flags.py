"""Load flags: what commands that put load on a cluster share: bounded numbers, a queue, a token."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from codeq_cluster.cli.support.outcome import UsageRefused


@dataclass(frozen=True, slots=True)
class Number:
    """A flag that takes a whole number.

    Attributes:
        words: What it says.
    """

    words: str
    least: int
    most: int
    default: int


def add_load_flags(parser: argparse.ArgumentParser, numbers: Mapping[str, Number]) -> None:
    """Add a flag for each number, by the name of its option, and those of queue and token."""
    for name, number in numbers.items():
        parser.add_argument(
            _flag(name),
            type=int,
            default=number.default,
            metavar="N",
            help=f"{number.words}, {number.least} to {number.most}; default: {number.default}",
        )
    parser.add_argument("--queue", "--event", metavar="NAME", help="the queue; default: a new one")
    parser.add_argument(
        "--worker-token",
        metavar="TOKEN",
        help="token that claims; default: --token, else as for worker",
    )


def check_numbers(options: argparse.Namespace, numbers: Mapping[str, Number]) -> None:
    """Refuse a number that is out of its bounds.

    Raises:
        UsageRefused: It names the flag and its bounds.
    """
    for name, number in numbers.items():
        value = getattr(options, name)
        if not number.least <= value <= number.most:
            raise UsageRefused(f"{_flag(name)} {value}: must be {number.least} to {number.most}")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
