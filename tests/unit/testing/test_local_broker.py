"""Local broker: a week passes in a moment, with everything that would happen in it."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from codeq_cluster.client import Fail, Refused, Retry, State, Task, Unique, Worker
from codeq_cluster.errors import CodeqError, ConfigInvalid
from codeq_cluster.testing.broker import LocalBroker

_WEEK_S = 7 * 86_400
_MINUTELY = {"count": 1, "perSeconds": 60}
_LADDER = [
    timedelta(minutes=1),
    timedelta(minutes=10),
    timedelta(hours=1),
    timedelta(hours=6),
    timedelta(days=1),
    timedelta(days=5),
]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for tests that leave it unchanged; each test has its own commands."""
    settings = {"backoffMaxSeconds": _WEEK_S}
    with LocalBroker(tmp_path_factory.mktemp("broker"), settings=settings) as running:
        yield running


def test_a_start_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A failing test of a user's program shows the log, where a warning would lead astray."""
    with LocalBroker(tmp_path) as alone, alone.sync_client() as client:
        client.create("calm", 1)

    assert [] == [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_ladder_of_retries_over_a_week(broker: LocalBroker) -> None:
    """A worker gets each attempt when it is due; the last one succeeds."""
    attempts: list[tuple[int, timedelta]] = []
    worker = broker.worker()

    @worker.task("ladder")
    async def handler(task: Task[str]) -> str:
        attempts.append((task.attempt, broker.now - task.record.created_at))
        if task.attempt <= len(_LADDER):
            raise Retry("not yet", after=_LADDER[task.attempt - 1])
        return "at last"

    with broker.sync_client() as client, broker.working(worker):
        task = client.create("ladder", "x", max_attempts=10)
        begun = time.monotonic()
        broker.advance(days=7)
        took_s = time.monotonic() - begun
        ended = client.wait(task.id, timeout_s=0)

    assert "at last" == ended.value
    assert [1, 2, 3, 4, 5, 6, 7] == [attempt for attempt, _ in attempts]
    due = timedelta()
    for (_, at), pause in zip(attempts, [timedelta(), *_LADDER], strict=True):
        due += pause
        assert timedelta() <= at - due < timedelta(minutes=1)
    # This takes about 0.2 s on an idle machine.
    assert took_s < 5


def test_a_handler_in_a_thread_is_waited_for_as_well(tmp_path: Path) -> None:
    """The handler may take longer than the broker would wait without known workers."""
    settings = {"backoffMaxSeconds": _WEEK_S}
    with LocalBroker(tmp_path, settings=settings, patience_s=20) as broker:
        _work_in_threads(broker)


def _work_in_threads(broker: LocalBroker) -> None:
    worker = broker.worker(concurrency=3)

    @worker.task("threads")
    def handler(task: Task[int]) -> None:
        hashlib.pbkdf2_hmac("sha256", b"work", b"of a while", 400_000)
        if task.attempt < 4:
            raise Retry(after=timedelta(days=1))

    with broker.sync_client() as client, broker.working(worker):
        tasks = [client.create("threads", n) for n in range(2)]
        broker.advance(days=3, hours=1)
        ended = [client.task(task.id) for task in tasks]

    assert [(State.DONE, 4)] * 2 == [(task.state, task.attempts) for task in ended]


def test_a_delayed_task_is_ready_when_it_is_due_and_not_before(broker: LocalBroker) -> None:
    """Time passes without any worker."""
    with broker.sync_client() as client:
        task = client.create("delayed", 1, delay=timedelta(days=3))
        broker.advance(days=2, hours=23, minutes=59)
        before = client.task(task.id).state
        broker.advance(minutes=1)
        after = client.task(task.id).state

    assert (State.DELAYED, State.READY) == (before, after)


async def test_a_lease_ends_without_a_worker(broker: LocalBroker) -> None:
    """A task whose worker is silent is ready again, and the late result is refused."""
    leases = broker.leases()
    async with broker.client() as client, leases:
        task = await client.create("leased", 1)
        [claimed] = await leases.claim(["leased"], lease_s=300)
        await asyncio.to_thread(broker.advance, minutes=4)
        held = await client.task(task.id)
        await asyncio.to_thread(broker.advance, minutes=2)
        lost = await client.task(task.id)
        with pytest.raises(Refused) as caught:
            await leases.complete(claimed, b"1")

    assert (State.LEASED, State.READY) == (held.state, lost.state)
    assert "LEASE_EXPIRED" == lost.history[0].outcome
    assert "not-in-progress" == caught.value.code


def test_a_task_that_nobody_wants_dies_in_time(broker: LocalBroker) -> None:
    """The dead letter is deleted when its retention is over."""
    with broker.sync_client() as client, broker.sync_operator() as operator:
        task = client.create("unwanted", 1, ttl=timedelta(hours=1))
        broker.advance(hours=2)
        dead = client.task(task.id)
        kept = operator.dead_letters("unwanted").rows
        broker.advance(days=8)
        gone = operator.dead_letters("unwanted").rows
        with pytest.raises(Refused, match="not found"):
            client.task(task.id)

    assert (State.DEAD, "MESSAGE_EXPIRED") == (dead.state, dead.error)
    assert ([task.id], []) == ([row["id"] for row in kept], gone)


async def test_a_callback_that_is_refused_is_repeated(broker: LocalBroker) -> None:
    """The pauses between attempts pass like any other time."""
    heard: list[dict[str, Any]] = []

    async def receive(request: web.Request) -> web.Response:
        heard.append(await request.json())
        return web.Response(status=500 if len(heard) < 3 else 200)

    app = web.Application()
    app.router.add_post("/", receive)
    worker = broker.worker()

    @worker.task("called-back")
    async def handler(_: Task[int]) -> None:
        raise Fail("no")

    async with TestServer(app) as server, broker.client() as client:
        await client.create("called-back", 1, webhook=str(server.make_url("/")))
        await worker.serve(tasks_max=1)
        await asyncio.to_thread(broker.advance, minutes=10)

    assert ["FAILED"] * 3 == [each["status"] for each in heard]


def test_a_handler_that_takes_its_time_does_not_stop_the_clock(broker: LocalBroker) -> None:
    """The handler survives the jump; its lease ends, and the task waits for another worker."""
    # A worker looks after a lease that long only in minutes of the machine's clock.
    worker = broker.worker(lease_s=3600, grace_s=0)
    seen: list[int] = []

    @worker.task("slow")
    async def handler(task: Task[int]) -> None:
        seen.append(task.attempt)
        if task.attempt == 1:
            await asyncio.Event().wait()

    with broker.sync_client() as client, broker.working(worker):
        task = client.create("slow", 1)
        broker.settle()
        broker.advance(hours=2)
        lost = client.task(task.id)

    assert (State.READY, "LEASE_EXPIRED") == (lost.state, lost.history[0].outcome)
    assert [1] == seen


async def test_time_is_not_moved_where_workers_could_not_run(broker: LocalBroker) -> None:
    """Otherwise a coroutine could wait for ever for a worker on its own loop."""
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        broker.advance(days=1)
    with pytest.raises(RuntimeError, match=r"asyncio\.to_thread"):
        broker.settle()


@pytest.mark.parametrize("seconds", [0, -1])
def test_time_does_not_stand_still_or_run_backwards(broker: LocalBroker, seconds: float) -> None:
    """A broker cannot handle either."""
    with pytest.raises(ValueError, match="more than nothing"):
        broker.advance(seconds=seconds)


def test_a_worker_that_cannot_go_on_fails_its_test(broker: LocalBroker) -> None:
    """The worker's error is raised from the block in which it runs."""
    worker = Worker([broker.url], token="nobody's")
    worker.task("refused")(lambda task: task)
    with pytest.raises(Refused, match="invalid token"), broker.working(worker):
        broker.settle()


def test_a_broker_is_there_again_on_its_files(tmp_path: Path) -> None:
    """Acknowledged tasks are kept, as on any node."""
    with LocalBroker(tmp_path) as broker, broker.sync_client() as client:
        task = client.create("kept", {"n": 1})
    with LocalBroker(tmp_path) as broker, broker.sync_client() as client:
        assert task == client.task(task.id)


def test_a_wrong_setting_is_an_error_at_once(tmp_path: Path) -> None:
    """The error is the one that a starting node gives."""
    with pytest.raises(ConfigInvalid, match="backoffMaxSecond"):
        LocalBroker(tmp_path, settings={"backoffMaxSecond": 1})


def test_a_broker_that_cannot_start_says_why(tmp_path: Path) -> None:
    """The error is raised on entering the block, in the test's own thread."""
    (tmp_path / "data").write_text("no directory")
    with pytest.raises((OSError, CodeqError)), LocalBroker(tmp_path):
        raise AssertionError


def test_a_month_of_schedules_in_another_zone_passes_in_a_moment(tmp_path: Path) -> None:
    """The night in which the clocks of Berlin change has its run too, an hour earlier in UTC."""
    march = datetime(2026, 3, 20, tzinfo=UTC)
    runs: list[str] = []
    with LocalBroker(tmp_path, now=march) as broker, broker.sync_operator() as operator:
        worker = broker.worker()

        @worker.task("report")
        def report(task: Task[object]) -> None:
            runs.append(task.record.scheduled_for)

        task = {"command": "report", "payload": {}}
        plan = {"cron": "30 5 * * *", "zone": "Europe/Berlin", "task": task}
        operator.put_schedule({"id": "nightly", **plan})
        operator.put_schedule({"id": "off", **plan})
        operator.pause_schedule("off")
        coming = broker.upcoming()
        with broker.working(worker):
            fired = broker.advance(days=14)
        began = broker.now

    assert [("schedule", "nightly")] == [(each.kind, each.id) for each in coming]
    assert datetime(2026, 3, 20, 4, 30, tzinfo=UTC) == coming[0].at == fired[0].at
    assert {"nightly"} == {each.schedule for each in fired}
    assert [4] * 9 + [3] * 5 == [each.at.hour for each in fired]
    assert [each.at for each in fired] == [datetime.fromisoformat(each) for each in runs]
    assert timedelta(days=14) <= began - march < timedelta(days=14, minutes=1)


def test_each_instant_of_a_schedule_with_jitter_fires_when_it_is_due(tmp_path: Path) -> None:
    """The clock stops there, although the next instant comes a day later."""
    began = datetime(2027, 3, 1, tzinfo=UTC)
    task = {"command": "report", "payload": {}}
    plan = {"cron": "30 2 * * *", "overlap": "allow", "jitterSeconds": 3600, "task": task}
    with LocalBroker(tmp_path, now=began) as broker:
        with broker.sync_operator() as operator:
            operator.put_schedule({"id": "nightly", **plan})
        fired = broker.advance(days=3)

    instants = [began + timedelta(days=day, hours=2, minutes=30) for day in range(3)]
    after = [each.at - instant for each, instant in zip(fired, instants, strict=True)]
    assert all(timedelta() <= each < timedelta(hours=1) for each in after)


@pytest.mark.parametrize(
    "flow",
    [{"perKey": {"maxRunning": 1, "rate": _MINUTELY}}, {"rate": _MINUTELY}, {"limit": "api"}],
    ids=["key", "queue", "limit"],
)
def test_tasks_that_a_rate_holds_go_one_after_the_other(
    tmp_path: Path, flow: dict[str, object]
) -> None:
    """Ten tasks, one a minute, by the rate of their key, of their queue or of a shared limit."""
    at: list[datetime] = []
    with LocalBroker(tmp_path) as broker, broker.sync_operator() as operator:
        worker = broker.worker()

        @worker.task("call")
        def call(task: Task[int]) -> None:
            at.append(broker.now)

        operator.put_limit("api", {"rate": _MINUTELY})
        operator.put_topic("call", {"flow": flow})
        broker.settle()
        with broker.sync_client() as client, broker.working(worker):
            tasks = [client.create("call", n, key="api") for n in range(10)]
            broker.advance(hours=1, until=tasks[-1].id)
            left = broker.now - at[-1]

    gaps = [later - one for one, later in pairwise(at)]
    assert 10 == len(at)
    assert all(timedelta(seconds=59) <= gap <= timedelta(seconds=70) for gap in gaps), gaps
    assert left < timedelta(minutes=1)


def test_the_queues_of_a_limit_that_a_worker_holds_go_on_together(tmp_path: Path) -> None:
    """Time stops at the end of the hold, for each of them."""
    at: list[datetime] = []
    with LocalBroker(tmp_path) as broker, broker.sync_operator() as operator:
        worker = broker.worker()

        @worker.task("call")
        def call(task: Task[int]) -> None:
            at.append(broker.now)
            if len(at) == 1:
                raise Retry("slow down", after=timedelta(minutes=10), hold="limit")

        operator.put_limit("api", {"maxRunning": 5})
        for queue in ("call", "fetch"):
            operator.put_topic(queue, {"flow": {"limit": "api"}})
        broker.settle()
        with broker.sync_client() as client, broker.working(worker):
            client.create("call", 1)
            coming = broker.upcoming()
            broker.advance(hours=1)

    assert [("queue", "call"), ("queue", "fetch")] == [(each.kind, each.id) for each in coming]
    assert timedelta(minutes=10) <= at[1] - at[0] < timedelta(minutes=11)


def test_the_last_of_a_throttle_comes_when_it_is_over(tmp_path: Path) -> None:
    """With keepLast it waits for that alone, an hour before the clock gets where it is to go."""
    at: list[datetime] = []
    with LocalBroker(tmp_path) as broker, broker.sync_client() as client:
        worker = broker.worker()

        @worker.task("write")
        def write(task: Task[int]) -> None:
            at.append(broker.now)

        once = Unique("document", on="keepLast", throttle=60)
        with broker.working(worker):
            client.create("write", 1, unique=once)
            broker.settle()
            last = client.create("write", 2, unique=once)
            coming = broker.upcoming()
            broker.advance(hours=1)

    assert [("ready", last.id)] == [(each.kind, each.id) for each in coming]
    assert timedelta(seconds=59) <= at[1] - at[0] < timedelta(minutes=2)


def test_a_task_that_does_not_end_is_an_error(broker: LocalBroker) -> None:
    """Nobody works on it, so its end never comes."""
    with broker.sync_client() as client:
        task = client.create("unheard", 1)

        with pytest.raises(RuntimeError, match=f"task {task.id} has not ended by .*: advance fur"):
            broker.advance(minutes=1, until=task.id)


def test_too_many_stops_are_an_error_that_names_the_schedule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A year of a schedule of each minute would take an hour."""
    monkeypatch.setattr("codeq_cluster.virtual_time.clock_stepper.STOPS_MAX", 20)
    with LocalBroker(tmp_path) as broker, broker.sync_operator() as operator:
        task = {"command": "tick", "payload": {}}
        operator.put_schedule({"id": "often", "every": "1m", "task": task})

        with pytest.raises(RuntimeError, match="more than 20 stops, 21 of them for often: pause"):
            broker.advance(days=1)


def test_an_instant_without_a_time_zone_is_refused(tmp_path: Path) -> None:
    """It could be any of two dozen."""
    with pytest.raises(ValueError, match="needs a time zone"):
        LocalBroker(tmp_path, now=datetime(2026, 1, 1))  # noqa: DTZ001


def test_a_broker_goes_on_at_the_time_of_the_earlier_one(tmp_path: Path) -> None:
    """Its data has tasks of that time: a clock that shows less would hold their leases for long."""
    with LocalBroker(tmp_path) as broker:
        broker.advance(days=30)
        left = broker.now
    with LocalBroker(tmp_path, now=datetime(2026, 1, 1, tzinfo=UTC)) as broker:
        found = broker.now

    assert left <= found < left + timedelta(days=1)
