"""Command `task`: create, read, explain, list and cancel tasks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Mapping

from codeq_cluster.cli.asking import Verbs, asks, verbs_of
from codeq_cluster.cli.output import add_paging, add_quiet, document, gathered, listed
from codeq_cluster.client import Broker, Operator
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
    create.add_argument("--priority", type=int, help="0 to 9")
    create.add_argument("--max-attempts", type=int)
    create.add_argument("--delay-seconds", type=int)
    create.add_argument("--run-at", metavar="TIME", help="RFC 3339")
    create.add_argument("--ttl-seconds", type=int, help="undelivered after this: a dead letter")
    create.add_argument("--idempotency-key", metavar="KEY")
    create.add_argument("--webhook", metavar="URL")
    create.add_argument("-q", "--quiet", action="store_true", help="print the id alone")
    _prints(create, _create)

    get = verbs.add_parser("get", help="print a task")
    get.add_argument("id")
    _prints(get, lambda broker, options: broker.task(options.id))

    result = verbs.add_parser("result", help="print a task and its result")
    result.add_argument("id")
    result.add_argument("--wait", type=int, default=0, metavar="SECONDS", help="0 to 60")
    _prints(result, lambda broker, options: broker.result(options.id, wait_s=options.wait))

    explain = verbs.add_parser("explain", help="say why a task is where it is")
    explain.add_argument("id")
    asks(explain, Broker, _explain)

    cancel = verbs.add_parser("cancel", help="cancel a task that has not finished")
    cancel.add_argument("id")
    _prints(cancel, lambda broker, options: broker.cancel(options.id))

    found = verbs.add_parser("list", aliases=["ls"], help="list tasks, for admins")
    found.add_argument("--event", default="", metavar="NAME", help="only this queue's")
    found.add_argument("--status", default="", choices=_STATUSES, help="only these")
    found.add_argument("--error", default="", help="only those with exactly this error")
    add_paging(found)
    add_quiet(found)
    asks(found, Operator, _list)


def _prints(
    parser: argparse.ArgumentParser,
    call: Callable[[Broker, argparse.Namespace], Awaitable[Mapping[str, object]]],
) -> None:
    """Let a verb print the answer of a call."""

    async def act(broker: Broker, options: argparse.Namespace) -> None:
        found = await call(broker, options)
        if getattr(options, "quiet", False):
            print(found.get("id", ""))
        else:
            document(found, compact=options.json)

    asks(parser, Broker, act)


async def _create(broker: Broker, options: argparse.Namespace) -> Mapping[str, object]:
    text = sys.stdin.read() if options.payload == "-" else options.payload
    try:
        json.loads(text)
    except ValueError as error:
        raise ConfigInvalid(f"--payload: {error}; allowed is JSON text") from error
    fields: dict[str, object] = {
        "command": options.event,
        "priority": options.priority,
        "maxAttempts": options.max_attempts,
        "delaySeconds": options.delay_seconds,
        "runAt": options.run_at,
        "ttlSeconds": options.ttl_seconds,
        "idempotencyKey": options.idempotency_key,
        "webhook": options.webhook,
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return await broker.create(given, payload=text)


async def _explain(broker: Broker, options: argparse.Namespace) -> None:
    found = await broker.explain(options.id)
    if options.json:
        document(found, compact=True)
        return
    until = f" (until {found['until']})" if found.get("until") else ""
    print(f"{found.get('reason')}: {found.get('message')}{until}")


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
