"""Command `webhook`: the keys by which receivers verify callbacks and notices."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, withheld
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note, table
from codeq_cluster.cli.support.times import add_times, dated, times_of
from codeq_cluster.client import Operator


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "webhook", "the keys that sign callbacks", description=__doc__)
    keys = verbs_of(verbs, "key", "show and rotate the tenant's key", description=__doc__)
    found = keys.add_parser(
        "ls", aliases=["list"], help="print the keys that sign now; this leaves an audit record"
    )
    add_times(found)
    asks(found, Operator, _list)

    rotate = keys.add_parser(
        "rotate",
        help="begin a new key; the previous one signs as well for a while",
        description="Begin a new key. The previous one signs as well until the overlap ends, so "
        "receivers miss nothing if they get the new key in this time.",
    )
    number(rotate, "--overlap", "0 to 2592000; default: a week", metavar="SECONDS")
    add_consent(rotate)
    add_times(rotate)
    asks(rotate, Operator, _rotate)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    _print(options, await operator.webhook_keys())


async def _rotate(operator: Operator, options: argparse.Namespace) -> Exit:
    if not consented(options):
        if options.json:
            document({"rotated": False}, compact=True)
        return withheld(options, what="the webhook key", done="rotated")
    _print(options, await operator.rotate_webhook_key(overlap_s=options.overlap))
    note("rotated: give receivers the first key")
    return Exit.OK


def _print(options: argparse.Namespace, keys: Sequence[Mapping[str, Any]]) -> None:
    if options.json:
        document({"keys": keys}, compact=True)
        return
    names = ("id", "version", "signsUntil", "key")
    rows = ([row.get(name) for name in names] for row in map(dated, keys))
    table(("ID", "VERSION", "SIGNS UNTIL", "KEY"), rows, times=times_of(options))
