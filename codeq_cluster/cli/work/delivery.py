"""Command `delivery`: list and repeat result callbacks."""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, withheld
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import (
    LIMIT_MAX,
    add_paging,
    add_quiet,
    document,
    gathered,
    listed,
    note,
)
from codeq_cluster.client import Operator

_COLUMNS = {
    "ID": "id",
    "EVENT": "command",
    "STATUS": "status",
    "ATTEMPTS": "attempts",
    "URL": "url",
    "CREATED": "createdAt",
    "ERROR": "error",
}


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "delivery", "list and repeat result callbacks", description=__doc__)
    found = verbs.add_parser("ls", aliases=["list"], help="list deliveries")
    found.add_argument("--status", default="", choices=("dead", "pending"), help="only these")
    add_paging(found)
    add_quiet(found)
    asks(found, Operator, _list)

    replay = verbs.add_parser("replay", help="retry dead deliveries from the first attempt")
    chosen = replay.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help="every dead delivery")
    chosen.add_argument(
        "--id", action="append", metavar="ID", help="this one; may be repeated, 1000 times at most"
    )
    add_consent(replay)
    asks(replay, Operator, _replay)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(
        options,
        lambda limit, cursor: operator.deliveries(
            status=options.status, limit=limit, cursor=cursor
        ),
    )
    listed(options, page, name="deliveries", columns=_COLUMNS)


async def _replay(operator: Operator, options: argparse.Namespace) -> Exit:
    if not options.yes or options.dry_run:
        found = len(await _dead(operator, set(options.id or ())))
        if options.json:
            document({"matched": found, "replayed": 0}, compact=True)
        else:
            print(found)
        if found or options.dry_run:
            return withheld(options, what=_counted(found), done="tried again")
        note("no dead deliveries: nothing to try again")
        return _missed(options, 0)
    answer = await operator.replay(options.id)
    replayed = int(str(answer.get("replayed", 0)))
    if options.json:
        document(answer, compact=True)
    else:
        print(replayed)
    note(f"{_counted(replayed)} tried again")
    return _missed(options, replayed)


def _missed(options: argparse.Namespace, replayed: int) -> Exit:
    """Tell when some of the ids that were named are no dead deliveries."""
    missed = len(set(options.id or ())) - replayed
    if missed <= 0:
        return Exit.OK
    note(f"codeq-cluster: {missed} of the ids named are no dead deliveries; see delivery ls")
    return Exit.API


async def _dead(operator: Operator, ids: set[str]) -> list[object]:
    """Return the ids of dead deliveries: all of them, or those in `ids`."""
    every = argparse.Namespace(limit=LIMIT_MAX, cursor="")
    page = await gathered(
        every,
        lambda limit, cursor: operator.deliveries(status="dead", limit=limit, cursor=cursor),
    )
    return [row.get("id") for row in page.rows if not ids or row.get("id") in ids]


def _counted(count: int) -> str:
    return f"{count} dead deliver{'y' if count == 1 else 'ies'}"
