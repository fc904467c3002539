"""Slots: which tasks of a key have a row among its places, and how `explain` finds the others."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from codeq_cluster.broker.engine.explained import RUNNING_MAX
from codeq_cluster.broker.questions import Explain, Explained
from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.explaining import Facts, explain
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.lane import FlowRule, PerKey, SetFlow
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Advance, Operation
from codeq_cluster.core.outcomes import Submitted
from codeq_cluster.core.task import State

from .conftest import START_MS, Shard, claim, create, submit

pytestmark = pytest.mark.asyncio


def keyed(task_id: str, key: str = "k") -> CreateKeyed:
    """Return a create of a task with a key."""
    return CreateKeyed(create(task_id, key=key))


def rule(**fields: object) -> SetFlow:
    """Return the rule of the queue's keys: one task at once, unless it says otherwise."""
    per_key = PerKey(**fields)  # type: ignore[arg-type]
    return SetFlow(FlowRule(tenant="acme", queue="render", seq=1, per_key=per_key, shard=0))


def slots(shard: Shard) -> list[str]:
    """Return the tasks that have a slot."""
    rows = shard.store.state.scan(*keyspace.prefix_range(b"codeq/slot/"), 100)
    return [keyspace.last_id(key) for key, _ in rows]


_AT_ONCE = 250  # It divides the bound.


async def explained(shard: Shard, task_id: str) -> str:
    """Return why a task waits."""
    answer = await shard.engine.answer(Explain(tenant="acme", id=task_id))
    assert isinstance(answer, Explained)
    assert answer.explanation is not None
    assert "key-busy" == answer.explanation.reason
    return answer.explanation.text


async def leave_as_before(shard: Shard, task_id: str, *, slot_too: bool = True) -> None:
    """Give a leased task what leaders wrote at first: a slot, and no mark in its record.

    One that renewed a lease of a later leader dropped the mark and wrote no slot: it took the slot
    for one that was there and stays.
    """
    state = shard.store.state
    record = state.get(keyspace.task(task_id))
    assert record is not None
    task = records.decode_task(record)
    assert task.more is not None
    before = replace(task, more=replace(task.more, slotless=False))
    [slot] = {*keyspace.index_keys(before)} - {*keyspace.index_keys(task)}
    shard.log.depose()
    rows = {keyspace.task(task_id): records.encode(before), **({slot: b""} if slot_too else {})}
    state.commit(rows, index=state.applied_index + 1, digest=state.digest)
    shard.log.lead()


async def test_the_key_of_a_task_costs_five_rows_of_its_life(shard: Shard) -> None:
    """Its own row with each step, and a slot while the task is ready."""
    await shard.engine.operate([rule()])

    async def changed(operation: Operation) -> int:
        await shard.engine.operate([operation])
        payload = shard.log.applied[-1][2]
        assert payload is not None
        return len(entries.decode(payload).mutations)

    without = [await changed(each) for each in (create("a"), claim("1"), submit("a"))]
    with_key = [await changed(each) for each in (keyed("b"), claim("2"), submit("b"))]

    assert [2, 2, 1] == [more - less for more, less in zip(with_key, without, strict=True)]


async def test_a_task_has_a_slot_while_it_is_ready(shard: Shard) -> None:
    """In progress it is in its queue alone, and once it has ended nothing of its key is left."""
    await shard.engine.operate([rule()])
    await shard.engine.operate([keyed("a")])
    ready = slots(shard)
    await shard.engine.operate([claim("1")])
    leased = slots(shard)
    await shard.engine.operate([submit("a")])

    assert (["a"], []) == (ready, leased)
    assert not [key for key, _ in shard.store.state.scan(b"", b"\xff", 100) if b"/lane/" in key]


async def test_a_task_leased_by_an_earlier_leader_leaves_no_slot(shard: Shard) -> None:
    """Its record does not say that it has none, so the slot goes with its lease."""
    await shard.engine.operate([rule()])
    await shard.engine.operate([keyed("a"), claim("1"), keyed("b")])
    await leave_as_before(shard, "a")
    before = slots(shard)
    why = await explained(shard, "b")
    [ended] = await shard.engine.operate([submit("a")])
    after = slots(shard)
    await shard.engine.operate([claim("2"), submit("b")])

    assert ["a"] == before
    assert "task a goes before it, by its key k" == why
    assert isinstance(ended, Submitted)
    assert ["b"] == after
    assert not slots(shard)


@pytest.mark.parametrize("backs_off", [False, True])
async def test_a_mark_that_an_earlier_leader_dropped_leaves_nothing(
    shard: Shard, backs_off: bool
) -> None:
    """The end of the lease deletes a slot that is not there, and the next of the key goes."""
    await shard.engine.operate([rule(), keyed("a"), claim("1"), keyed("b")])
    await leave_as_before(shard, "a", slot_too=False)
    assert [] == slots(shard)
    assert "task a goes before it, by its key k" == await explained(shard, "b")
    if backs_off:
        nack = Nack(request="n", id="a", tenant="acme", worker="ann", delay_ms=1)
        await shard.engine.operate([nack])
        shard.clock.pass_ms(1)
        await shard.engine.operate([Advance(count=9)])
        assert ["a"] == slots(shard)
        await shard.engine.operate([claim("2")])
    for task_id, next_claim in (("a", "3"), ("b", "4")):
        [ended] = await shard.engine.operate([submit(task_id)])
        assert isinstance(ended, Submitted)
        await shard.engine.operate([claim(next_claim)])

    assert [] == slots(shard)
    assert not [key for key, _ in shard.store.state.scan(b"", b"\xff", 100) if b"/lane/" in key]


async def test_a_record_of_before_is_of_a_task_with_a_slot(shard: Shard) -> None:
    """Its last field was the one before the mark."""
    await shard.engine.operate([keyed("a"), claim("1")])
    record = shard.store.state.get(keyspace.task("a"))
    assert record is not None
    *fields, more = msgspec.msgpack.decode(record[1:])
    assert more[-1] is True
    task = records.decode_task(record[:1] + msgspec.msgpack.encode([*fields, more[:-1]]))

    assert State.LEASED is task.state
    assert Family.SLOT in map(keyspace.family, keyspace.index_keys(task))


async def test_a_task_that_backs_off_in_its_place_has_a_slot(shard: Shard) -> None:
    """So it is named at once, however many tasks of its queue are in progress."""
    await shard.engine.operate([rule(), keyed("a"), claim("1"), keyed("b")])
    nack = Nack(request="n", id="a", tenant="acme", worker="ann", delay_ms=60_000)
    await shard.engine.operate([nack])

    assert ["a"] == slots(shard)
    assert "task a goes before it, by its key k" == await explained(shard, "b")


async def test_one_of_several_in_progress_is_named(shard: Shard) -> None:
    """Not the task of another key whose text is in its record, too."""
    await shard.engine.operate([rule(max_running=2), keyed("a", "another k")])
    await shard.engine.operate([keyed("b"), keyed("c"), claim("1", count=2), claim("2")])
    await shard.engine.operate([keyed("d")])
    first = await explained(shard, "d")
    await shard.engine.operate([submit("b"), claim("3"), keyed("e")])

    assert "task b goes before it, by its key k" == first
    assert "task c goes before it, by its key k" == await explained(shard, "e")


async def test_a_ready_task_is_named_if_none_is_in_progress(shard: Shard) -> None:
    """It goes first."""
    await shard.engine.operate([rule(), keyed("a"), keyed("b")])

    assert "task a goes before it, by its key k" == await explained(shard, "b")


async def test_an_answer_says_that_not_all_in_progress_were_looked_at(shard: Shard) -> None:
    """The task in progress is the last of its queue."""
    others = [keyed(f"a{n:04}", f"o{n}") for n in range(RUNNING_MAX)]
    await shard.engine.operate([rule(), keyed("b"), claim("1"), keyed("c")])
    for n in range(0, RUNNING_MAX, _AT_ONCE):
        await shard.engine.operate(others[n : n + _AT_ONCE])
        await shard.engine.operate([claim(f"o{n}", count=_AT_ONCE)])
    beyond = await explained(shard, "c")
    await shard.engine.operate([submit("a0000")])

    assert (
        "tasks of its key k in progress: 1; none of them is among the first 1000 in progress of "
        "its queue, which were looked at"
    ) == beyond
    assert "task b goes before it, by its key k" == await explained(shard, "c")


async def test_an_answer_says_how_many_in_progress_were_looked_at(shard: Shard) -> None:
    """None of them is named then."""
    await shard.engine.operate([rule(), keyed("a"), keyed("b")])
    held = shard.engine.view.task("b")
    assert held is not None
    told = explain(held, Facts(now_ms=START_MS, running=1, looked_at=RUNNING_MAX))

    assert (
        "tasks of its key k in progress: 1; none of them is among the first 1000 in progress of "
        "its queue, which were looked at"
    ) == told.text
