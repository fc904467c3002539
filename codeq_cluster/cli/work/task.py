"""Command `task`: create, read, explain, list and cancel tasks."""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime

from msgspec import Raw

from codeq_cluster.cli.support.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.support.output import add_paging, add_quiet, document, gathered, listed
from codeq_cluster.cli.support.progress import waiting
from codeq_cluster.client import Client, Operator
from codeq_cluster.errors import ConfigInvalid

TASK_COLUMNS = {
    "ID": "id",
    "EVENT": "command",
    "STATUS": "status",
    "PRIORITY": "priority",
    "ATTEMPTS": "attempts",
    "UPDATED": "updatedAt",
    "ERROR": "error",
}

_STATUSES = ("PENDING", "IN_PROGRESS", "COMPLETED", "FAILED")


def add(commands: Verbs) -> None:
    """Add the command and its verbs."""
    verbs = verbs_of(commands, "task", "create, read, list and cancel tasks", description=__doc__)
    create = verbs.add_parser("create", help="create a task and print it")
    create.add_argument("--event", required=True, metavar="NAME", help="the task's command")
    create.add_argument(
        "--payload", required=True, metavar="JSON", help="JSON text, or - for stdin"
    )
    create.add_argument("--priority", type=int, default=0, help="0 to 9")
    create.add_argument("--max-attempts", type=int)
    create.add_argument("--delay-seconds", type=int)
    create.add_argument("--run-at", type=_instant, metavar="TIME", help="RFC 3339")
    create.add_argument(
        "--ttl-seconds", type=int, help="a task not delivered within this time is a dead letter"
    )
    create.add_argument("--idempotency-key", metavar="KEY")
    create.add_argument("--webhook", metavar="URL")
    create.add_argument("-q", "--quiet", action="store_true", help="print only the id")
    asks(create, Client, _create)

    get = verbs.add_parser("get", help="print a task")
    get.add_argument("id")
    asks(get, Client, _get)

    result = verbs.add_parser("result", help="print a task and its result")
    result.add_argument("id")
    result.add_argument(
        "--wait", type=int, default=0, metavar="SECONDS", help="for its end; default: 0"
    )
    asks(result, Client, _result)

    explain = verbs.add_parser("explain", help="print why a task is in its state")
    explain.add_argument("id")
    asks(explain, Client, _explain)

    cancel = verbs.add_parser("cancel", help="cancel a task that has not finished")
    cancel.add_argument("id")
    asks(cancel, Client, _cancel)

    found = verbs.add_parser("list", aliases=["ls"], help="list tasks, for admins")
    found.add_argument("--event", default="", metavar="NAME", help="only this queue's")
    found.add_argument("--status", default="", choices=_STATUSES, help="only these")
    found.add_argument("--error", default="", help="only those with exactly this error")
    add_paging(found)
    add_quiet(found)
    asks(found, Operator, _list)


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text}: allowed is RFC 3339, as 2026-01-31T12:00:00Z")
    return instant


async def _create(client: Client, options: argparse.Namespace) -> None:
    text = sys.stdin.read() if options.payload == "-" else options.payload
    try:
        json.loads(text)
    except ValueError as error:
        raise ConfigInvalid(f"--payload: {error}; allowed is JSON text") from error
    task = await client.create(
        options.event,
        Raw(text.encode()),  # Unparsed, so that numbers keep every digit.
        priority=options.priority,
        max_attempts=options.max_attempts,
        delay=options.delay_seconds,
        run_at=options.run_at,
        ttl=options.ttl_seconds,
        webhook=options.webhook,
        idempotency_key=options.idempotency_key,
    )
    if options.quiet:
        print(task.id)
    else:
        document(task, compact=options.json)


async def _get(client: Client, options: argparse.Namespace) -> None:
    document(await client.task(options.id), compact=options.json)


async def _result(client: Client, options: argparse.Namespace) -> None:
    with waiting(f"{options.id} has not ended"):
        ended = await client.wait(options.id, timeout_s=options.wait)
    document({"task": ended.task, "result": ended.record}, compact=options.json)


async def _cancel(client: Client, options: argparse.Namespace) -> None:
    await client.cancel(options.id)
    document({"status": "cancelled", "id": options.id}, compact=options.json)


async def _explain(client: Client, options: argparse.Namespace) -> None:
    found = await client.explain(options.id)
    if options.json:
        document(found, compact=True)
        return
    until = f" (until {found.until.isoformat()})" if found.until else ""
    print(f"{found.reason}: {found.message}{until}")


async def _list(operator: Operator, options: argparse.Namespace) -> None:
    page = await gathered(
        options,
        lambda limit, cursor: operator.tasks(
            command=options.event,
            status=options.status,
            error=options.error,
            limit=limit,
            cursor=cursor,
        ),
    )
    listed(options, page, name="tasks", columns=TASK_COLUMNS)
