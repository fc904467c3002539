"""Command `aside`: list and retry what the broker has set aside.

The broker sets a task or an item aside when it fails at it: its record is damaged or breaks a rule,
or what follows from it is too large. The others go on, and this one waits. What is retried and
fails again is set aside again.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.consent import add_chosen, counted_or_done
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import (
    Pages,
    add_listing,
    columns,
    gathered,
    listed,
    named,
    note,
    show,
)
from codeq_cluster.cli.support.times import add_times
from codeq_cluster.client import Operator

_COLUMNS = columns("id dueAt since reason")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "aside", "list and retry what is set aside", description=__doc__)
    verb = partial(add_verb, verbs, Operator)
    verb("ls", "list what is set aside", _list, _add_ownerless, add_listing)

    show = verbs.add_parser("show", help="show one task or item that is set aside")
    show.add_argument("id", metavar="ID", help="as listed, such as task.ID")
    _add_ownerless(show)
    add_times(show)
    asks(show, Operator, _show)

    retry = verbs.add_parser("retry", help="make it due again")
    add_chosen(retry, every="everything that is set aside")
    _add_ownerless(retry)
    asks(retry, Operator, _retry)


def _add_ownerless(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--ownerless",
        action="store_true",
        help="tasks whose record does not tell the owner; needs an operator's token",
    )


def _pages(operator: Operator, options: argparse.Namespace) -> Pages:
    return partial(operator.asides, ownerless=options.ownerless)


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(options, _pages(operator, options))
    listed(options, page, name="asides", columns=_COLUMNS, none="nothing is set aside")


async def _show(operator: Operator, options: argparse.Namespace) -> Exit:
    found = await named(_pages(operator, options), [options.id])
    if not found:
        note("codeq-cluster: nothing of this id is set aside; see aside ls")
        return Exit.API
    show(options, found[0])
    return Exit.OK


async def _retry(operator: Operator, options: argparse.Namespace) -> Exit:
    async def act(dry_run: bool) -> Mapping[str, object]:
        if dry_run:
            found = await named(_pages(operator, options), options.id)
            return {"matched": len(found), "retried": 0}
        return await operator.retry(options.id, ownerless=options.ownerless)

    return await counted_or_done(
        options,
        act,
        field="retried",
        done="due again",
        counted=lambda count: f"{count} {'task or item' if count == 1 else 'tasks or items'}",
        strange="not set aside; see aside ls",
    )
