"""Unique keys over the deaths of leaders, on virtual time and network."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from codeq_cluster.broker.service import Broker
from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Created
from codeq_cluster.core.sharding import shard_of_lane
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State
from codeq_cluster.core.unique import Holder, On, UniqueTerms, scope_of
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import InvariantBroken

from .moves import PATIENCE_S, SHARDS, asked, at_rest, kill_leader
from .test_lanes import claimed, ended, states

_T = TypeVar("_T")

SHARD = shard_of_lane("", "mail", "u", SHARDS)


def new(number: int, on: On = On.KEEP_LAST, **terms: int) -> Create:
    """Return a create with the unique key `u`."""
    unique = UniqueTerms(key="u", on=on, **terms)
    return Create(command="mail", payload=str(number), unique=unique)


def made(answer: object) -> Created:
    """Return the answer to a create that was accepted."""
    assert isinstance(answer, Created), answer
    return answer


def created(brokers: SimBrokers, node_id: str, create: Create) -> Created:
    """Create a task, or do with the one that is there what the terms say."""
    [answer] = asked(brokers, node_id, lambda broker: broker.create("", [create], timeout_s=4))
    return made(answer)


def asked_at_once(
    brokers: SimBrokers, asks: list[tuple[str, Callable[[Broker], Awaitable[_T]]]]
) -> list[_T]:
    """Run actions on several nodes at the same time, and the leader's death among them."""
    work = [
        brokers.outside.create_task(brokers.request(node, ask, give_up_s=PATIENCE_S))
        for node, ask in asks
    ]
    brokers.run(0.004)
    leader = brokers.leader(SHARD)
    assert leader is not None
    brokers.reconnect(leader, next(each for each in "ABC" if each != leader))
    assert brokers.run_until(lambda: all(each.done() for each in work), seconds=PATIENCE_S)
    return [each.result() for each in work]


def test_a_key_passes_on_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """Whoever leads next finds in the rows who holds it, who is next, and what was said last."""
    first = created(brokers, "A", new(1)).task.id
    assert [first] == claimed(brokers, "B")
    kill_leader(brokers, SHARD)
    queued = created(brokers, "C", new(2))
    kill_leader(brokers, SHARD)
    replaced = created(brokers, "B", new(3))
    assert [] == claimed(brokers, "C")
    kill_leader(brokers, SHARD)
    ended(brokers, "A", first)
    kill_leader(brokers, SHARD)
    assert [queued.task.id] == claimed(brokers, "C")
    ended(brokers, "C", queued.task.id)
    at_rest(brokers)

    assert ("queued", "replaced") == (queued.unique, replaced.unique)
    assert (queued.task.id, "3") == (replaced.task.id, replaced.payload)
    assert {"DONE": 2} == states(brokers)


def test_a_debounce_and_a_throttle_go_on_under_another_leader(brokers: SimBrokers) -> None:
    """The start that was moved, its latest, and the throttle's end are rows."""
    debounced = {"debounce_ms": 4000, "max_wait_ms": 6000}
    begun = created(brokers, "A", new(1, **debounced)).task
    kill_leader(brokers, SHARD)
    moved = created(brokers, "B", new(2, throttle_ms=9000, **debounced)).task
    assert [] == claimed(brokers, "C")
    kill_leader(brokers, SHARD)
    brokers.run(7)
    assert [begun.id] == claimed(brokers, "C")

    assert begun.id == moved.id
    assert moved.due_ms == min(moved.updated_ms + 4000, begun.created_ms + 6000)


def test_creates_at_once_through_all_nodes_make_one_task(brokers: SimBrokers) -> None:
    """Links are cut while they are on their way, so nodes send some of them again."""
    creates = [new(number, On.REPLACE) for number in range(24)]

    def ask(create: Create) -> Callable[[Broker], Awaitable[object]]:
        async def send(broker: Broker) -> object:
            await asyncio.sleep(int(create.payload) / 2000)
            return await broker.create("", [create], timeout_s=4)

        return send

    asks = [("ABC"[n % 3], ask(create)) for n, create in enumerate(creates)]
    answers = [made(answer) for [answer] in asked_at_once(brokers, asks)]  # type: ignore[misc]
    at_rest(brokers)

    assert 1 == len({each.task.id for each in answers})
    assert ["created", *["replaced"] * 23] == sorted(each.unique for each in answers)
    assert {"READY": 1} == states(brokers)
    [task_id] = {each.task.id for each in answers}
    [value] = [
        records.decode_task(record)
        for state in brokers.nodes["B"].states
        for _, record in state.scan(*keyspace.prefix_range(keyspace.task(task_id)), 9)
    ]
    assert value.more is not None
    assert value.more.unique is not None
    assert 23 == value.more.unique.revision


@pytest.mark.parametrize("change", [{"task_id": "other"}, {"next_id": "other"}, None])
def test_a_row_that_its_tasks_contradict_is_noticed(
    brokers: SimBrokers, change: dict[str, str] | None
) -> None:
    """W20 reads every entry."""
    made = created(brokers, "A", new(1))
    row = Holder(tenant="", id=scope_of(new(1)), task_id=made.task.id)
    value = None if change is None else records.encode(replace(row, **change))
    entry = entries.encode(
        entries.Entry(9, 1, 1, 1, {keyspace.item(ItemKind.UNIQUE, "", row.id): value}),
        level=LEVEL,
    )

    with pytest.raises(InvariantBroken, match=r"^W20 .* by its tasks"):
        brokers.watches[SHARD].applied("A", 10_000, 9, entry)


def test_two_holders_of_one_key_are_noticed(brokers: SimBrokers) -> None:
    """W20 counts tasks, whatever the row says."""
    made = created(brokers, "A", new(1))
    twin = replace(made.task, id="twin", state=State.READY)
    entry = entries.encode(
        entries.Entry(9, 1, 1, 1, {keyspace.task("twin"): records.encode(twin)}), level=LEVEL
    )

    with pytest.raises(InvariantBroken, match=r"^W20 .*2 tasks are holder"):
        brokers.watches[SHARD].applied("A", 10_000, 9, entry)
