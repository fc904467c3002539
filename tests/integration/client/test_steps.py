"""Durable steps in handlers: a function of weeks, against a broker whose clock the tests move."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from codeq_cluster.client import (
    Ended,
    Ending,
    Refused,
    Signal,
    State,
    StepsChanged,
    Task,
    TaskRecord,
    Worker,
)
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test here."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@dataclass
class Charge:
    """What a payment service has answered."""

    id: str
    at: datetime


class Shop:
    """Counts what is done; a payment fails the first time."""

    def __init__(self) -> None:
        self.paid: list[str] = []
        self.refunded: list[str] = []
        self.ended: list[Ended] = []

    def pay(self, payload: dict[str, str], key: str) -> Charge:
        """Charge a customer."""
        self.paid.append(key)
        if len(self.paid) == 1:
            raise ConnectionError("the bank is closed")
        return Charge(f"ch-{payload['customer']}", datetime(2026, 1, 31, tzinfo=UTC))

    async def refund(self, charge: Charge) -> None:
        """Undo a charge."""
        self.refunded.append(charge.id)


def made(broker: LocalBroker, command: str, payload: object = 1, **fields: Any) -> TaskRecord:
    with broker.sync_client() as client:
        return client.create(command, payload, **fields)


def again(broker: LocalBroker, task_id: str) -> TaskRecord:
    with broker.sync_client() as client:
        return client.task(task_id)


def send(broker: LocalBroker, task_id: str, name: str, payload: object = None) -> None:
    with broker.sync_client() as client:
        client.signal(task_id, name, payload)


@pytest.mark.parametrize("returned", [True, False])
def test_an_order_lives_for_seventeen_days(broker: LocalBroker, *, returned: bool) -> None:
    """What is paid stays paid; the return is refunded once, or the time for it is over."""
    shop, worker = Shop(), broker.worker()
    command = f"order-{returned}"

    @worker.task(command)
    async def order(task: Task[dict[str, str]]) -> str:
        charge = await task.step("charge", shop.pay, task.payload, task.step_key("charge"))
        await task.sleep(days=3)
        if (back := await task.wait_for("return", days=14)) is None:
            return "kept"
        await task.step("refund", shop.refund, charge)
        return f"returned: {back.payload['why']}"

    with broker.working(worker):
        task = made(broker, command, {"customer": "ann"}, max_attempts=2)
        broker.advance(minutes=10)
        begun = again(broker, task.id)
        broker.advance(days=3)
        waiting = again(broker, task.id)
        if returned:
            send(broker, task.id, "return", {"why": "too small"})
            broker.settle()
        else:
            broker.advance(days=14)
        with broker.sync_client() as client:
            result = client.wait(task.id)
            recorded = client.steps(task.id)

    assert (State.DELAYED, "sleep") == (begun.state, begun.parked_at)
    assert "return" == waiting.parked_at
    assert ("returned: too small" if returned else "kept") == result.value
    assert [f"{task.id}:charge"] * 2 == shop.paid
    assert ["ch-ann"] * returned == shop.refunded
    names = ["charge", "sleep", "return", *(["refund"] * returned)]
    assert names == [step.name for step in recorded.steps]
    assert ["NACKED", "COMPLETED"] == [each.outcome for each in again(broker, task.id).history]


def test_a_plain_function_has_steps_as_well(broker: LocalBroker) -> None:
    """It gets values at once; its waits end it, and its next delivery goes on."""
    worker = broker.worker()
    ran: list[int] = []

    @worker.task("sync")
    def handle(task: Task[int]) -> list[int]:
        values = [task.step("add", add, number, to=task.payload) for number in range(3)]
        task.sleep(60)
        signal = task.wait_for("go")
        assert isinstance(signal, Signal)
        return [*values, signal.payload]

    def add(number: int, *, to: int) -> int:
        ran.append(number)
        return number + to

    with broker.working(worker):
        task = made(broker, "sync", 10)
        broker.advance(minutes=2)
        send(broker, task.id, "go", 7)
        with broker.sync_client() as client:
            result = client.wait(task.id)
            recorded = client.steps(task.id)

    assert [10, 11, 12, 7] == result.value
    assert [0, 1, 2] == ran
    assert ["add", "add#2", "add#3", "sleep", "go"] == [step.name for step in recorded.steps]
    assert [1, 2, 3, 4, 5] == [step.position for step in recorded.steps]


def test_a_wait_among_the_tasks_of_a_group_parks_the_handler(broker: LocalBroker) -> None:
    """The worker goes on, and so does the handler once its signal is here."""
    ended: list[Ended] = []
    worker = broker.worker(ended=ended.append)

    @worker.task("grouped")
    async def grouped(task: Task[int]) -> int:
        async with asyncio.TaskGroup() as group:
            signal = group.create_task(task.wait_for("go"))
        return int(signal.result().payload)

    with broker.working(worker):
        task = made(broker, "grouped")
        broker.settle()
        waiting = again(broker, task.id)
        send(broker, task.id, "go", 7)
        with broker.sync_client() as client:
            result = client.wait(task.id)

    assert "go" == waiting.parked_at
    assert 7 == result.value
    assert [Ending.PARKED, Ending.COMPLETED] == [each.ending for each in ended]


def test_only_the_step_that_raises_is_tried_again(broker: LocalBroker) -> None:
    """A step begins the attempts anew, so each has as many as the task."""
    worker = broker.worker()
    tries: list[str] = []

    @worker.task("flaky")
    async def handle(task: Task[int]) -> None:
        for name in ("a", "b", "c"):
            await task.step(name, flaky, name)

    def flaky(name: str) -> None:
        tries.append(name)
        if tries.count(name) < 3:
            raise ConnectionError(name)

    with broker.working(worker):
        task = made(broker, "flaky", max_attempts=3)
        broker.advance(hours=2)

    assert [*"aaabbbccc"] == tries
    assert State.DONE is again(broker, task.id).state


def test_a_release_that_asks_for_other_steps_is_told(broker: LocalBroker) -> None:
    """The task waits for a release that knows its steps, and the text says what to do."""
    shop: list[str] = []

    def release(names: list[str], *, wait: bool, anywhere: bool = False) -> Worker:
        worker = broker.worker(ended=ended.append)

        @worker.task("changed")
        async def handle(task: Task[int]) -> list[str]:
            for name in names:
                await task.step(name, shop.append, name, anywhere=anywhere)
            if wait:
                await task.sleep(minutes=1)
            return names

        return worker

    ended: list[Ended] = []
    with broker.working(release(["pay", "ship"], wait=True)):
        task = made(broker, "changed", max_attempts=9)
        broker.settle()
    with broker.working(release(["charge", "ship"], wait=False)):
        broker.advance(minutes=1)
    error = ended[-1].error
    with broker.working(release(["charge", "pay", "ship"], wait=False, anywhere=True)):
        broker.advance(hours=1)

    assert Ending.PARKED is ended[0].ending
    assert isinstance(error, StepsChanged)
    assert "asks for step 'charge' as its number 1" in str(error)
    assert "step 'pay' is recorded as number 1" in str(error)
    assert "anywhere=True" in str(error)
    assert ["pay", "ship", "charge"] == shop
    assert State.DONE is again(broker, task.id).state


def test_a_step_that_nobody_asks_for_any_more_is_logged(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The task ends all the same."""
    first, second = broker.worker(), broker.worker()

    @first.task("shorter")
    async def old(task: Task[int]) -> None:
        await task.step("mail", print)
        await task.sleep(minutes=1)

    @second.task("shorter")
    async def new(task: Task[int]) -> None:
        await task.sleep(minutes=1)

    with broker.working(first):
        task = made(broker, "shorter")
        broker.settle()
    with caplog.at_level(logging.WARNING), broker.working(second):
        broker.advance(minutes=1)

    assert State.DONE is again(broker, task.id).state
    assert f"task {task.id} shorter has recorded steps" in caplog.text
    assert "did not ask for: mail" in caplog.text


def test_what_cannot_be_recorded_gives_the_task_back(broker: LocalBroker) -> None:
    """A value that is no JSON or too large, a wait without a time or with two, a coroutine."""
    ended: list[Ended] = []
    worker = broker.worker(concurrency=5, ended=ended.append)

    @worker.task("wrong")
    async def handle(task: Task[str]) -> None:
        match task.payload:
            case "no json":
                await task.step("a", object)
            case "too large":
                await task.step("a", lambda: "x" * 65_536)
            case "no time":
                await task.sleep()
            case "two times":
                await task.sleep(5, days=3)

    @worker.task("wrong-plain")
    def plain(task: Task[str]) -> None:
        task.step("a", asyncio.sleep, 0)

    with broker.working(worker):
        for payload in ("no json", "too large", "no time", "two times"):
            made(broker, "wrong", payload, max_attempts=1)
        made(broker, "wrong-plain", "coroutine", max_attempts=1)
        broker.settle()

    errors = {type(each.error) for each in ended}
    assert {Ending.DEAD} == {each.ending for each in ended}
    assert {TypeError, Refused, ValueError} == errors
    notes = "\n".join(each.note for each in ended)
    assert "a plain function cannot run a coroutine" in notes
    assert "say how long to sleep" in notes
    assert "a step exceeds 65536 bytes" in notes
