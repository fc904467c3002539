"""The engine answers a caller only once the decision is durable."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.engine import timers
from codeq_cluster.broker.questions import Explain, Explained
from codeq_cluster.codec import keyspace
from codeq_cluster.core.explaining import Reason
from codeq_cluster.core.operations import Heartbeat
from codeq_cluster.core.outcomes import Claimed, Created, Extended, Rejected, Rejection, Submitted
from codeq_cluster.core.task import State
from codeq_cluster.errors import (
    NotLeader,
    OperationTooLarge,
    OutcomeUnknown,
    Overloaded,
    StorageFailed,
)
from tests.fakes.memory_store import MemoryShard

from .conftest import GRACE_MS, Shard, TestClock, claim, create, make_shard, submit

pytestmark = pytest.mark.asyncio


async def _settle() -> None:
    """Run every callback that is due."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _until_timer(shard: Shard) -> None:
    """Wait until a timer of a few milliseconds of real time has fired and its work is applied."""
    applied = asyncio.Event()
    shard.engine.on_rows(lambda _: applied.set())
    async with asyncio.timeout(60):
        await applied.wait()


async def test_an_answer_waits_for_its_entry(shard: Shard) -> None:
    """A create is not acknowledged before its entry is applied."""
    shard.log.held = True
    answer = asyncio.ensure_future(shard.engine.operate([create("t1")]))
    await _settle()
    shard.log.take()
    await _settle()

    assert not answer.done()

    shard.log.release()

    [created] = await answer
    assert isinstance(created, Created)
    assert shard.store.state.get(keyspace.task("t1")) is not None


async def test_decisions_see_decisions_on_their_way(shard: Shard) -> None:
    """A task can be claimed and finished before its create is committed; all commit together."""
    shard.log.held = True
    creating = asyncio.ensure_future(shard.engine.operate([create("t1")]))
    claiming = asyncio.ensure_future(shard.engine.operate([claim("r1")]))
    await _settle()
    shard.log.take()
    finishing = asyncio.ensure_future(shard.engine.operate([submit("t1")]))
    await _settle()
    shard.log.release()
    [claimed], [submitted] = await claiming, await finishing
    await creating

    assert isinstance(claimed, Claimed)
    assert ("{}",) == claimed.payloads
    assert isinstance(submitted, Submitted)


async def test_one_turn_commits_everything_decided_since_the_last(shard: Shard) -> None:
    """Many callers share one entry."""
    before = shard.engine.applied_index
    shard.log.held = True
    answers = [
        asyncio.ensure_future(shard.engine.operate([create(f"t{number}")])) for number in range(50)
    ]
    await _settle()
    shard.log.release()
    await asyncio.gather(*answers)

    assert before + 1 == shard.engine.applied_index
    assert 1 == len(shard.seen.entries)


async def test_a_lost_leadership_leaves_no_false_answer(shard: Shard) -> None:
    """A batch passed to the log is unknown; one that was not passed was certainly not done."""
    shard.log.held = True
    sent = asyncio.ensure_future(shard.engine.operate([create("t1")]))
    await _settle()
    shard.log.take()
    unsent = asyncio.ensure_future(shard.engine.operate([create("t2")]))
    await _settle()
    shard.log.depose("n2")

    with pytest.raises(OutcomeUnknown):
        await sent
    with pytest.raises(NotLeader) as not_leader:
        await unsent
    assert "n2" == not_leader.value.hint
    with pytest.raises(NotLeader):
        await shard.engine.operate([create("t3")])


async def test_an_entry_of_another_term_is_a_no_op(shard: Shard) -> None:
    """The epoch fence: a deposed leader's decisions can never take effect."""
    shard.log.held = True
    lost = asyncio.ensure_future(shard.engine.operate([create("t1")]))
    await _settle()
    shard.log.take()
    shard.log.depose()
    digest = shard.engine.digest
    shard.log.commit(term=shard.log.term + 1)

    assert shard.store.state.get(keyspace.task("t1")) is None
    assert 1 == shard.engine.fenced
    assert digest != shard.engine.digest
    with pytest.raises(OutcomeUnknown):
        await lost


async def test_a_create_retried_at_the_next_leader_is_one_task(shard: Shard) -> None:
    """The first send took effect; the second finds its own task."""
    shard.log.held = True
    first = asyncio.ensure_future(shard.engine.operate([create("t1", idempotency_key="k")]))
    await _settle()
    shard.log.take()
    shard.log.depose()
    shard.log.commit()
    with pytest.raises(OutcomeUnknown):
        await first
    shard.log.held = False
    shard.log.lead()

    [again] = await shard.engine.operate([create("t1", idempotency_key="k")])

    assert isinstance(again, Created)
    assert not again.replay


async def test_a_claim_retried_at_the_next_leader_gets_the_same_task(shard: Shard) -> None:
    """The first answer was lost; the repeat returns the same lease and takes no other task."""
    await shard.engine.operate([create("t1"), create("t2")])
    shard.log.held = True
    first = asyncio.ensure_future(shard.engine.operate([claim("r1")]))
    await _settle()
    shard.log.take()
    shard.log.depose()
    shard.log.commit()
    with pytest.raises(OutcomeUnknown):
        await first
    shard.log.held = False
    shard.log.lead()

    [again] = await shard.engine.operate([claim("r1", retry=True)])

    assert isinstance(again, Claimed)
    assert ["t1"] == [task.id for task in again.tasks]
    [other] = await shard.engine.operate([claim("r2", worker="bob")])
    assert isinstance(other, Claimed)
    assert ["t2"] == [task.id for task in other.tasks]


async def test_a_refusal_needs_a_proof_of_leadership(shard: Shard) -> None:
    """A deposed leader that does not know it yet must not answer "not found"."""
    shard.log.held = True
    asked = asyncio.ensure_future(
        shard.engine.operate([Heartbeat(id="t9", tenant="acme", worker="ann", extend_ms=1)])
    )
    await _settle()
    shard.log.take()
    await _settle()

    assert not asked.done()

    shard.log.depose("n2")

    with pytest.raises(NotLeader):
        await asked


async def test_a_refusal_is_answered_without_an_entry(shard: Shard) -> None:
    """A refusal changes nothing, so no entry is written."""
    before = shard.engine.applied_index

    [outcome] = await shard.engine.operate(
        [Heartbeat(id="t9", tenant="acme", worker="ann", extend_ms=1)]
    )

    assert Rejected(Rejection.NOT_FOUND) == outcome
    assert before == shard.engine.applied_index


async def test_a_full_queue_refuses_and_does_nothing() -> None:
    """A writer beyond the bound is told to retry."""
    shard = make_shard(MemoryShard(), TestClock(), operations_max=2)
    shard.log.lead()
    shard.log.held = True
    held = [asyncio.ensure_future(shard.engine.operate([create(f"t{n}")])) for n in range(2)]
    await _settle()

    with pytest.raises(Overloaded):
        await shard.engine.operate([create("t9")])

    shard.log.release()
    await asyncio.gather(*held)
    assert isinstance((await shard.engine.operate([create("t9")]))[0], Created)


async def test_a_read_sees_every_answer_given_before_it(shard: Shard) -> None:
    """A quorum confirms the leader, and then the read sees the applied state."""
    await shard.engine.operate([create("t1")])

    rows = await shard.engine.read([keyspace.task("t1"), keyspace.task("t2")])

    assert rows.values[0] is not None
    assert rows.values[1] is None
    shard.log.held = True
    asked = asyncio.ensure_future(shard.engine.read([keyspace.task("t1")]))
    await _settle()
    shard.log.depose()
    with pytest.raises(NotLeader):
        await asked


async def test_a_delay_ends_without_anybody_asking(shard: Shard) -> None:
    """The timer is set when the task is created."""
    await shard.engine.operate([create("t1", delay_ms=5)])
    assert shard.engine.head("acme", ("render",)) is None
    shard.clock.pass_ms(5)
    await _until_timer(shard)

    assert shard.engine.head("acme", ("render",)) is not None


async def test_time_goes_on_after_a_read_that_failed(
    shard: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller waits for timers, so a failed attempt must be repeated without a caller."""
    monkeypatch.setattr(timers, "RETRY_S", 0.001)
    await shard.engine.operate([create("t1", delay_ms=5)])
    read, failed = shard.store.state.get, asyncio.Event()

    def fails_once(key: bytes) -> bytes | None:
        if key == keyspace.task("t1") and not failed.is_set():
            failed.set()
            raise StorageFailed("reading a row")
        return read(key)

    monkeypatch.setattr(shard.store.state, "get", fails_once)
    shard.clock.pass_ms(5)
    await _until_timer(shard)

    assert failed.is_set()
    assert shard.engine.head("acme", ("render",)) is not None


async def test_a_new_leader_gives_every_lease_a_grace() -> None:
    """Heartbeats had no leader meanwhile, so a lease that ran out does not end at once."""
    store, clock = MemoryShard(), TestClock()
    old = make_shard(store, clock)
    old.log.lead()
    await old.engine.operate([create("t1"), claim("r1", lease_ms=1000)])
    old.log.depose()
    clock.pass_ms(1500)
    new = make_shard(store, clock)
    new.log.term = old.log.term
    new.log.lead()

    [extended] = await new.engine.operate(
        [Heartbeat(id="t1", tenant="acme", worker="ann", extend_ms=GRACE_MS // 2)]
    )

    assert isinstance(extended, Extended)
    new.engine.stop()


async def test_a_lease_ends_after_the_grace(shard: Shard) -> None:
    """The worker is gone; the task is ready again, its attempt in the history."""
    shard.clock.pass_ms(GRACE_MS)
    await shard.engine.operate([create("t1"), claim("r1", lease_ms=2)])
    shard.clock.pass_ms(2)
    await _until_timer(shard)

    change = shard.seen.changes[-1]
    assert change.after is not None
    assert change.after.state is State.READY
    assert ["LEASE_EXPIRED"] == [attempt.outcome for attempt in change.after.history]


async def test_a_jump_of_the_wall_clock_ends_no_lease(shard: Shard) -> None:
    """Within a leadership the wall clock is not read again."""
    shard.clock.pass_ms(GRACE_MS)
    await shard.engine.operate([create("t1"), claim("r1", lease_ms=60_000)])
    shard.clock.wall += 3_600_000

    [extended] = await shard.engine.operate(
        [Heartbeat(id="t1", tenant="acme", worker="ann", extend_ms=1000)]
    )

    assert isinstance(extended, Extended)
    assert extended.lease_until_ms < shard.clock.wall


async def test_a_task_is_explained_by_the_clock_that_decides(shard: Shard) -> None:
    """By the wall clock, which has jumped, its lease would be over."""
    shard.clock.pass_ms(GRACE_MS)
    await shard.engine.operate([create("t1"), claim("r1", lease_ms=60_000)])
    shard.clock.wall += 3_600_000

    answer = await shard.engine.answer(Explain(tenant="acme", id="t1"))

    assert isinstance(answer, Explained)
    assert answer.explanation is not None
    assert Reason.RUNNING is answer.explanation.reason
    assert "is 3600 s behind" in answer.explanation.text


@pytest.mark.parametrize(("jump_ms", "delay_ms"), [(4_000, 1_000), (59_000, 60_000)])
async def test_a_difference_of_clocks_that_is_small_or_decides_nothing_is_not_told(
    shard: Shard, jump_ms: int, delay_ms: int
) -> None:
    """It would only confuse."""
    await shard.engine.operate([create("t1", delay_ms=delay_ms)])
    shard.clock.wall += jump_ms

    answer = await shard.engine.answer(Explain(tenant="acme", id="t1"))

    assert isinstance(answer, Explained)
    assert answer.explanation is not None
    assert Reason.SCHEDULED is answer.explanation.reason
    assert "its start time has not come" == answer.explanation.text


async def test_time_never_runs_backwards_over_a_change_of_leader() -> None:
    """The next leader's wall clock may be behind; its decisions' clock is not."""
    store, clock = MemoryShard(), TestClock()
    old = make_shard(store, clock)
    old.log.lead()
    clock.pass_ms(10_000)
    [first] = await old.engine.operate([create("t1")])
    old.log.depose()
    clock.wall -= 3_600_000
    new = make_shard(store, clock)
    new.log.term = old.log.term
    new.log.lead()

    [second] = await new.engine.operate([create("t2")])

    assert isinstance(first, Created)
    assert isinstance(second, Created)
    assert second.task.created_ms >= first.task.created_ms
    assert second.task.seq > first.task.seq
    new.engine.stop()


async def test_a_caller_waits_for_the_batch_its_rows_are_in(shard: Shard) -> None:
    """A decision that fills a batch is answered with that batch, not the empty one after it."""
    shard.log.held = True
    large = asyncio.ensure_future(shard.engine.operate([create("t1", payload="x" * 1_100_000)]))
    other = asyncio.ensure_future(shard.engine.operate([create("t2")]))
    await _settle()
    shard.log.take()
    shard.log.confirm()
    await _settle()

    assert not large.done()
    assert not other.done()

    shard.log.release()

    assert all(isinstance(outcome, Created) for [outcome] in (await large, await other))


async def test_a_replay_waits_for_the_task_it_replays(shard: Shard) -> None:
    """A quorum confirms committed entries, but not decisions that are still in flight."""
    shard.log.held = True
    first = asyncio.ensure_future(shard.engine.operate([create("t1", idempotency_key="k")]))
    await _settle()
    shard.log.take()
    replay = asyncio.ensure_future(shard.engine.operate([create("t2", idempotency_key="k")]))
    await _settle()
    shard.log.take()
    shard.log.confirm()
    await _settle()

    assert not replay.done()

    shard.log.depose("n2")

    with pytest.raises(OutcomeUnknown):
        await first
    with pytest.raises(NotLeader):
        await replay


async def test_a_batch_half_taken_is_unknown_when_the_leadership_ends(shard: Shard) -> None:
    """A write that is partly in flight must not be answered "not done"."""
    shard.log.held = True
    asked = asyncio.ensure_future(
        shard.engine.operate([create(f"t{n}", payload="x" * 700_000) for n in range(2)])
    )
    await _settle()
    shard.log.take_one()
    shard.log.depose()

    with pytest.raises(OutcomeUnknown):
        await asked


async def test_time_acts_in_parts_that_fit_an_entry() -> None:
    """Many tasks due at once are changed by as many entries as needed."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=20_000)
    shard.log.lead()
    for number in range(100):
        await shard.engine.operate([create(f"t{number}", delay_ms=5, trace_state="s" * 500)])
    shard.clock.pass_ms(5)
    for _ in range(20):
        if shard.engine.replica.counters[("render", "acme")].delayed:
            await _until_timer(shard)

    assert 100 == shard.engine.replica.counters[("render", "acme")].ready
    shard.engine.stop()


async def test_what_fits_no_entry_is_refused_and_does_nothing() -> None:
    """An operation larger than an entry gets an error and does not stop the leader."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=20_000)
    shard.log.lead()

    with pytest.raises(OperationTooLarge):
        await shard.engine.operate([create("t1", payload="x" * 30_000)])

    [created] = await shard.engine.operate([create("t1")])
    assert isinstance(created, Created)
    shard.engine.stop()


async def test_a_node_that_no_longer_leads_knows_what_is_ready(shard: Shard) -> None:
    """Its view is rebuilt from the committed state, and follows the entries applied later."""
    await shard.engine.operate([create("t1"), create("t2"), claim("r1")])
    shard.log.depose("n2")

    assert shard.engine.head("acme", ("render",)) is not None
    assert (1, 1) == (
        shard.engine.replica.counters[("render", "acme")].ready,
        shard.engine.replica.counters[("render", "acme")].leased,
    )
