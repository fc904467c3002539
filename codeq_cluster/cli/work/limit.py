"""Command `limit`: limits that several queues share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, withheld
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import add_paging, add_quiet, document, gathered, listed, note
from codeq_cluster.cli.support.rates import add_rate, said_rate
from codeq_cluster.cli.support.times import add_times, dated, times_of
from codeq_cluster.client import Operator, Page, Refused

_COLUMNS = {"NAME": "name", "VERSION": "version", "MAX": "maxRunning", "RATE": "rate"}


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "limit", "limits that several queues share", description=__doc__)
    found = verbs.add_parser("ls", aliases=["list"], help="list the limits")
    add_paging(found)
    add_quiet(found)
    asks(found, Operator, _list)

    show = verbs.add_parser("show", help="show a limit, its queues and what they do now")
    show.add_argument("name")
    add_times(show)
    asks(show, Operator, _show)

    put = verbs.add_parser(
        "put",
        help="create a limit or change it",
        description="Create a limit, or change what the flags say of it. Queues share it by "
        "'queue flow QUEUE --limit NAME'.",
    )
    put.add_argument("name")
    number(put, "--max", "tasks of its queues in progress at once; 0 for any number")
    add_rate(put, of="its queues")
    add_times(put)
    asks(put, Operator, _put)

    delete = verbs.add_parser("delete", help="delete a limit that no topic names")
    delete.add_argument("name")
    add_consent(delete)
    asks(delete, Operator, _delete)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(
        options, lambda limit, cursor: operator.limits(limit=limit, cursor=cursor)
    )
    rows = page.rows
    if not options.json:
        rows = [{**row, "rate": _shown(row["rate"])} if "rate" in row else row for row in rows]
    listed(options, Page(rows, page.cursor), name="limits", columns=_COLUMNS)


async def _show(operator: Operator, options: argparse.Namespace) -> None:
    _print(options, await operator.limit(options.name))


async def _put(operator: Operator, options: argparse.Namespace) -> None:
    said: dict[str, Any] = said_rate(options.rate, options.burst)
    if options.max is not None:
        said["maxRunning"] = options.max or None
    try:
        found = await operator.limit(options.name)
    except Refused as error:
        if error.code != "not-found":
            raise
        found = {}
    rule = {field: found[field] for field in ("maxRunning", "rate") if field in found}
    _print(options, await operator.put_limit(options.name, {**rule, **said}))


async def _delete(operator: Operator, options: argparse.Namespace) -> Exit:
    limit = await operator.limit(options.name)
    doing = consented(options)
    if doing:
        await operator.delete_limit(options.name)
    if options.json:
        document({"name": limit.get("name"), "deleted": doing}, compact=True)
    elif doing:
        print(limit.get("name"))
    what = f"limit {options.name} ({len(limit.get('queues', []))} queues share it)"
    if not doing:
        return withheld(options, what=what, done="deleted")
    note(f"limit {options.name} deleted")
    return Exit.OK


def _print(options: argparse.Namespace, limit: Mapping[str, object]) -> None:
    shown = limit if options.json else dated(limit)
    document(shown, compact=options.json, times=times_of(options))


def _shown(rate: Mapping[str, int]) -> str:
    """Return a rate as the flag says it, with its burst."""
    return f"{rate['count']}/{rate['perSeconds']}, burst {rate['burst']}"
