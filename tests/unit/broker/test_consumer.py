"""Claims that wait: the order of wake-ups, the claim that gets the task, and vanished clients."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.requests.claims import Claims
from codeq_cluster.broker.requests.consumer import Consumer
from codeq_cluster.broker.requests.pins import Pins
from codeq_cluster.broker.requests.producer import Producer
from codeq_cluster.broker.requests.uploads import Uploads
from codeq_cluster.broker.values import NewResult
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Claimed, Rejected, Rejection, Submitted
from codeq_cluster.errors import NoLeader
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, make_shard, shards_of

pytestmark = pytest.mark.asyncio


@dataclass
class Desk:
    """A broker on one node with one shard."""

    shard: Shard
    producer: Producer
    claims: Claims
    consumer: Consumer
    background: Background

    async def create(self, *commands: str) -> None:
        """Create a task of each command."""
        items = [Create(command=command, payload="{}") for command in commands]
        await self.producer.create("acme", items, timeout_s=5)

    async def claim(
        self, *commands: str, wait_s: float = 0, worker: str = "ann", timeout_s: float = 5
    ) -> Claimed:
        """Claim one task."""
        return await self.claims.claim(
            "acme",
            worker,
            commands=commands,
            count=1,
            lease_ms=60_000,
            wait_s=wait_s,
            timeout_s=timeout_s,
        )

    @property
    def counters(self) -> tuple[int, int]:
        """Return (ready, leased) of the queue `render`."""
        counters = self.shard.engine.replica.counters.get(("render", "acme"))
        return (counters.ready, counters.leased) if counters else (0, 0)


@pytest.fixture
def desk() -> Desk:
    """Yield a broker that leads its one shard."""
    clock = TestClock()
    shard = make_shard(MemoryShard(), clock)
    waiters = Waiters(waiters_max=10)
    shard.engine.on_rows(waiters.rows)
    shards = shards_of(shard)
    background = Background()
    shard.log.lead()
    return Desk(
        shard,
        Producer(shards, clock, Pins()),
        Claims(shards, waiters, background),
        Consumer(shards, Uploads(shards, None, background, base="")),
        background,
    )


async def _settle() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


def _ids(claims: Sequence[Claimed]) -> int:
    return len({task.id for claimed in claims for task in claimed.tasks})


async def test_a_waiting_claim_is_woken_by_a_create(desk: Desk) -> None:
    """The longest waiting claim gets the first task; the others keep waiting."""
    waiting = [asyncio.ensure_future(desk.claim("render", wait_s=30)) for _ in range(3)]
    await _settle()
    await desk.create("render")
    await _settle()

    assert [True, False, False] == [claim.done() for claim in waiting]

    await desk.create("render", "render")

    assert 3 == _ids(await asyncio.gather(*waiting))


async def test_two_spellings_of_a_command_are_one_queue(desk: Desk) -> None:
    """A claim that names both spellings waits, is woken and gets its task."""
    waiting = asyncio.ensure_future(desk.claim("render", "RENDER", wait_s=30))
    await _settle()
    await desk.create("Render")

    assert 1 == len((await waiting).tasks)


async def test_a_claim_for_everything_is_woken_by_any_queue(desk: Desk) -> None:
    """A claim that names no command waits for every command of the tenant."""
    waiting = asyncio.ensure_future(desk.claim(wait_s=30))
    await _settle()
    await desk.create("anything")

    assert 1 == len((await waiting).tasks)


async def test_a_claim_that_vanishes_while_waiting_takes_nothing(desk: Desk) -> None:
    """The claim's place among the waiters is gone with it."""
    waiting = asyncio.ensure_future(desk.claim("render", wait_s=30))
    await _settle()
    waiting.cancel()
    await desk.create("render")
    await _settle()

    assert (1, 0) == desk.counters


async def test_a_claim_that_vanishes_while_claiming_gives_back(desk: Desk) -> None:
    """The leased task is ready again, and the delivery does not count."""
    await desk.create("render")
    desk.shard.log.held = True
    claiming = asyncio.ensure_future(desk.claim("render"))
    await _settle()
    desk.shard.log.take()
    claiming.cancel()
    await _settle()
    desk.shard.log.release()
    [task] = (await desk.claim("render", wait_s=30)).tasks

    assert 1 == task.attempts
    assert (0, 1) == desk.counters


async def test_a_wake_up_that_fails_is_passed_on(desk: Desk) -> None:
    """The woken claim reaches its deadline; the next in line gets the task."""
    first = asyncio.ensure_future(desk.claim("render", wait_s=30, timeout_s=0.05))
    await _settle()
    second = asyncio.ensure_future(desk.claim("render", wait_s=30, worker="bob"))
    await _settle()
    await desk.create("render")
    desk.shard.log.depose()
    with pytest.raises(NoLeader):
        await first
    desk.shard.log.lead()

    [task] = (await second).tasks

    assert "bob" == task.worker


async def test_a_task_named_twice_in_a_batch_of_results_ends_once(desk: Desk) -> None:
    """The second item is refused, whatever its result."""
    await desk.create("render")
    [task] = (await desk.claim("render")).tasks
    said = NewResult(task_id=task.id, status="COMPLETED", body="1")

    answers = await desk.consumer.submit("acme", "ann", [said, said], timeout_s=5)

    assert isinstance(answers[0], Submitted)
    assert Rejected(Rejection.NOT_IN_PROGRESS) == answers[1]


async def test_a_batch_claim_is_ordered_by_priority(desk: Desk) -> None:
    """The answer starts with the highest priority, however the tasks were gathered."""
    items = [
        Create(command="render", payload="{}", priority=priority) for priority in (1, 9, 5, 9, 0)
    ]
    await desk.producer.create("acme", items, timeout_s=5)

    claimed = await desk.claims.claim(
        "acme", "ann", commands=("render",), count=4, lease_ms=60_000, wait_s=0, timeout_s=5
    )

    assert [9, 9, 5, 1] == [task.priority for task in claimed.tasks]
