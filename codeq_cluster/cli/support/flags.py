"""Flags: those that several commands have, and those of one form."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from msgspec import Raw

from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.core.backoff import POLICIES


def number(
    parser: argparse.ArgumentParser,
    flag: str,
    words: str,
    *,
    metavar: str = "N",
    kind: Callable[[str], float] = int,
    **more: Any,
) -> None:
    """Add a flag that takes a number; `words` is its line of help, `more` argparse's keywords."""
    parser.add_argument(flag, type=kind, metavar=metavar, help=words, **more)


def given_json(flag: str, text: str) -> Raw:
    """Return a flag's JSON, that of stdin for `-`: unparsed, so that numbers keep every digit.

    Raises:
        UsageRefused: It is no JSON.
    """
    text = sys.stdin.read() if text == "-" else text
    try:
        json.loads(text)
    except ValueError as error:
        raise UsageRefused(
            f'{flag}: must be JSON text, quoted for the shell as \'{{"name":"world"}}\': {error}'
        ) from error
    return Raw(text.encode())


def runs(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Exit]) -> None:
    """Make a command run `run`, and add the flag for a document in place of text."""
    parser.add_argument("--json", action="store_true", help="print JSON, one line")
    parser.set_defaults(run=run)


def add_backoff(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    """Add the flags of a back-off, for tasks and topics; `otherwise` is what holds without them."""
    parser.add_argument(
        "--backoff",
        choices=tuple(POLICIES),
        help=f"how the delay between attempts grows; default: {otherwise}",
    )
    number(parser, "--backoff-base-seconds", "the delay it grows from", dest="backoff_base")
    number(parser, "--backoff-max-seconds", "the longest delay it gives", dest="backoff_max")
