"""Flags: those that several commands have, and those of one form."""

from __future__ import annotations

import argparse
import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from codeq_cluster.cli.support.outcome import Exit, UsageRefused
from codeq_cluster.cli.support.times import given_instant
from codeq_cluster.client import Unique
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


def raw_json(text: str | bytes) -> Raw:
    """Return JSON text unparsed; its numbers may have any size.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It nests too deep.
    """
    return msgspec.json.decode(text, type=Raw)


def given_json(flag: str, text: str) -> Raw:
    """Return a flag's JSON, that of stdin for `-`: unparsed, so that numbers keep every digit.

    Raises:
        UsageRefused: It is no JSON.
    """
    try:
        return raw_json(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        raise UsageRefused(
            f'{flag}: must be JSON text, quoted for the shell as \'{{"name":"world"}}\': {error}'
        ) from error


def runs(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], Exit]) -> None:
    """Make a command run `run`, and add the flag for a document in place of text."""
    parser.add_argument("--json", action="store_true", help="print JSON, one line")
    parser.set_defaults(run=run)


def add_unique(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a task's unique key."""
    parser.add_argument("--unique", metavar="KEY", help="at most one task of the queue holds it")
    parser.add_argument(
        "--on",
        choices=("return", "reject", "replace", "keepLast"),
        help="what to do while --unique is held; default: return",
    )
    parser.add_argument(
        "--until", choices=("ended", "claimed"), help="how long it is held; default: ended"
    )
    seconds = functools.partial(number, parser, metavar="SECONDS")
    seconds("--throttle", "hold it for so long, whatever becomes of the task")
    seconds("--debounce", "start so long after the last create")
    seconds("--max-wait", "and at most so long after the first; default: 10 times that")


def given_unique(options: argparse.Namespace) -> Unique | None:
    """Return a task's unique key.

    Raises:
        UsageRefused: Flags that need `--unique` are there without it.
    """
    said = {
        name: getattr(options, name)
        for name in ("on", "until", "throttle", "debounce", "max_wait")
        if getattr(options, name) is not None
    }
    if options.unique is None:
        if said:
            flag = "--" + next(iter(said)).replace("_", "-")
            raise UsageRefused(f"{flag}: needs --unique KEY")
        return None
    return Unique(options.unique, **said)


def given_tag(text: str) -> tuple[str, str]:
    """Return the name and the value of a tag, from `NAME=VALUE` or `NAME:VALUE`.

    Raises:
        ArgumentTypeError: It is neither.
    """
    found = re.fullmatch(r"([^=:]+)[=:](.+)", text, re.DOTALL)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text}: must be NAME=VALUE")
    return found[1], found[2]


def add_tags(
    parser: argparse.ArgumentParser, words: str, *, flag: str = "--tag", dest: str = "tags"
) -> None:
    """Add a flag that takes a tag and may be repeated; `words` is its line of help."""
    parser.add_argument(
        flag,
        type=given_tag,
        action="append",
        default=[],
        dest=dest,
        metavar="NAME=VALUE",
        help=f"{words}; may be repeated",
    )


def add_untagged(parser: argparse.ArgumentParser, *, of: str) -> None:
    """Add the flag for names of tags to remove; `of` is a task, or each of several."""
    parser.add_argument(
        "--remove",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{of} has no such tag afterwards; may be repeated",
    )


def add_created(parser: argparse.ArgumentParser, *, needs: str = "") -> None:
    """Add the flags for the time in which tasks were created; `needs` ends their lines of help."""
    for name, words in (("after", "at this instant or later"), ("before", "before this instant")):
        parser.add_argument(
            f"--created-{name}",
            type=given_instant,
            metavar="TIME",
            help=f"only those created {words}, RFC 3339{needs}",
        )


def add_backoff(parser: argparse.ArgumentParser, *, otherwise: str) -> None:
    """Add the flags of a back-off, for tasks and topics; `otherwise` is what holds without them."""
    parser.add_argument(
        "--backoff",
        choices=tuple(POLICIES),
        help=f"how the delay between attempts grows; default: {otherwise}",
    )
    number(parser, "--backoff-base-seconds", "the delay it grows from", dest="backoff_base")
    number(parser, "--backoff-max-seconds", "the longest delay it gives", dest="backoff_max")
