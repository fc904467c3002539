"""Ended rules: what names that come and go leave behind, on every shard, over virtual months."""

from __future__ import annotations

from collections.abc import Awaitable

from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.items import Topic
from codeq_cluster.core.lane import PerKey
from codeq_cluster.core.operations import PutTopic
from codeq_cluster.core.outcomes import TopicStands
from codeq_cluster.core.stored_item import ItemKind
from tests.simulator.brokers import SimBrokers

from .moves import SHARDS, asked, at_rest, kill_leader

PATIENCE_S = 60.0
DAY_MS = 24 * 3600 * 1000
AUDITS_MS = 90 * DAY_MS  # What is kept longest.
_FLOWS = keyspace.item_prefix(ItemKind.FLOW)


def rows(brokers: SimBrokers) -> list[int]:
    """Return how many rows each shard has, as node B has them."""
    return [len(state.scan(b"", b"\xff" * 8, 2**31)) for state in brokers.nodes["B"].states]


def flows(brokers: SimBrokers) -> list[int]:
    """Return how many names have or had rules, by shard."""
    start, end = keyspace.prefix_range(_FLOWS)
    return [len(state.scan(start, end, 9999)) for state in brokers.nodes["B"].states]


def remembered(brokers: SimBrokers) -> list[int]:
    """Return how many names leaders count, by shard."""
    leaders = [brokers.leader(shard) for shard in range(SHARDS)]
    assert None not in leaders
    engines = [brokers.nodes[str(each)].engines[shard] for shard, each in enumerate(leaders)]
    return [len(engine.view.ruled.get("", ())) for engine in engines]


def churn(brokers: SimBrokers, *names: str) -> None:
    """Make limits and queues with rules of keys, each under its name, and delete them."""

    async def put_and_delete(broker: Broker) -> None:
        caller, policies = Caller("", "ops", deadline_in(4)), broker.queue_policies
        for name in names:
            await policies.put_limit(caller, name, PerQueue(max_running=2))
            topic = PutTopic(tenant="", name=name, by="ops")
            stands = await policies.put_flow(caller, topic, PerKey(), None)
            assert isinstance(stands, TopicStands)
            await policies.delete_topic(caller, name)
            await policies.delete_limit(caller, name)

    asked(brokers, "A", put_and_delete)


def pin(brokers: SimBrokers, *queues: str) -> None:
    """Give queues a limit of their own, and take it away."""

    async def put_and_delete(broker: Broker) -> None:
        caller, policies = Caller("", "ops", deadline_in(4)), broker.queue_policies
        for queue in queues:
            topic = PutTopic(tenant="", name=queue, by="ops")
            stands = await policies.put_flow(caller, topic, None, PerQueue(max_running=2))
            assert isinstance(stands, TopicStands)
            await policies.delete_topic(caller, queue)

    asked(brokers, "A", put_and_delete)


def ruled(brokers: SimBrokers, rule: PerKey | None) -> Topic:
    """Give the keys of a queue a rule, or none."""

    async def put(broker: Broker) -> Topic:
        caller, topic = (
            Caller("", "ops", deadline_in(4)),
            PutTopic(tenant="", name="mail", by="ops"),
        )
        stands = await broker.queue_policies.put_flow(caller, topic, rule, None)
        assert isinstance(stands, TopicStands)
        return stands.topic

    return asked(brokers, "A", put)


def is_settling(brokers: SimBrokers, topic: Topic) -> bool:
    """Return whether some tasks do not follow a topic yet."""

    def ask(broker: Broker) -> Awaitable[bool]:
        return broker.queue_policies.is_settling(Caller("", "ops", deadline_in(4)), topic)

    return asked(brokers, "B", ask)


def clocks_at(brokers: SimBrokers, ms: int) -> None:
    """Let every node's clock be that far ahead, and a new leader of each shard look at it."""
    for node_id in brokers.ids:
        brokers.move_clock(node_id, ms)
    for shard in range(SHARDS):
        kill_leader(brokers, shard)


def test_names_that_come_and_go_leave_no_rows(brokers: SimBrokers) -> None:
    """Rows of rules are gone after a day; after the audit's time, all others, but for pins."""
    churn(brokers, "first")  # Links between shards have their rows from here on.
    at_rest(brokers)
    clocks_at(brokers, AUDITS_MS + DAY_MS)
    assert brokers.run_until(lambda: not any(flows(brokers)), seconds=PATIENCE_S)
    at_rest(brokers)
    before = rows(brokers)
    names = [f"n{number}" for number in range(12)]
    churn(brokers, *names)
    pin(brokers, "mail", "post")
    at_rest(brokers)
    assert [2 * len(names) + 2] * SHARDS == flows(brokers) == remembered(brokers)
    clocks_at(brokers, AUDITS_MS + 3 * DAY_MS)
    assert brokers.run_until(lambda: flows(brokers) == [2] * SHARDS, seconds=PATIENCE_S)
    clocks_at(brokers, 3 * AUDITS_MS)
    gone = brokers.run_until(
        lambda: rows(brokers) == [each + 2 for each in before], seconds=PATIENCE_S
    )
    at_rest(brokers)

    assert gone, (before, rows(brokers))
    assert [2] * SHARDS == remembered(brokers)


def test_a_topic_whose_rules_have_ended_has_settled(brokers: SimBrokers) -> None:
    """While shards remember the end, and after they have forgotten it."""
    ruled(brokers, PerKey())
    topic = ruled(brokers, None)
    assert topic.rule_seq
    at_rest(brokers)
    assert [1] * SHARDS == flows(brokers)
    remembered = brokers.run_until(lambda: not is_settling(brokers, topic), seconds=PATIENCE_S)
    clocks_at(brokers, 2 * DAY_MS)
    forgotten = brokers.run_until(lambda: flows(brokers) == [0] * SHARDS, seconds=PATIENCE_S)

    assert remembered
    assert forgotten
    assert not is_settling(brokers, topic)
    assert is_settling(brokers, replace(topic, per_key=PerKey()))
