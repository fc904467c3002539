"""Rates: the flags that say how often tasks may be claimed."""

from __future__ import annotations

import argparse
from typing import Any

from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import UsageRefused


def add_rate(
    parser: argparse.ArgumentParser,
    flag: str = "--rate",
    burst: str = "--burst",
    *,
    of: str = "one key",
) -> None:
    """Add the two flags of a rate."""
    parser.add_argument(
        flag,
        type=_rate,
        metavar="COUNT/SECONDS",
        help=f"claims of {of} in so many seconds, as 100/60; off for no limit",
    )
    number(parser, burst, f"claims of {of} that a pause saves up; default: 1")


def said_rate(
    rate: dict[str, int] | None, burst: int | None, *, flag: str = "--rate"
) -> dict[str, Any]:
    """Return the field of a rule that the flags of a rate say, if they say any."""
    if burst is not None and not rate:
        raise UsageRefused(f"a burst is part of a rate: add {flag} COUNT/SECONDS")
    if rate is None:
        return {}
    saved = {} if burst is None else {"burst": burst}
    return {"rate": {**rate, **saved} or None}


def _rate(text: str) -> dict[str, int]:
    """Read a rate; an empty one is none."""
    if text == "off":
        return {}
    count, _, seconds = text.partition("/")
    if not (count.isdecimal() and seconds.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: write one as 100/60, or off")
    return {"count": int(count), "perSeconds": int(seconds)}
