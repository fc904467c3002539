"""Schedules of taskiq: the broker fires them, and no scheduler of taskiq does."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from taskiq import ScheduledTask, TaskiqScheduler
from taskiq.cli.scheduler.run import SchedulerLoop
from taskiq.scheduler.scheduled_task import CronSpec

from codeq_cluster.client import Refused, State, TaskRecord
from codeq_cluster.integrations.taskiq import CodeqBroker, CodeqScheduleSource
from codeq_cluster.testing.broker import LocalBroker


def tasks_of(broker: LocalBroker, queue: str) -> list[TaskRecord]:
    """Return a queue's tasks, the oldest first."""
    with broker.sync_operator() as operator, broker.sync_client() as client:
        found = [client.task(row["id"]) for row in operator.tasks(command=queue).rows]
    return sorted(found, key=lambda task: task.created_at)


def scheduled(**when: Any) -> ScheduledTask:
    return ScheduledTask(task_name="any:task", labels={}, args=[1], kwargs={"b": 2}, **when)


async def delivered(queues: CodeqBroker, count: int) -> list[Any]:
    """Return messages as a worker gets them."""
    listening = queues.listen()
    found = [queues.formatter.loads((await anext(listening)).data) for _ in range(count)]
    await listening.aclose()
    await queues.shutdown()
    return found


async def test_the_cluster_fires_and_each_run_has_an_id_of_its_own(
    broker: LocalBroker, url: str
) -> None:
    """A cron with seconds and an interval, by the broker's clock, with no scheduler there."""
    queues = CodeqBroker(url, queue_name="ts-fires")
    source = CodeqScheduleSource(queues)
    task = queues.register_task(lambda a, b: None, task_name="fires")
    by_cron = await task.kicker().schedule_by_cron(source, "*/20 * * * * *", 1, b=2)
    by_interval = await task.kicker().schedule_by_interval(source, timedelta(seconds=30), 3, b=4)
    await asyncio.to_thread(broker.advance, minutes=1)
    await by_cron.unschedule()
    await by_interval.unschedule()
    await asyncio.to_thread(broker.advance, minutes=1)

    found = await delivered(queues, 5)
    runs = [(each.args, each.kwargs, each.labels["schedule_id"]) for each in found]
    assert 3 == runs.count(([1], {"b": 2}, by_cron.schedule_id))
    assert 2 == runs.count(([3], {"b": 4}, by_interval.schedule_id))
    tasks = tasks_of(broker, "ts-fires")
    assert {task.id for task in tasks} == {each.task_id for each in found}
    assert 5 == len(tasks)


async def test_two_schedulers_of_taskiq_send_nothing(
    broker: LocalBroker, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them finds the interval due at its start, as taskiq's scheduler does."""
    caplog.set_level("INFO")
    queues = CodeqBroker(url, queue_name="ts-twice")
    source = CodeqScheduleSource(queues)
    await source.add_schedule(scheduled(interval=86_400, schedule_id="twice"))
    loops = [SchedulerLoop(TaskiqScheduler(queues, [source])) for _ in range(2)]
    running = [asyncio.create_task(each.run()) for each in loops]
    async with asyncio.timeout(30):
        while caplog.text.count("Scheduled task any:task has been cancelled") < 2:
            await asyncio.to_thread(tasks_of, broker, "ts-twice")
    for each in running:
        each.cancel()
    await asyncio.wait(running)
    await source.delete_schedule("twice")

    assert [] == tasks_of(broker, "ts-twice")


async def test_a_time_is_a_task_that_waits_at_the_cluster(broker: LocalBroker, url: str) -> None:
    """It is sent once, and not if it is deleted before."""
    queues = CodeqBroker(url, queue_name="ts-time")
    source = CodeqScheduleSource(queues)
    task = queues.register_task(lambda: None, task_name="at")
    at = broker.now + timedelta(hours=1)
    kept = await task.kicker().with_task_id("mine").schedule_by_time(source, at)
    gone = await task.kicker().schedule_by_time(source, at)
    before = await source.get_schedules()
    await gone.unschedule()
    after = await source.get_schedules()
    waiting = tasks_of(broker, "ts-time")
    await asyncio.to_thread(broker.advance, hours=2)
    await kept.unschedule()

    assert {kept.schedule_id, gone.schedule_id} <= {each.schedule_id for each in before}
    assert [at] == [each.time for each in after if each.schedule_id == kept.schedule_id]
    assert gone.schedule_id not in {each.schedule_id for each in after}
    assert {State.DELAYED, State.FAILED} == {each.state for each in waiting}
    assert ["mine"] == [each.task_id for each in await delivered(queues, 1)]


async def test_a_time_that_was_deleted_is_not_silently_ignored(
    broker: LocalBroker, url: str
) -> None:
    """Its id cannot be added again, also with the same time; a label of it stays deleted."""
    queues = CodeqBroker(url, queue_name="ts-deleted")
    source = CodeqScheduleSource(queues, owner="ts-deleted")
    at = broker.now + timedelta(hours=1)
    label = {"time": at, "schedule_id": "deleted"}
    queues.register_task(lambda: None, task_name="at", schedule=[label])
    for _ in range(2):
        await source.startup()
        await source.delete_schedule("deleted")
    with pytest.raises(ValueError, match="schedule deleted was deleted: use another id"):
        await source.add_schedule(
            ScheduledTask(task_name="at", labels={}, args=[], kwargs={}, **label)
        )

    assert [State.FAILED] == [task.state for task in tasks_of(broker, "ts-deleted")]


async def test_an_id_that_becomes_a_cron_has_no_time_and_is_deleted_whole(
    broker: LocalBroker, url: str
) -> None:
    """The group of the time is kept for seven days, and hides the schedule from nobody."""
    source = CodeqScheduleSource(CodeqBroker(url, queue_name="ts-becomes"))
    at = broker.now + timedelta(hours=1)

    async def known() -> list[tuple[str | None, datetime | None]]:
        found = await source.get_schedules()
        return [(each.cron, each.time) for each in found if each.schedule_id == "becomes"]

    await source.add_schedule(scheduled(time=at, schedule_id="becomes"))
    with pytest.raises(Refused, match="cron"):
        await source.add_schedule(scheduled(cron="every day", schedule_id="becomes"))
    first = await known()
    await source.add_schedule(scheduled(cron="0 3 * * *", schedule_id="becomes"))
    second = await known()
    await source.delete_schedule("becomes")

    assert ([(None, at)], [("0 3 * * *", None)]) == (first, second)
    assert [] == await known()


async def test_an_id_that_becomes_a_time_is_no_cron_any_more(broker: LocalBroker, url: str) -> None:
    """Also an interval; a time of an id that has another one is refused, and that one stays."""
    source = CodeqScheduleSource(CodeqBroker(url, queue_name="ts-moves"))
    at = broker.now + timedelta(hours=1)
    for n, when in enumerate([{"cron": "0 3 * * *"}, {"interval": 60}]):
        await source.add_schedule(scheduled(schedule_id=f"moves-{n}", **when))
        await source.add_schedule(scheduled(schedule_id=f"moves-{n}", time=at))
    moved = scheduled(schedule_id="moves-0", time=at + timedelta(hours=1))
    other = scheduled(schedule_id="moves-0", time=at).model_copy(update={"args": [2]})
    for each in moved, other:
        with pytest.raises(ValueError, match=r"another time or message: .* use another id"):
            await source.add_schedule(each)
    found = [each for each in await source.get_schedules() if each.schedule_id[:5] == "moves"]
    for each in found:
        await source.delete_schedule(each.schedule_id)

    assert {("moves-0", None, None, at), ("moves-1", None, None, at)} == {
        (each.schedule_id, each.cron, each.interval, each.time) for each in found
    }
    assert 2 == len(found)


async def test_a_release_that_changes_a_label_with_a_time_starts(
    broker: LocalBroker, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its time stays as it was, with a warning; one that becomes a cron is sent no more."""
    at = broker.now + timedelta(hours=1)

    def release(schedule: dict[str, Any], **labels: Any) -> CodeqBroker:
        queues = CodeqBroker(url, queue_name="ts-releases")
        queues.is_worker_process = True
        CodeqScheduleSource(queues, owner="ts-releases")
        queues.register_task(lambda: None, task_name="once", schedule=[schedule], **labels)
        return queues

    for schedule, labels in (
        ({"time": at}, {}),
        ({"time": at}, {"retry_on_error": True}),
        ({"time": at + timedelta(hours=1)}, {}),
    ):
        await release(schedule, **labels).startup()
    waited = tasks_of(broker, "ts-releases")
    await release({"cron": "0 4 * * *"}).startup()
    ended = tasks_of(broker, "ts-releases")
    with broker.sync_operator() as operator:
        operator.apply_schedules("ts-releases", [])

    assert [(State.DELAYED, at)] == [(task.state, task.run_at) for task in waited]
    assert [State.FAILED] == [task.state for task in ended]
    assert 2 == caplog.text.count("a time of a label is left alone: schedule once:0 has or had")


async def test_schedules_are_listed_as_they_were_added(url: str) -> None:
    """Also those that another process has added; an id is changed by adding it again."""
    source = CodeqScheduleSource(CodeqBroker(url, queue_name="ts-listed"))
    added = [
        scheduled(cron="0 3 * * *", cron_offset="Europe/Berlin", schedule_id="listed-1"),
        scheduled(interval=timedelta(hours=1, minutes=30), schedule_id="listed-2", task_id="x"),
    ]
    for each in (scheduled(cron="0 0 1 1 *", schedule_id="listed-1"), *added):
        await source.add_schedule(each)
    other = CodeqScheduleSource(CodeqBroker(url))
    found = [each for each in await other.get_schedules() if each.schedule_id[:6] == "listed"]
    for each in added:
        await other.delete_schedule(each.schedule_id)

    assert added == sorted(found, key=lambda each: each.schedule_id)
    assert [] == [e for e in await other.get_schedules() if e.schedule_id[:6] == "listed"]


async def test_an_offset_of_whole_hours_is_a_time_zone(broker: LocalBroker, url: str) -> None:
    """As for taskiq's scheduler, noon two hours east of UTC is ten o'clock."""
    queues = CodeqBroker(url, queue_name="ts-offset")
    source = CodeqScheduleSource(queues)
    cron = CronSpec(minutes=0, hours=12, offset=timedelta(hours=2))
    task = queues.register_task(lambda: None, task_name="noon")
    made = await task.kicker().with_schedule_id("noon").schedule_by_cron(source, cron)
    with broker.sync_operator() as operator:
        instants = operator.schedule("taskiq:noon").next
    await made.unschedule()

    assert {10} == {each.at.hour for each in instants}


async def test_what_is_no_schedule_here_is_refused(url: str) -> None:
    """With a text that says what to do."""
    source = CodeqScheduleSource(CodeqBroker(url, queue_name="ts-refused"))
    with pytest.raises(ValueError, match="has cron and interval: add a schedule for each"):
        await source.add_schedule(scheduled(cron="* * * * *", interval=5))
    with pytest.raises(ValueError, match="must be a time zone, or whole hours, -12 to 14"):
        await source.add_schedule(scheduled(cron="* * * * *", cron_offset=timedelta(minutes=30)))
    with pytest.raises(Refused, match="cron"):
        await source.add_schedule(scheduled(cron="every day"))


async def test_schedules_of_labels_are_the_clusters_once_a_worker_has_started(
    broker: LocalBroker, url: str
) -> None:
    """A second worker changes nothing, a newer one what its labels say, an older one nothing."""
    soon = broker.now + timedelta(hours=1)

    def release(revision: int, schedules: list[dict[str, Any]]) -> CodeqBroker:
        queues = CodeqBroker(url, queue_name="ts-labels")
        queues.is_worker_process = True
        CodeqScheduleSource(queues, owner="ts-labels", revision=revision)
        queues.register_task(lambda n: None, task_name="app:tick", schedule=schedules, priority=3)
        return queues

    def known() -> dict[str, Any]:
        with broker.sync_operator() as operator:
            rows = operator.schedules(owner="ts-labels").rows
        return {row["id"]: row.get("cron") or row["every"] for row in rows}

    old = [{"cron": "0 3 * * *", "args": [1]}, {"interval": 60}, {"time": soon}, {"note": "none"}]
    for _ in range(2):
        await release(1, old).startup()
    first = known()
    await release(2, [{"cron": "0 4 * * *", "args": [1], "schedule_id": "nightly"}]).startup()
    second = known()
    await release(1, old).startup()
    third = known()
    await asyncio.to_thread(broker.advance, days=1)
    await release(3, []).startup()

    assert ["0 3 * * *", "60s"] == sorted(first.values())
    assert {"taskiq:nightly": "0 4 * * *"} == second == third
    assert {} == known()
    tasks = tasks_of(broker, "ts-labels")
    assert 2 == len(tasks)
    assert {"", "taskiq:nightly"} == {task.schedule_id for task in tasks}
    assert {3} == {task.priority for task in tasks}
    assert "schedule" not in json.loads(tasks[0].payload)["labels"]


async def test_a_label_whose_time_is_over_sends_nothing(broker: LocalBroker, url: str) -> None:
    """Otherwise each start of a worker would send it again."""
    queues = CodeqBroker(url, queue_name="ts-over")
    source = CodeqScheduleSource(queues, owner="ts-over")
    over = datetime.now(UTC) - timedelta(days=1)
    queues.register_task(lambda: None, task_name="over", schedule=[{"time": over}])
    await source.startup()

    assert [] == tasks_of(broker, "ts-over")


async def test_the_pages_schedules_are_the_clusters(
    broker: LocalBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its two blocks as they stand, once a worker has started."""
    monkeypatch.setenv("BROKER_URL", url)
    page = (Path(__file__).parents[3] / "docs/taskiq.md").read_text()
    application: Any = ModuleType("app")
    monkeypatch.setitem(sys.modules, "app", application)
    for block in re.findall(r"(?ms)^```python\n(.*?)^```$", page):
        exec(block, application.__dict__)
    application.broker.is_worker_process = True
    await application.broker.startup()
    with broker.sync_operator() as operator:
        rows = operator.schedules(owner="taskiq").rows
        operator.apply_schedules("taskiq", [])

    found = [(row.get("cron", ""), row.get("zone", ""), row.get("every", "")) for row in rows]
    assert [("30 2 * * *", "Europe/Berlin", ""), ("", "UTC", "10s")] == found
