"""Watching: who holds a lease hears of its loss at once, from the shard's leader."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from codeq_cluster.broker.engine import watching
from codeq_cluster.broker.questions import Watch, Watched
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.holds import HoldKey, Nack
from codeq_cluster.core.lane import PerKey
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Abandon, Cancel, Heartbeat, Operation, PutFlow, PutTopic
from codeq_cluster.core.outcomes import Claimed, Extended, Rejection, Returned
from codeq_cluster.errors import NotLeader, Overloaded

from .conftest import Shard, claim, create, submit

pytestmark = pytest.mark.asyncio

_LONG_MS = 600_000


async def _leased(shard: Shard, *ids: str) -> tuple[tuple[str, int], ...]:
    """Create and claim tasks; return their leases."""
    await shard.engine.operate([create(each) for each in ids])
    [claimed] = await shard.engine.operate([claim("r1", count=len(ids))])
    assert isinstance(claimed, Claimed)
    return tuple((task.id, task.lease_token) for task in claimed.tasks)


def _watch(*leases: tuple[str, int], wait_ms: int = _LONG_MS, worker: str = "ann") -> Watch:
    return Watch(tenant="acme", worker=worker, leases=leases, wait_ms=wait_ms)


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def _cancel(task_id: str) -> Operation:
    return Cancel(request=f"c-{task_id}", id=task_id, tenant="acme")


async def test_a_cancelled_task_ends_the_wait_of_its_holder(shard: Shard) -> None:
    """The holder hears of that lease alone; heartbeats of its others tell it nothing."""
    leases = await _leased(shard, "t1", "t2")
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    beat = Heartbeat(id="t1", tenant="acme", worker="ann", extend_ms=9_000)
    [extended] = await shard.engine.operate([beat])
    await _settle()

    assert isinstance(extended, Extended)
    assert not waiting.done()

    await shard.engine.operate([_cancel("t2")])

    assert Watched((("t2", Rejection.LEASE_LOST),)) == await waiting
    assert not shard.engine._state.watches.of


async def test_a_task_that_is_to_end_ends_the_wait_of_who_does_not_know_it(shard: Shard) -> None:
    """Also if it was asked for before the wait; who knows it hears of other leases alone."""
    leases = await _leased(shard, "t1", "t2")
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    ask = AskCancel(request="x", id="t1", tenant="acme", grace_ms=9_000, reason="why")
    await shard.engine.operate([ask])
    told = await waiting
    again = await shard.engine.answer(_watch(*leases))
    knowing = replace(_watch(*leases), known=("t1",))
    waiting = asyncio.ensure_future(shard.engine.answer(knowing))
    await _settle()
    await shard.engine.operate([replace(ask, request="y", grace_ms=8_000)])
    await _settle()

    assert isinstance(told, Watched)
    [(task_id, asked)] = told.cancelling
    assert ("t1", "why", ()) == (task_id, asked.reason, told.lost)
    assert told == again
    assert not waiting.done()

    await shard.engine.operate([_cancel("t1")])

    assert Watched((("t1", Rejection.LEASE_LOST),)) == await waiting
    assert not shard.engine._state.watches.of


async def test_a_cancel_is_told_to_the_holder_of_a_task_that_was_given_back_before(
    shard: Shard,
) -> None:
    """How the delivery before has ended says nothing of this one."""
    await _leased(shard, "t1", "t2")
    await shard.engine.operate(
        [
            Abandon(request=f"a-{each}", id=each, tenant="acme", worker="ann")
            for each in ("t1", "t2")
        ]
    )
    [claimed] = await shard.engine.operate([claim("r2", count=2)])
    assert isinstance(claimed, Claimed)
    leases = [(task.id, task.lease_token) for task in claimed.tasks]
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    ask = AskCancel(request="x", id="t1", tenant="acme", grace_ms=9_000, reason="why")
    await shard.engine.operate([ask])
    await _settle()

    assert waiting.done()

    told = await waiting

    assert isinstance(told, Watched)
    assert ["t1"] == [task_id for task_id, _ in told.cancelling]


async def test_what_the_holder_ended_itself_is_no_news(shard: Shard) -> None:
    """A result and a nack leave the wait to the other leases, and the last of them ends it."""
    leases = await _leased(shard, "t1", "t2")
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    await shard.engine.operate([submit("t1")])
    await _settle()

    assert not waiting.done()

    await shard.engine.operate([Nack(request="n", id="t2", tenant="acme", worker="ann")])

    assert Watched() == await waiting


async def test_a_task_that_its_holder_gave_back_with_its_key_is_no_news(shard: Shard) -> None:
    """It is a nack, too."""
    topic = PutTopic(request="p", tenant="acme", name="render", by="ops")
    await shard.engine.operate([PutFlow(topic=topic, per_key=PerKey(), shards=1)])
    await shard.engine.operate([CreateKeyed(create("t1", key="k"))])
    [claimed] = await shard.engine.operate([claim("r1")])
    assert isinstance(claimed, Claimed)
    leases = [(task.id, task.lease_token) for task in claimed.tasks]
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    nack = Nack(request="n", id="t1", tenant="acme", worker="ann", delay_ms=9_000)
    [returned] = await shard.engine.operate([HoldKey(nack=nack)])

    assert isinstance(returned, Returned)
    assert Watched() == await waiting


async def test_what_was_lost_before_is_told_at_once(shard: Shard) -> None:
    """Nothing is missed between a renewal and the wait; others' tasks are as if not there."""
    [first, second] = await _leased(shard, "t1", "t2")
    await shard.engine.operate([_cancel("t1")])
    stale = (second[0], second[1] + 1)
    told = await shard.engine.answer(_watch(first, stale, ("unheard-of", 1)))
    strange = await shard.engine.answer(_watch(second, worker="bob"))
    foreign = Watch(tenant="other", worker="ann", leases=(second,), wait_ms=_LONG_MS)

    assert (
        Watched(
            (
                ("t1", Rejection.LEASE_LOST),
                ("t2", Rejection.LEASE_LOST),
                ("unheard-of", Rejection.NOT_FOUND),
            )
        )
        == told
    )
    assert Watched((("t2", Rejection.NOT_OWNER),)) == strange
    assert Watched((("t2", Rejection.NOT_FOUND),)) == await shard.engine.answer(foreign)


async def test_a_wait_ends_in_time(shard: Shard) -> None:
    """Without news the answer is empty, and nothing is watched any more."""
    leases = await _leased(shard, "t1")
    looked = await shard.engine.answer(_watch(*leases, wait_ms=0))
    waited = await shard.engine.answer(_watch(*leases, wait_ms=1))

    assert (Watched(), Watched()) == (looked, waited)
    assert not shard.engine._state.watches.of


async def test_the_next_wait_takes_over(shard: Shard) -> None:
    """The client of the earlier one may have gone, so a lease has one wait."""
    leases = await _leased(shard, "t1")
    first = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    second = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))

    assert Watched() == await first

    await shard.engine.operate([_cancel("t1")])

    assert Watched((("t1", Rejection.LEASE_LOST),)) == await second


async def test_a_deposed_leader_ends_the_waits(shard: Shard) -> None:
    """The next leader is asked, because only it hears of what happens now."""
    leases = await _leased(shard, "t1")
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(*leases)))
    await _settle()
    shard.engine.follow("n2")

    with pytest.raises(NotLeader):
        await waiting


async def test_watched_leases_are_bounded(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the bound a holder is refused, and those before it wait on."""
    monkeypatch.setattr(watching, "WATCHED_MAX", 1)
    [first, second] = await _leased(shard, "t1", "t2")
    waiting = asyncio.ensure_future(shard.engine.answer(_watch(first)))
    await _settle()

    with pytest.raises(Overloaded):
        await shard.engine.answer(_watch(second))

    await shard.engine.operate([_cancel("t1")])

    assert Watched((("t1", Rejection.LEASE_LOST),)) == await waiting
