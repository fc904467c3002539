"""Command `limit`: limits that several queues share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import Any

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_consent, consented, withheld
from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import (
    add_paging,
    add_quiet,
    document,
    gathered,
    listed,
    note,
    show,
)
from codeq_cluster.cli.support.rates import add_rate, said_rate
from codeq_cluster.cli.support.times import add_times
from codeq_cluster.client import Operator, Page, Refused

_COLUMNS = {"NAME": "name", "VERSION": "version", "MAX": "maxRunning", "RATE": "rate"}


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "limit", "limits that several queues share", description=__doc__)
    verb = partial(add_verb, verbs, Operator)
    verb("ls", "list the limits", _list, add_paging, add_quiet)
    verb("show", "show a limit, its queues and what they do now", _show, "name", add_times)

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

    verb("delete", "delete a limit that no topic names", _delete, "name", add_consent)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(options, operator.limits)
    rows = page.rows
    if not options.json:
        rows = [{**row, "rate": _shown(row["rate"])} if "rate" in row else row for row in rows]
    listed(options, Page(rows, page.cursor), name="limits", columns=_COLUMNS)


async def _show(operator: Operator, options: argparse.Namespace) -> None:
    show(options, await operator.limit(options.name))


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
    show(options, await operator.put_limit(options.name, {**rule, **said}))


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


def _shown(rate: Mapping[str, int]) -> str:
    """Return a rate as the flag says it, with its burst."""
    return f"{rate['count']}/{rate['perSeconds']}, burst {rate['burst']}"
