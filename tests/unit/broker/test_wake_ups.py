"""Wake-ups: as many claims as can be served are woken, and no wake-up is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.requests.claims import Claims
from codeq_cluster.broker.waiters import Ticket, Waiters
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.lane import PerKey
from codeq_cluster.core.lanes import WALK_LANES_MAX, WALK_PAUSE_MS
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Advance, PauseQueue, PutFlow, PutTopic
from codeq_cluster.core.outcomes import Advanced, Claimed
from codeq_cluster.core.rate import Rate

from .conftest import Shard, claim, create, shards_of, submit

pytestmark = pytest.mark.asyncio

_WAITING = 20


@dataclass
class Office:
    """A leader whose claims wait, connected as in a node."""

    shard: Shard
    waiters: Waiters
    claims: Claims
    catalogue: Catalogue

    def claiming(self, *commands: str) -> asyncio.Future[Claimed]:
        """Start to claim one task."""
        return asyncio.ensure_future(
            self.claims.claim(
                "acme",
                "ann",
                commands=commands,
                count=1,
                lease_ms=60_000,
                wait_s=5,
                timeout_s=5,
            )
        )


@pytest.fixture
def office(shard: Shard) -> Office:
    """Yield a leader."""
    catalogue = Catalogue([shard.store.state])
    catalogue.follow(shard.engine)
    waiters = Waiters(waiters_max=100, claimable=catalogue.newly_claimable)
    shard.engine.on_rows(catalogue.rows)
    shard.engine.on_rows(waiters.rows)
    catalogue.on_open(
        lambda tenant, queue, most: waiters.work(
            tenant,
            queue,
            catalogue.claimable(tenant, queue, min(most, catalogue.ready(tenant, queue))),
        )
    )
    shards = shards_of(shard)
    background = Background()
    return Office(shard, waiters, Claims(shards, waiters, background), catalogue)


@pytest.fixture
def waiting(office: Office) -> Iterator[Callable[[], int]]:
    """Let many claims wait for work; return how many of them are woken."""
    with ExitStack() as stack:
        tickets: Sequence[Ticket] = [
            stack.enter_context(office.waiters.for_work("acme", ("render",)))
            for _ in range(_WAITING)
        ]
        yield lambda: sum(ticket.event.is_set() for ticket in tickets)


def _topic(max_consumers: int) -> PutTopic:
    return PutTopic(
        request="put",
        tenant="acme",
        name="render",
        by="op",
        priority_tiers=(),
        max_attempts=0,
        dead_letter="",
        retention_s=0,
        max_consumers=max_consumers,
        weight=1,
    )


async def test_nobody_is_woken_for_what_nobody_may_claim(
    office: Office, waiting: Callable[[], int]
) -> None:
    """Tasks of a paused queue wake no claim, however many there are."""
    pause = PauseQueue(request="p", tenant="acme", queue="render", by="op")
    await office.shard.engine.operate([pause])
    await office.shard.engine.operate([create(f"t{number}") for number in range(5)])

    assert 0 == waiting()


async def test_as_many_are_woken_as_there_are_places(
    office: Office, waiting: Callable[[], int]
) -> None:
    """If a topic allows two tasks in progress and has one, one claim is woken."""
    engine = office.shard.engine
    await engine.operate([_topic(2), create("t0"), claim("c")])
    await engine.operate([create(f"t{number}") for number in range(1, 10)])

    assert 1 == waiting()


async def test_a_place_that_is_free_again_wakes_one(
    office: Office, waiting: Callable[[], int]
) -> None:
    """When a task ends, one of the many claims behind the limit is woken."""
    engine = office.shard.engine
    await engine.operate([_topic(1), create("t0"), claim("c")])
    await engine.operate([create(f"t{number}") for number in range(1, 10)])
    assert 0 == waiting()
    await engine.operate([submit("t0")])

    assert 1 == waiting()


async def test_a_shut_queue_wakes_nobody_until_its_token_comes(
    office: Office, waiting: Callable[[], int]
) -> None:
    """Neither tasks that arrive, nor leases that end, give it a token."""
    shard = office.shard
    rule = PerQueue(rate=Rate(1))
    await shard.engine.operate(
        [PutFlow(topic=_topic(0), per_key=None, shards=1, per_queue=rule), Advance(count=9)]
    )
    await shard.engine.operate([create("t0"), claim("c")])
    await shard.engine.operate([create(f"t{number}") for number in range(1, 10)])
    await shard.engine.operate([submit("t0")])
    shut = waiting()
    shard.clock.monotonic += 1000
    await shard.engine.operate([Advance(count=9)])

    assert (0, 1) == (shut, waiting())


async def test_the_walk_of_a_rule_wakes_nobody(office: Office) -> None:
    """The rule does, when it is put; each step over its keys changes nothing for the others."""
    shard, opened = office.shard, list[object]()
    keys = range(WALK_LANES_MAX + 1)
    await shard.engine.operate([CreateKeyed(create(f"t{n}", key=f"k{n}")) for n in keys])
    office.catalogue.on_open(lambda *queue: opened.append(queue))
    put = PutFlow(topic=_topic(0), per_key=PerKey(), shards=1)
    await shard.engine.operate([put])
    by_rule = len(opened)
    stepped = []
    for pause_ms in (0, 0, WALK_PAUSE_MS, 0):
        shard.clock.monotonic += pause_ms
        stepped += await shard.engine.operate([Advance(count=9)])

    assert [Advanced(1), Advanced(0), Advanced(1), Advanced(0)] == stepped
    assert 0 < by_rule == len(opened)


async def test_a_claim_that_takes_of_another_queue_passes_its_call_on(office: Office) -> None:
    """Woken for one queue, the claim finds work of a higher priority in another one."""
    either = office.claiming("render", "print")
    behind = office.claiming("render")
    for _ in range(10):
        await asyncio.sleep(0)
    await office.shard.engine.operate([create("t0"), create("p0", command="print", priority=9)])
    claimed = [*(await either).tasks, *(await behind).tasks]

    assert ["p0", "t0"] == [task.id for task in claimed]
