"""Schedules: those of taskiq as the broker's own, so that no scheduler process fires them."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from taskiq import ScheduledTask, ScheduleSource, TaskiqEvents, TaskiqMessage
from taskiq.exceptions import ScheduledTaskCancelledError
from taskiq.kicker import AsyncKicker

from codeq_cluster.client import NewSchedule, Refused, State, TaskRecord
from codeq_cluster.integrations.bodies import encoded_of
from codeq_cluster.integrations.link import Link, lasting
from codeq_cluster.integrations.numbered import NOT_FOUND, read
from codeq_cluster.integrations.taskiq.broker import CodeqBroker
from codeq_cluster.integrations.taskiq.messages import DRAWN, SCHEDULE

OWNER: Final = "taskiq"

_PREFIX: Final = "taskiq:"  # Of the ids of schedules: others of the cluster may have the same.
_GROUP: Final = "taskiq-schedule-"  # Of the names of groups: one for each `time`.
_TAGS: Final = {"taskiq-schedule": "time"}
_KINDS: Final = ("cron", "interval", "time")
_ID: Final = re.compile(r"[A-Za-z0-9._:-]{1,100}")
_FORBIDDEN: Final = 403
_CANCELLED: Final = frozenset({"CANCELLING", "CANCELLED"})  # Of a group.
_UTC: Final = "UTC"
_STALE: Final = "stale-revision"
_CONFLICT: Final = "idempotency-conflict"

log = logging.getLogger(__name__)


class CodeqScheduleSource(ScheduleSource):
    """Schedules that the cluster fires: a cron or an interval as a schedule, a time as a task.

    At a worker's start the `schedule` labels of its tasks become the cluster's. A scheduler of
    taskiq is not needed, and sends nothing of this source.
    """

    def __init__(
        self, broker: CodeqBroker, *, token: str = "", owner: str = OWNER, revision: int = 0
    ) -> None:
        """Prepare it, and let the broker's workers put the schedules of labels at their start.

        Args:
            broker: What the schedules' tasks are of. To put those of labels, its token needs the
                scope `codeq:schedule`.
            token: An admin's, to add, delete and list schedules; empty for the broker's own.
            owner: The set that the schedules of labels are; one for each application.
            revision: Of that set: a worker of a lower one changes nothing; 0 for none.
        """
        self._broker = broker
        self._target = replace(broker.target, token=token or broker.target.token)
        self._owner = owner
        self._revision = revision
        broker.add_event_handler(TaskiqEvents.WORKER_STARTUP, lambda _: self.startup())

    async def startup(self) -> None:
        """Make the set of the cluster's schedules exactly those of the labels.

        A `time` that was deleted, or waits as another release had it, is left alone.

        Raises:
            Refused: A schedule is impossible, or the token has not the scope.
            ValueError: A schedule cannot be one of the cluster.
        """
        named = list(self._of_labels())
        link = self._broker.link
        try:
            await link.answer(
                link.leases.apply_schedules(
                    self._owner,
                    [self._schedule(each) for each in named if each.time is None],
                    revision=self._revision,
                )
            )
        except Refused as error:
            if error.code != _STALE:
                raise
            log.warning("the schedules of %s are left alone: %s", self._owner, error)
            return
        now = datetime.now(UTC)
        for each in named:
            if each.time is None:
                await self._cancel_time(each.schedule_id)
                continue
            # One that is over has fired, if a worker had started before it.
            if _instant(each.time) <= now:
                continue
            try:
                await self._add_time(each, each.time)
            except ValueError as error:
                # Whatever a release changes, its workers start.
                log.warning("a time of a label is left alone: %s", error)

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return the schedules of this source, and the times that have not come yet."""
        link, found, cursor = self._link, list[ScheduledTask](), ""
        while True:
            page = await link.answer(link.operator.schedules(cursor=cursor))
            found += [self._found(row) for row in page.rows if row["id"].startswith(_PREFIX)]
            if not (cursor := page.cursor):
                break
        while True:
            page = await link.answer(
                link.operator.tasks(tags=_TAGS, status="PENDING", cursor=cursor)
            )
            found += [
                self._scheduled(task.payload, time=task.run_at)
                for task in msgspec.convert(page.rows, tuple[TaskRecord, ...])
                if task.state is State.DELAYED
            ]
            if not (cursor := page.cursor):
                return found

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Add a schedule, or change the one of its id; once it returned, the cluster fires it.

        Raises:
            Refused: The schedule is impossible.
            ValueError: It has several triggers, an offset that is no time zone, or a `time` and an
                id that had another one, or of which one was deleted.
        """
        if schedule.time is None:
            link = self._link
            await link.answer(link.operator.put_schedule(self._schedule(schedule)))
            await self._cancel_time(schedule.schedule_id)
        else:
            await self._add_time(schedule, schedule.time)
            await self._delete(schedule.schedule_id, had_time=True)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, if it exists; what it has sent already runs on."""
        await self._delete(schedule_id, had_time=await self._cancel_time(schedule_id))

    def pre_send(self, task: ScheduledTask) -> None:  # noqa: ARG002 - taskiq's own hook
        """Keep a scheduler of taskiq from sending what the cluster sends.

        Raises:
            ScheduledTaskCancelledError: Always.
        """
        raise ScheduledTaskCancelledError

    @property
    def _link(self) -> Link:
        return lasting(self._target)

    async def _delete(self, schedule_id: str, *, had_time: bool) -> None:
        """Delete the cron or interval of an id, if there is one."""
        link = self._link
        try:
            await link.answer(link.operator.delete_schedule(_known(schedule_id)))
        except Refused as error:
            # Most ids of a `time` have no schedule, and those need no admin's token.
            if not had_time or error.status != _FORBIDDEN:
                raise

    async def _add_time(self, schedule: ScheduledTask, time: datetime) -> None:
        """Add a schedule of a `time`, unless it is there.

        Raises:
            ValueError: One of its id is another one, or was deleted: its group is kept.
        """
        _check(schedule)
        link, task = self._link, self._broker.template(self._message(schedule))
        body = {
            "command": task.command,
            "payload": task.payload,
            "priority": task.priority,
            "maxAttempts": task.max_attempts,
            "runAt": _instant(time).isoformat(),
            "tags": _TAGS,
        }
        group = {"id": _group(schedule.schedule_id), "tasks": [body], "seal": True}
        try:
            stands = await link.answer(link.client.begin_group(group))
        except Refused as error:
            if error.code != _CONFLICT:
                raise
            raise ValueError(
                f"schedule {schedule.schedule_id} has or had another time or message: delete it, "
                "and use another id"
            ) from error
        if stands.status in _CANCELLED:
            raise ValueError(f"schedule {schedule.schedule_id} was deleted: use another id")

    async def _cancel_time(self, schedule_id: str) -> bool:
        """Cancel the `time` of an id if it has not come; return whether there is or was one."""
        link, group = self._link, _group(schedule_id)
        try:
            page = await link.answer(link.client.group_results(group))
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            return False
        for member in page.members:
            task = await link.answer(read(link.client, member.task_id))
            if task is not None and task.state is State.DELAYED:
                await link.answer(link.client.cancel_group(group))
        return True

    def _of_labels(self) -> Iterator[ScheduledTask]:
        """Yield the schedules of labels, each with the same id every time."""
        for name, task in sorted(self._broker.get_all_tasks().items()):
            if task.broker is not self._broker:
                continue
            own = {label: each for label, each in task.labels.items() if label != "schedule"}
            for n, given in enumerate(task.labels.get("schedule", [])):
                if not set(_KINDS) & given.keys():
                    continue
                yield ScheduledTask(
                    task_name=name,
                    labels={**given.get("labels", {}), **own},
                    args=given.get("args", []),
                    kwargs=given.get("kwargs", {}),
                    schedule_id=given.get("schedule_id") or f"{name}:{n}",
                    cron_offset=given.get("cron_offset"),
                    **{kind: given.get(kind) for kind in _KINDS},
                )

    def _schedule(self, schedule: ScheduledTask) -> NewSchedule:
        _check(schedule)
        when: dict[str, Any] = {"cron": schedule.cron, "zone": _zone(schedule.cron_offset)}
        if (interval := schedule.interval) is not None:
            whole = timedelta(seconds=interval) if isinstance(interval, int) else interval
            when = {"every": whole}
        return NewSchedule(
            _known(schedule.schedule_id),
            self._broker.template(self._message(schedule)),
            # A scheduler of taskiq knows nothing of the runs before.
            overlap="allow",
            note=f"taskiq: {schedule.task_name}",
            **when,
        )

    def _message(self, schedule: ScheduledTask) -> Any:
        """Return the message that taskiq's scheduler would send, but for what it draws."""
        kicker: AsyncKicker[Any, Any] = AsyncKicker(
            schedule.task_name, self._broker, dict(schedule.labels)
        )
        kicker.with_task_id(schedule.task_id or DRAWN)
        kicker.with_labels(**{SCHEDULE: schedule.schedule_id})
        made = kicker._prepare_message(*schedule.args, **schedule.kwargs)  # noqa: SLF001
        return self._broker.formatter.dumps(made)

    def _found(self, row: Mapping[str, Any]) -> ScheduledTask:
        payload = msgspec.json.encode(row["task"]["payload"]).decode()
        if cron := row.get("cron"):
            zone = row.get("zone", _UTC)
            return self._scheduled(payload, cron=cron, cron_offset=None if zone == _UTC else zone)
        return self._scheduled(payload, interval=_interval(row["every"]))

    def _scheduled(self, payload: str, **when: Any) -> ScheduledTask:
        message: TaskiqMessage = self._broker.formatter.loads(encoded_of(payload))
        message.parse_labels()
        labels: Mapping[str, Any] = message.labels
        return ScheduledTask(
            task_name=message.task_name,
            labels={name: each for name, each in labels.items() if name != SCHEDULE},
            args=message.args,
            kwargs=message.kwargs,
            task_id=None if message.task_id == DRAWN else message.task_id,
            schedule_id=str(labels[SCHEDULE]),
            **when,
        )


def _check(schedule: ScheduledTask) -> None:
    given = [kind for kind in _KINDS if getattr(schedule, kind) is not None]
    if len(given) > 1:
        name = f"schedule {schedule.schedule_id} of {schedule.task_name}"
        raise ValueError(f"{name} has {' and '.join(given)}: add a schedule for each")


def _zone(offset: str | timedelta | None) -> str | None:
    """Return the time zone of an offset; those of whole hours have names, with signs of POSIX."""
    if not isinstance(offset, timedelta):
        return offset
    hours, rest = divmod(offset, timedelta(hours=1))
    if rest or not -12 <= hours <= 14:
        raise ValueError(f"cron_offset={offset}: must be a time zone, or whole hours, -12 to 14")
    return f"Etc/GMT{-hours:+d}" if hours else None


def _instant(time: datetime) -> datetime:
    """Return a time with its zone, which is UTC if it says none, as for taskiq's scheduler."""
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _known(schedule_id: str) -> str:
    """Return the cluster's id of a schedule: a hash in place of what an id cannot be."""
    return _PREFIX + (schedule_id if _ID.fullmatch(schedule_id) else _hash(schedule_id))


def _group(schedule_id: str) -> str:
    """Return the name of the group of a `time`."""
    return f"{_GROUP}{_hash(schedule_id)}"


def _hash(schedule_id: str) -> str:
    return hashlib.sha256(schedule_id.encode()).hexdigest()


_UNITS: Final = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def _interval(every: str) -> timedelta:
    """Return an interval as the broker writes it, such as `1h30m`."""
    return timedelta(**{_UNITS[unit]: int(n) for n, unit in re.findall(r"(\d+)([dhms])", every)})
