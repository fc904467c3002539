"""Taskiq: its own receiver and middleware in this process, against a real broker."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest
from taskiq import (
    AckableMessage,
    BrokerMessage,
    Context,
    SendTaskError,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqMessage,
    TaskiqMiddleware,
)
from taskiq.depends.progress_tracker import ProgressTracker
from taskiq.exceptions import ResultGetError
from taskiq.receiver import Receiver
from taskiq.serializers import PickleSerializer

from codeq_cluster.client import Refused, State, TaskRecord, Unreachable
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.integrations.taskiq import CodeqBroker, CodeqResultBackend
from codeq_cluster.integrations.taskiq.deliveries import NotAcknowledged
from codeq_cluster.integrations.taskiq.messages import DELIVERY
from codeq_cluster.testing.broker import LocalBroker
from tests.unit.integrations.nested import nested

WITHIN_S: Final = 30.0
GIVEN: Final[Any] = TaskiqDepends()


@asynccontextmanager
async def working(broker: CodeqBroker, *, at_once: int = 8, **options: Any) -> AsyncIterator[None]:
    """Run taskiq's receiver within the block; its end is that of a worker that is told to stop."""
    broker.is_worker_process = True
    stop = asyncio.Event()
    with ThreadPoolExecutor(2) as threads:
        receiver = Receiver(broker, executor=threads, max_async_tasks=at_once, **options)
        async with asyncio.timeout(WITHIN_S), asyncio.TaskGroup() as group:
            group.create_task(receiver.listen(stop))
            try:
                yield
            finally:
                stop.set()
        await broker.shutdown()


async def until(found: Callable[[], bool]) -> None:
    """Wait for a condition, which is asked in another thread."""
    async with asyncio.timeout(WITHIN_S):
        while not await asyncio.to_thread(found):
            pass


def tasks_of(broker: LocalBroker, queue: str) -> list[TaskRecord]:
    """Return a queue's tasks, the oldest first."""
    with broker.sync_operator() as operator, broker.sync_client() as client:
        found = [client.task(row["id"]) for row in operator.tasks(command=queue).rows]
    return sorted(found, key=lambda task: task.created_at)


def ended(broker: LocalBroker, queue: str, count: int) -> Callable[[], bool]:
    """Return the condition that so many tasks of a queue have ended."""
    over = {State.DONE, State.FAILED, State.DEAD}
    return lambda: sum(task.state in over for task in tasks_of(broker, queue)) >= count


async def test_messages_run_once_and_are_completed_tasks(broker: LocalBroker, url: str) -> None:
    """A hundred of them, with arguments that are readable in the payload."""
    queues = CodeqBroker(url, queue_name="t-many", prefetch=10)
    seen: dict[str, int] = {}

    @queues.task
    async def put(name: str, value: int) -> None:
        seen[name] = value

    for n in range(100):
        await put.kiq(f"name-{n}", value=n)
    async with working(queues):
        await until(lambda: len(seen) == 100)

    assert {f"name-{n}": n for n in range(100)} == seen
    tasks = tasks_of(broker, "t-many")
    assert {(State.DONE, 1): 100} == Counter((task.state, task.attempts) for task in tasks)
    assert {"value": 99} in [json.loads(task.payload)["kwargs"] for task in tasks]


async def test_a_failed_message_is_retried_and_its_retry_is_one_with_its_end(
    broker: LocalBroker, url: str
) -> None:
    """The retry is a follow-up of the first task: neither can exist without the other."""
    queues = CodeqBroker(url, queue_name="t-retried").with_middlewares(SimpleRetryMiddleware())
    tries: list[int] = []

    @queues.task(retry_on_error=True)
    def fails_once() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise RuntimeError("the first time")

    async with working(queues):
        await fails_once.kiq()
        await until(ended(broker, "t-retried", 2))

    first, second = tasks_of(broker, "t-retried")
    assert 2 == len(tries)
    assert [State.DONE, State.DONE] == [first.state, second.state]
    assert first.id == second.parent_id
    assert "1" == json.loads(second.payload)["labels"]["_retries"]


async def test_a_smart_retry_waits_at_the_cluster_and_its_first_try_does_not(
    broker: LocalBroker, url: str
) -> None:
    """The label `delay` is then the middleware's own, each try of which reads it."""
    queues = CodeqBroker(url, queue_name="t-smart").with_middlewares(SmartRetryMiddleware())
    tries: list[int] = []

    @queues.task(retry_on_error=True, delay=3600)
    async def fails() -> None:
        tries.append(1)
        raise RuntimeError("again")

    async with working(queues):
        await fails.kiq()
        await until(ended(broker, "t-smart", 1))

    first, second = tasks_of(broker, "t-smart")
    assert [1] == tries
    assert State.DELAYED is second.state
    assert first.id == second.parent_id
    assert second.ready_at is not None
    assert 3590 < (second.ready_at - second.created_at).total_seconds() < 3610


async def test_a_requeue_is_one_with_its_end_and_does_not_wait_again(
    broker: LocalBroker, url: str
) -> None:
    """The delay of the first kick is over then; the message keeps its id and no result is kept."""
    queues = CodeqBroker(url, queue_name="t-requeued")
    runs: list[dict[str, Any]] = []

    @queues.task
    async def twice(context: Context = GIVEN) -> None:
        runs.append(dict(context.message.labels))
        if len(runs) == 1:
            await context.requeue()

    async with working(queues):
        await twice.kicker().with_labels(delay=1).kiq()
        await until(ended(broker, "t-requeued", 2))

    first, second = tasks_of(broker, "t-requeued")
    assert [first.id, State.DONE] == [second.parent_id, second.state]
    assert first.created_at < second.created_at
    assert not any("delay" in labels for labels in runs)
    assert runs[0][DELIVERY] != runs[1][DELIVERY]


async def test_what_a_function_sends_is_there_at_once(broker: LocalBroker, url: str) -> None:
    """It can wait for the result, which it could not if its own end made the message."""
    queues = CodeqBroker(url, queue_name="t-inner").with_result_backend(CodeqResultBackend(url))

    @queues.task
    async def inner() -> int:
        return 7

    @queues.task
    async def outer() -> Any:
        sent = await inner.kiq()
        return (await sent.wait_result(check_interval=0.01)).return_value

    async with working(queues):
        sent = await outer.kiq()
        found = await sent.wait_result(check_interval=0.01)

    assert 7 == found.return_value
    assert ["", ""] == [task.parent_id for task in tasks_of(broker, "t-inner")]


async def test_a_message_out_of_retries_has_failed_with_its_exception(
    broker: LocalBroker, url: str
) -> None:
    """An operator sees it among the failed ones, and not as one that went well."""
    queues = CodeqBroker(url, queue_name="t-failed").with_middlewares(SimpleRetryMiddleware())

    @queues.task(retry_on_error=True, max_retries=2)
    async def fails() -> None:
        raise LookupError("no such user")

    async with working(queues):
        await fails.kiq()
        await until(ended(broker, "t-failed", 2))

    first, second = tasks_of(broker, "t-failed")
    assert (State.DONE, "") == (first.state, first.error)
    assert (State.FAILED, "LookupError('no such user')") == (second.state, second.error)


async def test_unknown_messages_come_again_and_unreadable_ones_fail(
    broker: LocalBroker, url: str
) -> None:
    """What this worker cannot run is not lost, as it would be if taskiq's word were taken."""
    queues = CodeqBroker(url, queue_name="t-strange")
    of_labels = {"task_id": "a", "task_name": "any", "args": [], "kwargs": {}}
    no_number = of_labels | {"labels": {"n": "many"}, "labels_types": {"n": 2}}
    unreadable = [{"not": "taskiq"}, no_number]
    with broker.sync_client() as client:
        strange = [client.create("t-strange", each, priority=9).id for each in unreadable]
    other = CodeqBroker(url, queue_name="t-strange")
    await other.register_task(lambda: None, task_name="newer:task").kiq()

    def given_back() -> bool:
        return any(
            task.history and task.id not in strange for task in tasks_of(broker, "t-strange")
        )

    async with working(queues):
        await until(lambda: given_back() and ended(broker, "t-strange", 2)())

    *failed, unknown = tasks_of(broker, "t-strange")
    assert [State.FAILED] * 2 == [task.state for task in failed]
    assert ["UNREADABLE: "] * 2 == [task.error[:12] for task in failed]
    assert State.DELAYED is unknown.state
    why = "no task is named 'newer:task' here; import its module"
    assert [("NACKED", why)] == [(each.outcome, each.error) for each in unknown.history]


@pytest.mark.parametrize("ack_type", ["when_received", "when_executed", "when_saved"])
async def test_a_message_ends_when_its_ack_type_says(
    broker: LocalBroker, url: str, ack_type: str
) -> None:
    """Before its function, after it, or after its result, of which a middleware asks here."""
    queue = f"t-{ack_type}"
    queues = CodeqBroker(url, queue_name=queue)
    seen: dict[str, State] = {}

    class Looks(TaskiqMiddleware):
        def post_execute(self, message: Any, result: Any) -> None:
            seen["executed"] = tasks_of(broker, queue)[0].state

    @queues.task(ack_type=ack_type)
    def looks() -> None:
        seen["running"] = tasks_of(broker, queue)[0].state

    async with working(queues.with_middlewares(Looks())):
        await looks.kiq()
        await until(ended(broker, queue, 1))
        await until(lambda: len(seen) == 2)

    done = ["when_received", "when_executed", "when_saved"].index(ack_type)
    states = {"running": State.DONE if done == 0 else State.LEASED}
    states["executed"] = State.DONE if done <= 1 else State.LEASED
    assert states == seen


async def test_a_message_whose_worker_leaves_it_comes_again(broker: LocalBroker, url: str) -> None:
    """By a function that forgets its own acknowledgement, or a middleware that raises."""
    queues = CodeqBroker(url, queue_name="t-left")
    with broker.sync_operator() as operator:
        operator.put_topic("t-left", {"backoffPolicy": "fixed", "backoffBaseSeconds": 1})
    runs: Counter[str] = Counter()

    class Raises(TaskiqMiddleware):
        def post_execute(self, message: TaskiqMessage, result: Any) -> None:
            if message.task_name == "raises" and runs["raises"] == 1:
                raise OSError("no metrics")

    @queues.task("forgets", ack_type="manual")
    async def forgets(context: Context = GIVEN) -> None:
        runs["forgets"] += 1
        if runs["forgets"] == 2:
            await context.ack()

    @queues.task("raises")
    async def raises() -> None:
        runs["raises"] += 1

    async with working(queues.with_middlewares(Raises())):
        await forgets.kiq()
        await raises.kiq()
        await until(ended(broker, "t-left", 2))

    assert {"forgets": 2, "raises": 2} == runs
    errors = [task.history[0].error for task in tasks_of(broker, "t-left")]
    left = "its worker has ended it without an acknowledgement"
    assert {left, f"{left}: OSError('no metrics')"} == set(errors)


async def test_labels_choose_the_queue_the_order_and_the_start(
    broker: LocalBroker, url: str
) -> None:
    """A greater priority goes first; a delayed message is with no worker."""
    queues = CodeqBroker(url, queue_name="t-labels", listen_to=["t-labels", "t-other"])
    task = queues.register_task(lambda: None, task_name="labelled")
    for labels in {"priority": 1}, {"priority": 9}, {"x_delay": 60}, {"queue_name": "t-other"}:
        await task.kicker().with_labels(**labels).kiq()
    listening = queues.listen()
    got = [queues.formatter.loads((await anext(listening)).data) for _ in range(3)]
    await listening.aclose()
    await queues.shutdown()

    mine = [each.labels["priority"] for each in got if "priority" in each.labels]
    assert ["9", "1"] == mine
    assert [State.READY] == [each.state for each in tasks_of(broker, "t-other")]
    states = Counter(each.state for each in tasks_of(broker, "t-labels"))
    assert {State.READY: 2, State.DELAYED: 1} == states
    for labels, error in (
        ({"priority": 10}, "priority='10': must be 0 to 9"),
        ({"delay": -1}, "must be 0 to 366 days"),
        ({"x_delay": "soon"}, "delay='soon': must be"),
    ):
        with pytest.raises(SendTaskError) as raised:
            await task.kicker().with_labels(**labels).kiq()
        assert error in str(raised.value.__cause__)


async def test_a_function_that_blocks_its_loop_keeps_its_lease(
    broker: LocalBroker, url: str
) -> None:
    """Leases are renewed by another thread, for as long as the process lives."""
    queues = CodeqBroker(url, queue_name="t-long", lease_seconds=5)

    @queues.task
    async def blocks() -> None:
        (before,) = tasks_of(broker, "t-long")
        until_s = time.monotonic() + WITHIN_S
        while tasks_of(broker, "t-long")[0].lease_until == before.lease_until:
            assert time.monotonic() < until_s

    async with working(queues):
        await blocks.kiq()
        await until(ended(broker, "t-long", 1))

    assert [(State.DONE, 1)] == [(task.state, task.attempts) for task in tasks_of(broker, "t-long")]


async def test_a_worker_that_stops_returns_what_it_did_not_begin(
    broker: LocalBroker, url: str
) -> None:
    """Not after a lease, and what runs is finished."""
    queues = CodeqBroker(url, queue_name="t-stopped", prefetch=5)
    begun, may_end = asyncio.Event(), asyncio.Event()

    @queues.task
    async def slow() -> None:
        begun.set()
        await may_end.wait()

    for _ in range(5):
        await slow.kiq()
    async with working(queues, at_once=1):
        await begun.wait()
        asyncio.get_running_loop().call_later(0.1, may_end.set)

    states = Counter(task.state for task in tasks_of(broker, "t-stopped"))
    assert {State.DONE: 1, State.READY: 4} == states


async def test_no_more_is_held_than_taskiq_asks_for(broker: LocalBroker, url: str) -> None:
    """A worker that runs one message at a time leaves the others to other workers."""
    queues = CodeqBroker(url, queue_name="t-one")
    states: list[Counter[State]] = []

    @queues.task
    async def looks() -> None:
        states.append(Counter(task.state for task in tasks_of(broker, "t-one")))

    for _ in range(3):
        await looks.kiq()
    async with working(queues, at_once=1):
        await until(ended(broker, "t-one", 3))

    assert {State.LEASED: 1, State.READY: 2} == states[0]


async def test_a_kick_that_is_repeated_is_one_message(
    broker: LocalBroker, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if middleware writes another label at each attempt, as tracing does."""

    class Traces(TaskiqMiddleware):
        def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            message.labels["traced"] = str(time.monotonic_ns())
            return message

    queues = CodeqBroker(url, queue_name="t-repeated").with_middlewares(Traces())
    task = queues.register_task(lambda n: n, task_name="repeated")
    create, lost = queues.link.client.create, iter([True])

    async def losing(*given: Any, **named: Any) -> TaskRecord:
        made = await create(*given, **named)
        if next(lost, False):
            raise Refused("the answer is lost", status=0, code="outcome-unknown")
        return made

    monkeypatch.setattr(queues.link.client, "create", losing)
    with pytest.raises(SendTaskError) as raised:
        await task.kicker().with_task_id("order-1").kiq(1)
    await task.kicker().with_task_id("order-1").kiq(1)

    assert "the answer is lost" in str(raised.value.__cause__)
    assert 1 == len(tasks_of(broker, "t-repeated"))
    await task.kicker().with_task_id("order-1").kiq(2)
    assert 2 == len(tasks_of(broker, "t-repeated"))


async def test_a_retry_that_is_refused_gives_its_message_back(
    broker: LocalBroker,
    url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message whose retry cannot be created is not acknowledged and lost."""
    tries: list[int] = []
    with broker.sync_operator() as operator:
        operator.put_topic("t-barred", {"backoffPolicy": "fixed", "backoffBaseSeconds": 1})
    queues = CodeqBroker(url, queue_name="t-barred").with_middlewares(SimpleRetryMiddleware())
    ends = queues.link.ends
    acknowledge, forbidden = ends.acknowledge, iter([True])

    async def refusing(*given: Any, **named: Any) -> None:
        if next(forbidden, False):
            raise Refused("command not allowed for token", status=403, code="forbidden")
        await acknowledge(*given, **named)

    monkeypatch.setattr(ends, "acknowledge", refusing)

    @queues.task(retry_on_error=True)
    async def fails_twice() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise RuntimeError("again")

    async with working(queues):
        await fails_twice.kiq()
        await until(ended(broker, "t-barred", 2))

    assert 3 == len(tries)
    assert "its end was not taken" in caplog.text
    given_back, _ = tasks_of(broker, "t-barred")
    assert ["NACKED", "COMPLETED"] == [each.outcome for each in given_back.history]


async def test_a_retry_that_is_too_large_makes_its_message_a_dead_letter(
    broker: LocalBroker, url: str
) -> None:
    """Its function would run a hundred times for an end that is never taken."""
    tries: list[int] = []

    class Grows(TaskiqMiddleware):
        def pre_send(self, message: TaskiqMessage) -> TaskiqMessage:
            if "_retries" in message.labels:
                # More than a request may have.
                message.labels["note"] = "x" * 2**21
            return message

    queues = CodeqBroker(url, queue_name="t-grown")
    queues.add_middlewares(SimpleRetryMiddleware(), Grows())

    @queues.task(retry_on_error=True)
    async def fails() -> None:
        tries.append(1)
        raise RuntimeError("again")

    async with working(queues):
        await fails.kiq()
        await until(ended(broker, "t-grown", 1))

    assert 1 == len(tries)
    [dead] = tasks_of(broker, "t-grown")
    assert (State.DEAD, 1) == (dead.state, dead.attempts)
    assert dead.error.startswith("its end was not taken: request body exceeds 1048576 bytes")


async def test_an_acknowledgement_under_a_lost_lease_is_an_error(
    broker: LocalBroker, url: str
) -> None:
    """So `when_received` does not run what another worker may run."""
    queues = CodeqBroker(url, queue_name="t-lost")
    await queues.register_task(lambda: None, task_name="lost").kiq()
    listening = queues.listen()
    message = await anext(listening)
    assert isinstance(message, AckableMessage)
    with broker.sync_client() as client:
        client.cancel(tasks_of(broker, "t-lost")[0].id)
    with pytest.raises(NotAcknowledged, match="its lease was lost"):
        await message.ack()  # type: ignore[misc]
    await listening.aclose()
    await queues.shutdown()


async def test_results_and_progress_are_kept(broker: LocalBroker, url: str) -> None:
    """Values, exceptions, how far a function is, and what is not there yet."""
    queues = CodeqBroker(url, queue_name="t-results").with_result_backend(CodeqResultBackend(url))

    @queues.task
    async def adds(a: int, b: int, progress: ProgressTracker[str] = GIVEN) -> int:
        await progress.set_progress("HALFWAY", "one of two")
        return a + b

    @queues.task
    async def fails() -> None:
        raise LookupError("no such user")

    @queues.task
    async def large() -> str:
        return "x" * 2**21

    @queues.task
    async def deep() -> object:
        return nested(250)

    @queues.task
    async def strange() -> object:
        return object()

    with pytest.raises(ResultGetError) as raised:
        await (await adds.kicker().with_labels(x_delay=60).kiq(1, 2)).get_result()
    assert "has no result: not yet" in str(raised.value.__cause__)
    async with working(queues):
        sent = [await each.kiq() for each in (fails, large, deep, strange)]
        sent = [await adds.kiq(1, 2), *sent]
        added, failed, enlarged, deepened, opaque = [
            await each.wait_result(check_interval=0.01, timeout=WITHIN_S) for each in sent
        ]

    assert (3, False) == (added.return_value, added.is_err)
    assert DELIVERY not in added.labels
    progress = await sent[0].get_progress()
    assert progress is not None
    assert ("HALFWAY", "one of two") == (progress.state, progress.meta)
    assert None is await sent[1].get_progress()
    with pytest.raises(LookupError, match="no such user"):
        failed.raise_for_error()
    with pytest.raises(ValueError, match=r"the result has \d+ bytes"):
        enlarged.raise_for_error()
    assert nested(250) == deepened.return_value
    with pytest.raises(ValueError, match="the result cannot be serialized"):
        opaque.raise_for_error()


async def test_another_serializer_is_kept_in_json(broker: LocalBroker, url: str) -> None:
    """Pickled messages and results are base64 in a payload of JSON."""
    queues = CodeqBroker(url, queue_name="t-pickled").with_serializer(PickleSerializer())
    queues.with_result_backend(CodeqResultBackend(url, serializer=PickleSerializer()))

    @queues.task
    async def doubled(given: float) -> float:
        return 2 * given

    async with working(queues):
        sent = await doubled.kiq(1.5)
        found = await sent.wait_result(check_interval=0.01, timeout=WITHIN_S)

    assert 3.0 == found.return_value
    assert ["base64"] == list(json.loads(tasks_of(broker, "t-pickled")[0].payload))


async def test_a_wrong_token_and_an_absent_cluster_are_told_apart(
    url: str, closed_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with the first does not start; one without a cluster waits for it."""
    message = BrokerMessage(task_id="1", task_name="any", message=b"{}", labels={})
    wrong = CodeqBroker(url.replace("test-token", "other"))
    with pytest.raises(Refused, match="invalid token"):
        await wrong.kick(message)
    with pytest.raises(Refused, match="invalid token"):
        await anext(wrong.listen())
    away = CodeqBroker(closed_url, deadline_seconds=0)
    with pytest.raises(Unreachable, match="no node takes a connection"):
        await away.kick(message)
    listening = asyncio.create_task(anext(away.listen()))  # type: ignore[arg-type]
    await until(lambda: "no messages were claimed" in caplog.text)
    listening.cancel()
    await asyncio.wait({listening})
    with pytest.raises(ConfigInvalid, match="lease_seconds=1: must be 5 or more"):
        CodeqBroker(url, lease_seconds=1)
    with pytest.raises(ConfigInvalid, match="max_deliveries=0: must be 1 to 1000"):
        CodeqBroker(url, max_deliveries=0)
    with pytest.raises(ConfigInvalid, match="prefetch=0: must be 1 to 100"):
        CodeqBroker(url, prefetch=0)
