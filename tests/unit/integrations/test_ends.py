"""Ends: acknowledgements that go together, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

import pytest

from codeq_cluster.client import (
    Leases,
    NewTask,
    Refused,
    State,
    SubmittedResult,
    TaskRecord,
    Unreachable,
)
from codeq_cluster.integrations.ends import Ends
from codeq_cluster.integrations.target import target_of
from codeq_cluster.testing.broker import LocalBroker

LEASE_S: Final = 60


class Counted(Leases):
    """Requests of workers, which counts those that end tasks."""

    def __init__(self, broker: LocalBroker) -> None:
        super().__init__([broker.url], token=broker.token)
        self.together: list[int] = []
        self.alone: list[str] = []
        self.begun = [asyncio.Event(), asyncio.Event()]

    async def complete_many(
        self, ended: Sequence[tuple[TaskRecord, bytes]], *, within_s: float | None = None
    ) -> Sequence[SubmittedResult]:
        """Count it, and do it."""
        self.together.append(len(ended))
        if len(self.together) <= len(self.begun):
            self.begun[len(self.together) - 1].set()
        return await super().complete_many(ended, within_s=within_s)

    async def complete(
        self,
        task: TaskRecord,
        result: bytes,
        *,
        following: Sequence[bytes] = (),
        within_s: float | None = None,
    ) -> None:
        """Count it, and do it."""
        self.alone.append(task.id)
        await super().complete(task, result, following=following, within_s=within_s)


@pytest.fixture
async def leases(broker: LocalBroker) -> AsyncIterator[Counted]:
    """Open the requests of a worker."""
    async with Counted(broker) as opened:
        yield opened


async def _claimed(broker: LocalBroker, leases: Leases, queue: str, count: int) -> list[TaskRecord]:
    async with broker.client() as client:
        await client.create_many(NewTask(queue, n) for n in range(count))
    held: list[TaskRecord] = []
    while len(held) < count:
        held += await leases.claim([queue], count=count, lease_s=LEASE_S, wait_s=10)
    return held


async def _states(broker: LocalBroker, tasks: Sequence[TaskRecord]) -> set[State]:
    async with broker.client() as client:
        return {(await client.task(task.id)).state for task in tasks}


async def test_what_ends_while_a_request_is_under_way_goes_with_the_next_one(
    broker: LocalBroker, leases: Counted
) -> None:
    """Thirty tasks that end at once are two requests, and all of them have ended."""
    ends = Ends(leases)
    tasks = await _claimed(broker, leases, "e-many", 30)
    await asyncio.gather(*map(ends.acknowledge, tasks))

    assert [1, 29] == leases.together
    assert [] == leases.alone
    assert {State.DONE} == await _states(broker, tasks)


async def test_an_end_that_is_refused_is_its_own_alone(
    broker: LocalBroker, leases: Counted
) -> None:
    """It is asked for again by itself, which says why; the others have ended."""
    ends = Ends(leases)
    tasks = await _claimed(broker, leases, "e-lost", 4)
    await leases.abandon(tasks[2])
    outcomes = await asyncio.gather(*map(ends.acknowledge, tasks), return_exceptions=True)

    assert [tasks[2].id] == leases.alone
    assert [None, None, None] == [outcomes[n] for n in (0, 1, 3)]
    assert isinstance(outcomes[2], Refused)
    assert "not-in-progress" == outcomes[2].code
    assert {State.DONE} == await _states(broker, [tasks[0], tasks[1], tasks[3]])


async def test_who_gives_up_while_it_sends_for_others_takes_none_along(
    broker: LocalBroker, leases: Counted
) -> None:
    """Those that were in its request end by themselves."""
    ends = Ends(leases)
    tasks = await _claimed(broker, leases, "e-cancelled", 4)
    asked = [asyncio.create_task(ends.acknowledge(task)) for task in tasks]
    await leases.begun[1].wait()
    # The second one sends what has waited for the first one's request.
    asked[1].cancel()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(outcomes[1], asyncio.CancelledError)
    assert [None, None, None] == [outcomes[n] for n in (0, 2, 3)]
    assert {State.DONE} == await _states(broker, [tasks[0], tasks[2], tasks[3]])


async def test_who_gives_up_before_its_turn_is_not_sent(
    broker: LocalBroker, leases: Counted
) -> None:
    """Its task is still leased."""
    ends = Ends(leases)
    tasks = await _claimed(broker, leases, "e-withdrawn", 3)
    asked = [asyncio.create_task(ends.acknowledge(task)) for task in tasks]
    await leases.begun[0].wait()
    asked[1].cancel()
    with suppress(asyncio.CancelledError):
        await asked[1]
    await asyncio.gather(asked[0], asked[2])

    assert [1, 1] == leases.together
    assert {State.LEASED} == await _states(broker, [tasks[1]])


async def test_an_end_with_a_follow_up_goes_alone(broker: LocalBroker, leases: Counted) -> None:
    """The broker bounds what follows the results of one request."""
    ends = Ends(leases)
    [task] = await _claimed(broker, leases, "e-followed", 1)
    await ends.acknowledge(task, following=[b'{"command":"e-next","payload":1}'])
    [following] = await leases.claim(["e-next"], lease_s=LEASE_S, wait_s=10)

    assert [] == leases.together
    assert task.id == following.parent_id


async def test_a_cluster_that_is_away_is_told_to_each(
    broker: LocalBroker, leases: Counted, closed_url: str
) -> None:
    """A request for several that reaches nobody ends none of them."""
    tasks = await _claimed(broker, leases, "e-away", 3)
    async with Leases(target_of(closed_url).urls, token="token", deadline_s=0) as away:
        ends = Ends(away)
        outcomes = await asyncio.gather(
            *(ends.acknowledge(task, within_s=0) for task in tasks), return_exceptions=True
        )

    assert [Unreachable] * 3 == list(map(type, outcomes))
    assert {State.LEASED} == await _states(broker, tasks)
