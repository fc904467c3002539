"""Command `task`: create, read, explain, list and cancel tasks."""

from __future__ import annotations

import argparse
from functools import partial

from msgspec import UNSET, Raw

from codeq_cluster.cli.support.asking import Verbs, add_verb, asks, verbs_of
from codeq_cluster.cli.support.flags import (
    add_backoff,
    add_created,
    add_tags,
    add_unique,
    add_untagged,
    given_json,
    given_unique,
    number,
)
from codeq_cluster.cli.support.named import refuse_unknown, whole_id
from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.cli.support.output import (
    add_listing,
    columns,
    document,
    gathered,
    listed,
    show,
    told,
)
from codeq_cluster.cli.support.progress import waiting
from codeq_cluster.cli.support.times import Times, add_times, given_instant, times_of
from codeq_cluster.cli.work import task_log
from codeq_cluster.client import Client, NodeRecord, Operator, Page, StepRecord
from codeq_cluster.client.producing import OPTIONS

TASK_COLUMNS = columns("id command status priority attempts updatedAt error")

_STATUSES = ("PENDING", "IN_PROGRESS", "COMPLETED", "FAILED", "DEAD")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "task", "create, read, list and cancel tasks", description=__doc__)
    verb = partial(add_verb, verbs, Client)
    _add_create(verbs)
    verb("get", "print a task", _get, "id", add_times)

    result = verbs.add_parser("result", help="print a task and its result")
    result.add_argument("id")
    number(result, "--wait", "for its end; default: 0", metavar="SECONDS", default=0)
    add_times(result)
    asks(result, Client, _result)

    verb("explain", "print why a task is in its state", _explain, "id", add_times)
    verb("graph", "print what a task waits for, and who waits for it", _graph, "id")
    verb("steps", "print what a task's function has recorded", _steps, "id", add_times)

    task_log.add(verbs)

    signal = verbs.add_parser("signal", help="send a task a signal, for which it waits or will")
    signal.add_argument("id")
    signal.add_argument("name")
    signal.add_argument(
        "--payload", default="null", metavar="JSON", help="JSON text, or - for stdin; default: null"
    )
    signal.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="a second signal with the same key changes nothing; default: a new one",
    )
    asks(signal, Client, _signal)

    cancel = verbs.add_parser("cancel", help="cancel a task that has not finished")
    cancel.add_argument("id")
    number(
        cancel,
        "--grace-seconds",
        "how long its worker may take to end it; default: 0",
        dest="grace",
        default=0,
    )
    cancel.add_argument("--reason", default="", metavar="TEXT", help="for its worker and people")
    cancel.add_argument(
        "--dependents", action="store_true", help="also what waits for it, and what waits for that"
    )
    asks(cancel, Client, _cancel)

    tag = verbs.add_parser("tag", help="set and remove tags of a task, and print all it has")
    tag.add_argument("id")
    add_tags(tag, "it has this tag afterwards", flag="--set")
    add_untagged(tag, of="it")
    asks(tag, Client, _tag)
    _add_list(verbs)


def _add_list(verbs: Verbs) -> None:
    found = verbs.add_parser(
        "list",
        aliases=["ls"],
        help="list tasks, for admins",
        description="List tasks by queue: those that wait in the order of claims, those that have "
        "ended the newest first. With --tag over all queues, the newest first.",
    )
    found.add_argument("--queue", "--event", default="", metavar="NAME", help="only this queue's")
    found.add_argument("--status", default="", choices=_STATUSES, help="only these")
    found.add_argument("--error", default="", help="only those with exactly this error")
    add_tags(found, "only those with this tag")
    found.add_argument("--schedule", default="", metavar="ID", help="only those it made")
    found.add_argument("--group", default="", metavar="ID", help="only its members")
    add_created(found, needs="; needs --tag or --queue")
    add_listing(found)
    asks(found, Operator, _list)


def _add_create(verbs: Verbs) -> None:
    create = verbs.add_parser("create", help="create a task and print it")
    # codeQ's command calls it an event.
    create.add_argument(
        "--command",
        "--event",
        dest="task_command",
        required=True,
        metavar="NAME",
        help="what the task is to do",
    )
    create.add_argument(
        "--payload", required=True, metavar="JSON", help="JSON text, or - for stdin"
    )
    number(create, "--priority", "0 to 9, the highest is claimed first", default=0)
    number(
        create, "--max-attempts", "deliveries after which it is a dead letter; default: the queue's"
    )
    number(create, "--delay-seconds", "no worker gets it before", dest="delay")
    create.add_argument(
        "--run-at",
        type=given_instant,
        metavar="TIME",
        help="no worker gets it before, RFC 3339; overrides --delay-seconds",
    )
    number(
        create,
        "--ttl-seconds",
        "a task not delivered within this time is a dead letter",
        dest="ttl",
    )
    number(
        create, "--timeout-seconds", "how long a worker may take for one attempt", dest="timeout"
    )
    add_backoff(create, otherwise="the queue's")
    create.add_argument(
        "--idempotency-key",
        metavar="KEY",
        help="a repeated create with the same key prints the first task; default: a new one",
    )
    create.add_argument(
        "--key",
        metavar="KEY",
        help="what it shares a limit with: tasks of the queue with the same key",
    )
    number(create, "--cost", "tokens of its key's rate that a claim of it spends; default: 1")
    create.add_argument(
        "--after",
        action="append",
        dest="depends_on",
        metavar="ID",
        help="a task that must be completed first; may be repeated",
    )
    add_unique(create)
    add_tags(create, "a text by which lists find it")
    create.add_argument(
        "--metadata", metavar="JSON", help="JSON for its worker and its webhook, at most 4 KiB"
    )
    create.add_argument("--webhook", metavar="URL", help="gets its result in a signed request")
    create.add_argument("-q", "--quiet", action="store_true", help="print only the id")
    add_times(create)
    asks(create, Client, _create)


async def _create(client: Client, options: argparse.Namespace) -> None:
    said = {name: getattr(options, name) for name in OPTIONS}
    task = await client.create(
        options.task_command,
        given_json("--payload", options.payload),
        **said
        | {
            "unique": given_unique(options),
            "tags": dict(options.tags) or None,
            "metadata": given_json("--metadata", options.metadata) if options.metadata else None,
        },
    )
    if options.quiet:
        print(task.id)
    else:
        show(options, task)


async def _get(client: Client, options: argparse.Namespace) -> None:
    show(options, await client.task(await whole_id(client, options.id)))


async def _result(client: Client, options: argparse.Namespace) -> None:
    task_id = await whole_id(client, options.id)
    with waiting(f"{task_id} has not ended"):
        ended = await client.wait(task_id, timeout_s=options.wait)
    show(options, {"task": ended.task, "result": ended.record})


async def _cancel(client: Client, options: argparse.Namespace) -> None:
    task_id = await whole_id(client, options.id)
    has_ended = await client.cancel(
        task_id, grace=options.grace, reason=options.reason, dependents=options.dependents
    )
    status = "cancelled" if has_ended else "cancelling"
    show(options, {"status": status, "id": task_id})


async def _tag(client: Client, options: argparse.Namespace) -> None:
    if not options.tags and not options.remove:
        raise UsageRefused("say --set NAME=VALUE or --remove NAME")
    task_id = await whole_id(client, options.id)
    tags = await client.tag(task_id, dict(options.tags), remove=options.remove)
    show(options, {"id": task_id, "tags": tags})


async def _steps(client: Client, options: argparse.Namespace) -> None:
    found = await client.steps(await whole_id(client, options.id))
    if options.json:
        document(found, compact=True)
        return
    times = times_of(options)
    for step in found.steps:
        print(f"{times.text(step.recorded_at)}  {step.name}  {_said(step, times)}".rstrip())
    for signal in found.signals:
        if not signal.read:
            print(f"{times.text(signal.sent_at)}  signal {signal.name}, not waited for yet")


def _said(step: StepRecord, times: Times) -> str:
    if step.open and step.until is not None:
        what = f"waits for signal {step.signal} until" if step.signal else "sleeps until"
        return f"{what} {times.text(step.until)}"
    if step.until is not None and step.value is UNSET:
        return f"no signal {step.signal} came" if step.signal else "slept"
    return bytes(step.value).decode() if isinstance(step.value, Raw) else ""


async def _signal(client: Client, options: argparse.Namespace) -> None:
    task_id = await whole_id(client, options.id)
    replay = await client.signal(
        task_id,
        options.name,
        given_json("--payload", options.payload),
        idempotency_key=options.idempotency_key,
    )
    show(options, {"id": task_id, "signal": options.name, "replay": replay})


async def _graph(client: Client, options: argparse.Namespace) -> None:
    nodes = await client.neighbours(await whole_id(client, options.id))
    if options.json:
        document({"tasks": nodes}, compact=True)
        return
    for node in nodes:
        print(f"{node.id} {node.command} {_shown(node)}")
        for each in node.depends_on:
            print(f"    {each.verdict:<10} {each.name} ({each.run_if}) {each.status}".rstrip())


def _shown(node: NodeRecord) -> str:
    states = {"HELD_SET": "HELD", "DLQ_SET": "DEAD"}
    return states.get(node.last_known_location, node.status)


async def _explain(client: Client, options: argparse.Namespace) -> None:
    found = await client.explain(await whole_id(client, options.id))
    until = f" (until {times_of(options).text(found.until)})" if found.until else ""
    told(options, found, f"{found.reason}: {found.message}{until}")


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(
        options,
        partial(
            operator.tasks,
            command=options.queue,
            status=options.status,
            error=options.error,
            tags=dict(options.tags),
            schedule=options.schedule,
            group=options.group,
            created_after=options.created_after,
            created_before=options.created_before,
        ),
    )
    if options.queue and not page.rows:
        await refuse_unknown(operator, options.queue)
    rows = [{"priority": 0, **row} for row in page.rows]
    listed(
        options,
        page if options.json else Page(rows, page.cursor),
        name="tasks",
        columns=TASK_COLUMNS,
    )
