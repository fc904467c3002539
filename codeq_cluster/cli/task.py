"""Command `task`: create, read and cancel tasks over the HTTP API."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping

from codeq_cluster.cli.outcome import Exit
from codeq_cluster.cli.status import add_target, token_of, urls_of
from codeq_cluster.client import Broker
from codeq_cluster.errors import ConfigInvalid


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its four verbs."""
    parser = commands.add_parser("task", help="create, read and cancel tasks", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

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
    _finish(create, _create)

    get = verbs.add_parser("get", help="print a task")
    get.add_argument("id")
    _finish(get, lambda broker, options: broker.task(options.id))

    result = verbs.add_parser("result", help="print a task and its result")
    result.add_argument("id")
    result.add_argument("--wait", type=int, default=0, metavar="SECONDS", help="0 to 60")
    _finish(result, lambda broker, options: broker.result(options.id, wait_s=options.wait))

    cancel = verbs.add_parser("cancel", help="cancel a task that has not finished")
    cancel.add_argument("id")
    _finish(cancel, lambda broker, options: broker.cancel(options.id))


def _finish(
    parser: argparse.ArgumentParser,
    call: Callable[[Broker, argparse.Namespace], Awaitable[Mapping[str, object]]],
) -> None:
    """Add what every verb has."""
    add_target(parser)
    parser.add_argument("--json", action="store_true", help="one line instead of indented JSON")

    async def answer(options: argparse.Namespace) -> Mapping[str, object]:
        async with Broker(urls_of(options), token=token_of(options)) as broker:
            return await call(broker, options)

    def run(options: argparse.Namespace) -> Exit:
        found = asyncio.run(answer(options))
        print(json.dumps(found, indent=None if options.json else 2, ensure_ascii=False))
        return Exit.OK

    parser.set_defaults(run=run)


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
