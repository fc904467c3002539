"""Command `delivery`: list and repeat result callbacks."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.consent import add_chosen, counted_or_done
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import add_listing, columns, gathered, listed, named
from codeq_cluster.client import Operator

_COLUMNS = columns("id command status attempts url createdAt error")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "delivery", "list and repeat result callbacks", description=__doc__)
    found = verbs.add_parser("ls", aliases=["list"], help="list deliveries")
    found.add_argument("--status", default="", choices=("dead", "pending"), help="only these")
    add_listing(found)
    asks(found, Operator, _list)

    replay = verbs.add_parser("replay", help="retry dead deliveries from the first attempt")
    add_chosen(replay, every="every dead delivery")
    asks(replay, Operator, _replay)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(options, partial(operator.deliveries, status=options.status))
    listed(options, page, name="deliveries", columns=_COLUMNS)


async def _replay(operator: Operator, options: argparse.Namespace) -> Exit:
    async def act(dry_run: bool) -> Mapping[str, object]:
        if dry_run:
            found = await named(partial(operator.deliveries, status="dead"), options.id)
            return {"matched": len(found), "replayed": 0}
        return await operator.replay(options.id)

    return await counted_or_done(
        options,
        act,
        field="replayed",
        done="tried again",
        counted=lambda count: f"{count} dead deliver{'y' if count == 1 else 'ies'}",
        strange="no dead deliveries; see delivery ls",
    )
