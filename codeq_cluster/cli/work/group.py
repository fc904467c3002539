"""Command `group`: tasks that one task follows after the last of them has ended."""

from __future__ import annotations

import argparse
from functools import partial

from msgspec import to_builtins

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.flags import given_json, number
from codeq_cluster.cli.support.output import (
    add_listing,
    add_paging,
    columns,
    gathered,
    listed,
    show,
    told,
)
from codeq_cluster.cli.support.times import add_times
from codeq_cluster.client import Client, GroupRecord, NewTask, Page

_COLUMNS = columns("id status total live completed failed cancelled dead createdAt endedAt")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(
        commands,
        "group",
        "tasks that one task follows after the last of them",
        description=__doc__,
    )
    verb = partial(add_verb, verbs, Client)
    create = verbs.add_parser("create", help="begin a group, and print its id")
    create.add_argument("id", nargs="?", help="its name; default: a new one")
    create.add_argument("--then", metavar="COMMAND", help="the completion task's command")
    create.add_argument(
        "--then-payload",
        default="{}",
        metavar="JSON",
        help="the completion task's payload, or - for stdin; default: {}",
    )
    create.add_argument(
        "--then-if",
        choices=("ended", "succeeded"),
        help="make it however the members end, or only if all are completed; default: ended",
    )
    create.add_argument(
        "--on-failure",
        choices=("continue", "cancel"),
        help="what a failed member means for the others; default: continue",
    )
    number(create, "--seal-within-seconds", "it must be sealed within; default: a day")
    asks(create, Client, _create)

    add_ = verbs.add_parser("add", help="add a task to a group that is not sealed")
    add_.add_argument("id")
    add_.add_argument(
        "--command",
        dest="task_command",
        required=True,
        metavar="NAME",
        help="what the task is to do",
    )
    add_.add_argument("--payload", required=True, metavar="JSON", help="JSON text, or - for stdin")
    add_.add_argument("--idempotency-key", metavar="KEY", help="adding it again makes no other")
    asks(add_, Client, _add)

    verb("ls", "list the groups, those that go on first", _list, add_listing)
    verb("show", "print how many members have ended, and what is missing", _show, "id", add_times)

    results = verbs.add_parser("results", help="print a page of a group's members, with results")
    results.add_argument("id")
    add_paging(results)
    add_times(results)
    asks(results, Client, _results)

    verb("seal", "let nobody add to a group but its live members", _seal, "id")
    verb("cancel", "seal a group and cancel its members", _cancel, "id")


async def _create(client: Client, options: argparse.Namespace) -> None:
    then = None
    if options.then is not None:
        then = NewTask(options.then, given_json("--then-payload", options.then_payload))
    group = client.group(
        options.id,
        then=then,
        then_if=options.then_if,
        on_failure=options.on_failure,
        seal_within=options.seal_within_seconds,
    )
    _say(options, await client.begin_group(group.body))


async def _add(client: Client, options: argparse.Namespace) -> None:
    payload = given_json("--payload", options.payload)
    task = NewTask(options.task_command, payload, idempotency_key=options.idempotency_key)
    _say(options, await client.add_to_group(options.id, [task]))


async def _list(client: Client, options: argparse.Namespace) -> None:
    async def fetch(limit: int, cursor: str) -> Page:
        found = await client.groups(limit=limit, cursor=cursor)
        return Page([to_builtins(each) for each in found.groups], found.cursor)

    listed(options, await gathered(options, fetch), name="groups", columns=_COLUMNS)


async def _show(client: Client, options: argparse.Namespace) -> None:
    show(options, await client.group_record(options.id))


async def _results(client: Client, options: argparse.Namespace) -> None:
    page = await client.group_results(options.id, limit=options.limit, cursor=options.cursor)
    show(options, page)


async def _seal(client: Client, options: argparse.Namespace) -> None:
    _say(options, await client.seal_group(options.id))


async def _cancel(client: Client, options: argparse.Namespace) -> None:
    _say(options, await client.cancel_group(options.id))


def _say(options: argparse.Namespace, group: GroupRecord) -> None:
    told(options, group, f"{group.id} {group.status}")
