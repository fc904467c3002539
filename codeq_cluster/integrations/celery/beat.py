"""Beat: an application's `beat_schedule` as schedules of the broker, by a command of Celery's."""

from __future__ import annotations

import asyncio
import hashlib
import re
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
from celery.beat import BeatLazyFunc, ScheduleEntry
from celery.bin.base import CeleryCommand, CeleryOption, handle_preload_options
from celery.schedules import crontab, schedule
from kombu import Connection
from kombu.transport import virtual

from codeq_cluster.client import Applied, NewSchedule, NewTask, Operator
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.celery.messages import DELIVERIES_MAX, DRAWN, KEY, task_of
from codeq_cluster.integrations.celery.transport import target_of_client
from codeq_cluster.integrations.target import Target

OWNER: Final = "celery-beat"

_STARRED: Final = re.compile(r"\*(/[0-9]+)?")
_NO_ID: Final = re.compile(r"[^A-Za-z0-9._:-]")
_ID_CHARS_MAX: Final = 100
_HASH_CHARS: Final = 8


class _Recorder(virtual.Channel):
    """A channel that keeps the messages that Celery would send."""

    supports_fanout = False
    put: list[tuple[str, dict[str, Any]]]

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:
        self.connection.put.append((queue, message))


class _Recording(virtual.Transport):
    """A transport that sends nothing."""

    Channel = _Recorder

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.put: list[tuple[str, dict[str, Any]]] = []


def schedules_of(app: Any) -> list[NewSchedule]:
    """Return an application's `beat_schedule` as schedules, the same each time.

    Raises:
        ValueError: Some entries cannot be schedules; a line of the text for each.
    """
    app.finalize()
    if app.conf.task_always_eager:
        raise ValueError("task_always_eager is set: such an application sends no tasks")
    made, problems = [], []
    with Connection(transport=_Recording) as connection, app.amqp.Producer(connection) as producer:
        for name, fields in sorted(app.conf.beat_schedule.items()):
            try:
                entry = ScheduleEntry(**{**fields, "name": name, "app": app})
                made.append(_schedule(app, entry, producer))
            except (ValueError, TypeError) as error:
                problems.append(f"{name}: {error}")
    if problems:
        raise ValueError("\n".join(problems))
    return made


def _schedule(app: Any, entry: Any, producer: Any) -> NewSchedule:
    return NewSchedule(
        _id(entry.name),
        _task(app, entry, producer),
        **_when(entry.schedule),
        # Beat knows nothing of the runs before.
        overlap="allow",
        note=f"beat: {entry.name}",
    )


def _when(found: Any) -> dict[str, Any]:
    if type(found) is schedule:
        if found.run_every % timedelta(seconds=1):
            raise ValueError(f"its interval {found.run_every} is no whole number of seconds")
        return {"every": found.run_every}
    if type(found) is not crontab:
        raise ValueError(f"{type(found).__name__} is no crontab and no interval")
    days = _field(found._orig_day_of_month, found.day_of_month)  # noqa: SLF001
    weekdays = _field(found._orig_day_of_week, found.day_of_week)  # noqa: SLF001
    if "*" not in {days, weekdays}:
        raise ValueError(
            "has days of the month and of the week: Celery means days that are both, cron those "
            "that are either; let the task itself look at one of them"
        )
    fields = (
        _field(found._orig_minute, found.minute),  # noqa: SLF001
        _field(found._orig_hour, found.hour),  # noqa: SLF001
        days,
        _field(found._orig_month_of_year, found.month_of_year),  # noqa: SLF001
        weekdays,
    )
    return {"cron": " ".join(fields), "zone": str(found.tz)}


def _field(said: object, found: set[int]) -> str:
    """Return a field of cron; a star is kept, because it decides about changes of clocks."""
    text = str(said)
    return text if _STARRED.fullmatch(text) else ",".join(map(str, sorted(found)))


def _task(app: Any, entry: Any, producer: Any) -> NewTask:
    """Return the task of each run: the message of Celery's own publish, without what is drawn."""
    options = dict(entry.options)
    task = app.tasks.get(entry.task)
    expires = options.get("expires", getattr(task, "expires", None))
    if any(options.get(name) is not None for name in ("countdown", "eta")):
        raise ValueError("has a countdown or an eta; let its schedule be later")
    if isinstance(expires, datetime):
        raise ValueError("expires at one instant; give seconds after each run's")  # noqa: TRY004
    if any(isinstance(each, BeatLazyFunc) for each in (*entry.args, *entry.kwargs.values())):
        raise ValueError("has a BeatLazyFunc; compute the argument in the task")
    put = producer.connection.transport.put
    put.clear()
    options |= {"expires": None, "producer": producer}
    if task is None:
        app.send_task(entry.task, entry.args, entry.kwargs, **options)
    else:
        task.apply_async(entry.args, entry.kwargs, **options)
    if len(put) != 1:
        raise ValueError(f"is routed to {len(put)} queues; a schedule has one")
    ((queue, message),) = put
    message["headers"] |= {"id": DRAWN, "root_id": DRAWN, "origin": "beat"}
    message["properties"] |= {"correlation_id": DRAWN, "reply_to": "", KEY: ""}
    if message["content-type"] == "application/json" and "compression" not in message["headers"]:
        # People can read it.
        message["body"] = b64decode(message["body"]).decode()
        message["properties"]["body_encoding"] = "utf-8"
    deliveries_max = int(app.conf.broker_transport_options.get("max_deliveries", DELIVERIES_MAX))
    found = task_of(queue, message, now=datetime.now(UTC), deliveries_max=deliveries_max)
    seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
    ttl = None if seconds is None else timedelta(seconds=max(1, round(float(seconds))))
    return replace(found, idempotency_key=None, ttl=ttl)


def _id(name: str) -> str:
    """Return the id for an entry's name: itself, or with a hash for what an id cannot have."""
    made = _NO_ID.sub("-", name)[:_ID_CHARS_MAX]
    if made == name and made[:1].isalnum():
        return name
    return f"beat-{made}-{hashlib.sha256(name.encode()).hexdigest()[:_HASH_CHARS]}"


@click.command(cls=CeleryCommand)
@click.option(
    "--owner",
    default=OWNER,
    show_default=True,
    cls=CeleryOption,
    help_group="Import",
    help="The set of schedules that is to be exactly these.",
)
@click.option(
    "--token",
    envvar="CODEQ_TOKEN",
    default="",
    cls=CeleryOption,
    help_group="Import",
    help="An admin's, in place of the one in the broker's URL; or CODEQ_TOKEN.",
)
@click.option(
    "--prune",
    is_flag=True,
    cls=CeleryOption,
    help_group="Import",
    help="Remove schedules of the set whose entries are gone.",
)
@click.option(
    "--dry-run", is_flag=True, cls=CeleryOption, help_group="Import", help="Only print the changes."
)
@click.pass_context
@handle_preload_options
def import_beat(ctx: Any, owner: str, token: str, prune: bool, dry_run: bool, **_: Any) -> None:
    """Make the application's beat_schedule schedules of codeq-cluster, in place of beat."""
    app = ctx.obj.app
    try:
        made = schedules_of(app)
        target = target_of_client(app.connection_for_write(), token=token)
        applied = asyncio.run(_applied(target, owner, made, prune=prune, dry_run=dry_run))
    except (CodeqError, ValueError) as error:
        raise click.ClickException(str(error)) from error
    for line in _lines(applied):
        click.echo(line)
    if applied.dry_run and not dry_run:
        raise click.ClickException("nothing was changed; add --prune to remove what is gone")


async def _applied(
    target: Target, owner: str, made: list[NewSchedule], *, prune: bool, dry_run: bool
) -> Applied:
    async with Operator(
        target.urls, token=target.token, ca_file=target.ca_file, deadline_s=target.deadline_s
    ) as operator:
        planned = await operator.apply_schedules(owner, made, dry_run=True)
        if dry_run or (planned.removed and not prune):
            return planned
        return await operator.apply_schedules(owner, made)


def _lines(applied: Applied) -> Iterator[str]:
    for what in ("created", "changed", "unchanged", "removed"):
        yield from (f"{what:9} {each}" for each in getattr(applied, what))
