"""Lanes: tasks of one key over the deaths of leaders, on virtual time and network."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller, NewResult, new_request
from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import HoldKey, HoldLimit, HoldOperation, HoldQueue, Nack
from codeq_cluster.core.items import Topic
from codeq_cluster.core.lane import Lane, OwnRule, PerKey, lane_id, lane_name
from codeq_cluster.core.limit import scope_of_limit
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import PutTopic
from codeq_cluster.core.outcomes import Claimed, Created, Returned, Submitted, TopicStands
from codeq_cluster.core.sharding import home_shard, shard_of_lane, shard_of_queue
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import InvariantBroken

from .moves import PATIENCE_S, SHARDS, asked, at_rest, kill_leader

LEASE_MS = 2_000
HOLD_S = 5.0  # The longest that the simulated brokers allow.


def put_rule(
    brokers: SimBrokers, node_id: str, rule: PerKey | None, whole: PerQueue | None = None
) -> Topic:
    """Give the queue a rule of its keys, and one of its own."""

    async def put(broker: Broker) -> Topic:
        caller = Caller("", "ops", deadline_in(4))
        topic = PutTopic(tenant="", name="mail", by="ops")
        stands = await broker.queue_policies.put_flow(caller, topic, rule, whole)
        assert isinstance(stands, TopicStands)
        return stands.topic

    return asked(brokers, node_id, put)


def put_limit(brokers: SimBrokers, node_id: str, rule: PerQueue, *queues: str) -> None:
    """Let queues share a limit."""

    async def put(broker: Broker) -> None:
        caller, policies = Caller("", "ops", deadline_in(4)), broker.queue_policies
        await policies.put_limit(caller, "api", rule)
        for queue in queues:
            topic = PutTopic(tenant="", name=queue, by="ops")
            stands = await policies.put_flow(caller, topic, None, None, limit="api")
            assert isinstance(stands, TopicStands)

    asked(brokers, node_id, put)


def created(brokers: SimBrokers, node_id: str, key: str, *, command: str = "mail") -> Task:
    """Create a task with a key."""
    new = [Create(command=command, payload="{}", key=key)]
    [made] = asked(brokers, node_id, lambda broker: broker.create("", new, timeout_s=4))
    assert isinstance(made, Created)
    return made.task


def claimed(
    brokers: SimBrokers, node_id: str, *, command: str = "mail", wait_s: float = 0
) -> list[str]:
    """Claim what is ready; return the ids."""
    got = asked(
        brokers,
        node_id,
        lambda broker: broker.claim(
            "", "ann", commands=(command,), count=9, lease_ms=LEASE_MS, wait_s=wait_s, timeout_s=4
        ),
    )
    assert isinstance(got, Claimed)
    return [task.id for task in got.tasks]


def ended(brokers: SimBrokers, node_id: str, task_id: str) -> None:
    """End a task."""
    new = NewResult(task_id=task_id, status="COMPLETED")
    [answer] = asked(brokers, node_id, lambda broker: broker.submit("", "ann", (new,), timeout_s=4))
    assert isinstance(answer, Submitted)


def held(
    brokers: SimBrokers, node_id: str, task_id: str, holds: type[HoldOperation] = HoldKey
) -> None:
    """Give a task back, and hold its key, its queue or its limit."""

    async def hold(broker: Broker) -> object:
        nack = Nack(
            request=new_request(),
            id=task_id,
            tenant="",
            worker="ann",
            delay_ms=int(HOLD_S * 1000),
            reason="429",
        )
        return await broker.give_back(holds(nack=nack), 4)

    assert isinstance(asked(brokers, node_id, hold), Returned)


def set_key(brokers: SimBrokers, node_id: str, key: str, own: OwnRule | None) -> None:
    """Give a key a rule of its own, or none."""

    async def put(broker: Broker) -> None:
        caller = Caller("", "ops", deadline_in(4))
        await broker.queue_policies.set_key(caller, "mail", key, own)

    asked(brokers, node_id, put)


def states(brokers: SimBrokers) -> dict[str, int]:
    """Return how many tasks are in each state, as node B has them."""
    found: dict[str, int] = {}
    for state in brokers.nodes["B"].states:
        for _, value in state.scan(*keyspace.prefix_range(keyspace.TASK_PREFIX), 9999):
            name = records.decode_task(value).state.name
            found[name] = found.get(name, 0) + 1
    return found


def test_a_key_goes_on_in_order_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """Whoever leads next finds in the rows who holds the key, and who is next."""
    put_rule(brokers, "A", PerKey())
    tasks = [created(brokers, "ABC"[n % 3], "ann").id for n in range(4)]
    shard = shard_of_lane("", "mail", "ann", SHARDS)
    done: list[str] = []
    for _ in tasks:
        [task_id] = claimed(brokers, "B")
        kill_leader(brokers, shard)
        assert [] == claimed(brokers, "C")
        ended(brokers, "A", task_id)
        done.append(task_id)
    at_rest(brokers)

    assert tasks == done
    assert {"DONE": 4} == states(brokers)


def test_a_lease_that_expires_under_another_leader_keeps_its_place(brokers: SimBrokers) -> None:
    """The task of the lost worker goes again before the one behind it."""
    put_rule(brokers, "A", PerKey())
    first, second = (created(brokers, "A", "ann").id for _ in range(2))
    assert [first] == claimed(brokers, "B")
    kill_leader(brokers, shard_of_lane("", "mail", "ann", SHARDS))
    brokers.run(4 * LEASE_MS / 1000)

    assert [first] == claimed(brokers, "C")
    ended(brokers, "C", first)
    assert [second] == claimed(brokers, "A")


def test_a_held_key_rests_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """Whoever leads next knows until when; then the task that was given back goes first."""
    put_rule(brokers, "A", PerKey(max_running=9))
    first, second = (created(brokers, "A", "ann").id for _ in range(2))
    assert [first] == claimed(brokers, "B")
    shard = shard_of_lane("", "mail", "ann", SHARDS)
    begun_s = brokers.clock.now
    held(brokers, "C", first)
    kill_leader(brokers, shard)
    third = created(brokers, "A", "ann").id
    none = claimed(brokers, "B")
    kill_leader(brokers, shard)
    at_rest(brokers)
    waited_s = brokers.clock.now - begun_s
    assert brokers.run_until(lambda: bool(states(brokers).get("READY")), seconds=2 * HOLD_S)
    took_s = brokers.clock.now - begun_s
    done = [claimed(brokers, node_id) for node_id in "ABC"]
    at_rest(brokers)

    assert [] == none
    assert waited_s < HOLD_S <= took_s < 2 * HOLD_S
    assert [[first], [second], [third]] == done


def test_a_held_queue_rests_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """A claim that waits gets what is there as soon as the hold is over, whoever leads then."""
    put_rule(brokers, "A", None, PerQueue(max_running=9))
    first, second = (created(brokers, "A", key).id for key in ("ann", "bob"))
    assert [first, second] == claimed(brokers, "B")
    shard = shard_of_queue("", "mail", SHARDS)
    begun_s = brokers.clock.now
    held(brokers, "C", first, HoldQueue)
    kill_leader(brokers, shard)
    third = created(brokers, "A", "cid").id
    ended(brokers, "A", second)
    none = claimed(brokers, "B")
    waited_s = brokers.clock.now - begun_s
    done = claimed(brokers, "C", wait_s=2 * HOLD_S)
    took_s = brokers.clock.now - begun_s
    at_rest(brokers)

    assert [] == none
    assert waited_s < HOLD_S <= took_s < 2 * HOLD_S
    assert [first, third] == done


def test_a_shared_limit_holds_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """Whoever leads next counts the leases of both queues, also those that expire."""
    put_limit(brokers, "A", PerQueue(max_running=1), "mail", "text")
    shard = shard_of_queue("", scope_of_limit("api"), SHARDS)
    mail = [created(brokers, "ABC"[n], "ann").id for n in range(2)]
    text = created(brokers, "C", "bob", command="text").id
    first = claimed(brokers, "B")
    kill_leader(brokers, shard)
    none = [claimed(brokers, "C", command=each) for each in ("text", "mail")]
    ended(brokers, "A", first[0])
    kill_leader(brokers, shard)
    second = claimed(brokers, "B", command="text")
    kill_leader(brokers, shard)
    third = claimed(brokers, "A", wait_s=4 * LEASE_MS / 1000)
    held(brokers, "C", third[0], HoldLimit)
    kill_leader(brokers, shard)
    begun_s = brokers.clock.now
    resting = claimed(brokers, "B", command="text")
    rests_s = brokers.clock.now - begun_s
    last = claimed(brokers, "B", command="text", wait_s=2 * HOLD_S)
    at_rest(brokers)

    assert ([mail[0]], [[], []], [text], [mail[1]]) == (first, none, second, third)
    assert [] == resting
    assert rests_s < HOLD_S
    assert [text] == last


def test_more_leases_than_a_shared_limit_allows_are_noticed(brokers: SimBrokers) -> None:
    """W23 counts those of all its queues."""
    put_limit(brokers, "A", PerQueue(max_running=1), "mail", "text")
    created(brokers, "A", "")
    other = created(brokers, "B", "", command="text")
    claimed(brokers, "B")
    row = {keyspace.task(other.id): records.encode(replace(other, state=State.LEASED))}
    entry = entries.encode(entries.Entry(9, 1, 1, 1, row), level=LEVEL)
    shard = shard_of_queue("", scope_of_limit("api"), SHARDS)

    with pytest.raises(InvariantBroken, match="2 of 1 tasks are in progress"):
        brokers.watches[shard].applied("A", 99, 9, entry)


def test_the_rule_of_a_key_stands_over_the_deaths_of_its_leaders(brokers: SimBrokers) -> None:
    """Put before the first task of the key, which rests; then it has more places than others."""
    put_rule(brokers, "A", PerKey())
    shard = shard_of_lane("", "mail", "ann", SHARDS)
    set_key(brokers, "B", "ann", OwnRule(paused=True))
    kill_leader(brokers, shard)
    tasks = [created(brokers, "ABC"[n], "ann").id for n in range(3)]
    rests = claimed(brokers, "C")
    kill_leader(brokers, shard)
    set_key(brokers, "A", "ann", OwnRule(max_running=2, weight=2))
    kill_leader(brokers, shard)
    both = claimed(brokers, "B")
    none = claimed(brokers, "C")
    set_key(brokers, "C", "ann", None)
    kill_leader(brokers, shard)
    ended(brokers, "A", tasks[0])
    serial = claimed(brokers, "A")
    ended(brokers, "B", tasks[1])
    last = claimed(brokers, "B")
    at_rest(brokers)

    assert [] == rests == none
    assert tasks[:2] == both
    assert ([], tasks[2:]) == (serial, last)


def test_a_rule_reaches_a_shard_that_was_out(brokers: SimBrokers) -> None:
    """The entry that changes the topic holds a relay for it, which needs no node to remember."""
    shard = 1 - home_shard("", SHARDS)
    keys = (f"k{number}" for number in range(100))
    key = next(key for key in keys if shard_of_lane("", "mail", key, SHARDS) == shard)
    for _ in range(60):
        created(brokers, "A", key)
    kill_leader(brokers, shard)
    put_rule(brokers, "A", PerKey(max_running=2))
    kill_leader(brokers, shard)
    at_rest(brokers)
    bound = brokers.run_until(
        lambda: states(brokers) == {"READY": 1, "HELD": 59}, seconds=PATIENCE_S
    )
    put_rule(brokers, "B", None)
    kill_leader(brokers, shard)
    free = brokers.run_until(lambda: states(brokers) == {"READY": 60}, seconds=PATIENCE_S)
    at_rest(brokers)

    assert bound
    assert free


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"ready": 2}, "by its tasks"),
        ({"own": OwnRule()}, "by its tasks"),
        ({"held": 0}, "by its tasks"),
        (None, "by its tasks"),
    ],
)
def test_a_row_that_its_tasks_contradict_is_noticed(
    brokers: SimBrokers, change: dict[str, Any] | None, fault: str
) -> None:
    """W17 reads every entry."""
    put_rule(brokers, "A", PerKey())
    for _ in range(2):
        created(brokers, "A", "ann")
    shard = shard_of_lane("", "mail", "ann", SHARDS)
    name = lane_id("mail", lane_name("ann"))
    lane = Lane(tenant="", id=name, key="ann", ready=1, held=1)
    value = None if change is None else records.encode(replace(lane, **change))
    rows = {keyspace.item(ItemKind.LANE, "", name): value}
    entry = entries.encode(entries.Entry(9, 1, 1, 1, rows), level=LEVEL)

    with pytest.raises(InvariantBroken, match=fault):
        brokers.watches[shard].applied("A", 10_000, 9, entry)
