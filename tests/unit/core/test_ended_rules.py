"""Ended rules: how long a shard remembers them, and how many names of rules a tenant has."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.items import Topic
from codeq_cluster.core.lane import FLOWS_MAX, OVER_MS, Flow, FlowRule, PerKey, SetFlow
from codeq_cluster.core.lanes import WALK_PAUSE_MS
from codeq_cluster.core.limit import DeleteLimit, Limit, PutLimit, scope_of_limit
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import DeleteTopic, Import, PutFlow, PutTopic
from codeq_cluster.core.outcomes import (
    Changed,
    Imported,
    LimitStands,
    Outcome,
    Rejected,
    Rejection,
    TopicStands,
)
from codeq_cluster.core.spreading import RULED
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State

from .shard import NOW_MS, Shard, create

TWO = PerQueue(max_running=2)
FULL = Rejected(Rejection.TOO_MANY, RULED)


class Ruled(Shard):
    """The home shard of topics and limits that come and go."""

    def topic(
        self, name: str, per_key: PerKey | None, own: PerQueue | None = None, *, limit: str = ""
    ) -> Outcome:
        """Put a topic with its rules, and let its keys follow them."""
        topic = PutTopic(
            request=f"{name} {self.view.next_seq()}", tenant="acme", name=name, by="ops"
        )
        put = PutFlow(topic=topic, per_key=per_key, shards=1, per_queue=own, limit=limit)
        outcome = self.ask(put)
        self.wait(0)
        return outcome

    def limit(self, name: str) -> Outcome:
        """Put a limit."""
        request = f"{name} {self.view.next_seq()}"
        put = PutLimit(request=request, tenant="acme", name=name, by="ops", rule=TWO, shards=1)
        return self.ask(put)

    def drop_topic(self, name: str) -> None:
        """Delete a topic."""
        self.ask(DeleteTopic(request="d", tenant="acme", name=name, by="ops", shards=1))
        self.wait(0)

    def drop_limit(self, name: str) -> None:
        """Delete a limit."""
        self.ask(DeleteLimit(request="d", tenant="acme", name=name, by="ops", shards=1))
        self.wait(0)

    def rows(self) -> list[str]:
        """Return the scopes of all rules."""
        return [each.id for each in self.items(ItemKind.FLOW)]

    def fill(self, left: int = 0) -> None:
        """Add pinned queues until there is room for so many rules more."""
        many = FLOWS_MAX - left - len(self.rows())
        for number in range(many):
            name = f"q{number}"
            self.view.items[ItemKind.FLOW, "acme", name] = Flow(
                tenant="acme", id=name, seq=1, pinned=name
            )


@pytest.mark.parametrize("topic_stays", [False, True])
def test_an_end_is_remembered_for_a_day(topic_stays: bool) -> None:
    """Of the rules of keys, with their topic or without it."""
    shard = Ruled()
    shard.topic("mail", PerKey())
    if topic_stays:
        shard.topic("mail", None)
    else:
        shard.drop_topic("mail")
    shard.wait(OVER_MS - 1)
    assert ["mail"] == shard.rows()
    shard.wait(1)

    assert [] == shard.rows()


def test_the_end_of_a_limit_is_remembered_for_a_day() -> None:
    """Its name is a row like that of a queue."""
    shard = Ruled()
    shard.limit("api")
    shard.drop_limit("api")
    shard.wait(OVER_MS - 1)
    assert ["@api"] == shard.rows()
    shard.wait(1)

    assert [] == shard.rows()


def test_an_older_rule_that_comes_late_changes_nothing() -> None:
    """A relay or a node may bring it to a shard that has followed its end."""
    shard = Ruled()
    shard.topic("mail", PerKey())
    [rule] = shard.items(ItemKind.FLOW)
    assert isinstance(rule, Flow)
    shard.drop_topic("mail")
    shard.wait(OVER_MS - 1)
    shard.ask(SetFlow(FlowRule("acme", "mail", rule.seq, rule.per_key, 0)))
    [over] = shard.items(ItemKind.FLOW)

    assert isinstance(over, Flow)
    assert over.is_over


def test_a_rule_put_again_within_the_day_stays() -> None:
    """The day is one of the row, so it is gone with the end."""
    shard = Ruled()
    shard.topic("mail", PerKey())
    shard.limit("api")
    shard.drop_topic("mail")
    shard.drop_limit("api")
    shard.wait(OVER_MS - 1)
    shard.topic("mail", PerKey())
    shard.limit("api")
    shard.wait(2 * OVER_MS)

    assert ["@api", "mail"] == shard.rows()


def test_tasks_that_waited_for_a_rule_go_before_its_end_is_forgotten() -> None:
    """The row is that of their walk, too."""
    shard = Ruled()
    shard.topic("mail", PerKey())
    for number in range(100):
        shard.ask(CreateKeyed(replace(create(f"t{number}", command="mail"), key="k")))
    shard.drop_topic("mail")
    [row] = shard.items(ItemKind.FLOW)
    assert isinstance(row, Flow)
    assert not row.is_followed
    for passed_ms in (2 * OVER_MS, WALK_PAUSE_MS, WALK_PAUSE_MS):
        shard.wait(passed_ms)

    assert {State.READY} == {task.state for task in shard.view.tasks.values()}
    shard.wait(OVER_MS)
    assert [] == shard.rows()


def test_a_pin_is_never_forgotten() -> None:
    """Keys of its tasks are known on the queue's shard alone."""
    shard = Ruled()
    shard.topic("mail", None, TWO)
    shard.limit("api")
    shard.topic("post", None, limit="api")
    for name in ("mail", "post"):
        shard.drop_topic(name)
    shard.drop_limit("api")
    shard.wait(2 * OVER_MS)

    assert {("acme", "mail"): "mail", ("acme", "post"): "@api"} == shard.view.pins
    assert ["mail", "post"] == shard.rows()


def test_a_tenant_gives_rules_to_so_many_names_and_no_more() -> None:
    """Pins count, because they stay; a name that has a row may have other rules."""
    shard = Ruled()
    shard.topic("keys", PerKey())
    shard.fill(left=2)
    assert isinstance(shard.limit("api"), LimitStands)
    assert isinstance(shard.topic("mail", None, limit="api"), TopicStands)

    assert FULL == shard.limit("other")
    assert FULL == shard.topic("post", PerKey())
    assert FULL == shard.topic("post", None, TWO)
    assert FULL == shard.topic("post", None, limit="api")
    assert isinstance(shard.topic("post", None), TopicStands)
    assert isinstance(shard.topic("keys", PerKey(max_running=3)), TopicStands)
    assert isinstance(shard.topic("q7", None, TWO), TopicStands)
    shard.drop_topic("keys")
    assert FULL == shard.topic("post", PerKey())
    shard.wait(OVER_MS)
    assert isinstance(shard.topic("post", PerKey()), TopicStands)


def test_an_import_gives_rules_to_no_more_names() -> None:
    """What it leaves out it reports, and topics without rules come."""
    shard = Ruled()
    shard.fill(left=1)
    topic = Topic(tenant="other", id="a", name="a", per_key=PerKey(), rule_seq=9)
    items = (
        topic,
        replace(topic, id="b", name="b"),
        replace(topic, id="c", name="c", per_key=None, rule_seq=0),
        replace(topic, id="q7", name="q7"),
        Limit(tenant="other", id="api", name="api", rule=TWO, rule_seq=9),
    )
    outcome = shard.ask(
        Import(request="i", tenant="acme", by="op", source="b", items=items, shards=1)
    )

    assert isinstance(outcome, Imported)
    assert ("topic/b", "limit/api") == outcome.items_refused
    assert 3 == outcome.items_imported


def test_another_tenant_has_rooms_of_its_own() -> None:
    """The bound is of one tenant."""
    shard = Ruled()
    shard.fill()
    put = PutLimit(request="x", tenant="other", name="api", by="ops", rule=TWO, shards=1)

    assert isinstance(shard.ask(put), LimitStands)
    assert Changed(0) == shard.ask(
        DeleteLimit(request="d", tenant="acme", name="api", by="ops", shards=1)
    )
    assert scope_of_limit("api") not in [
        each.id for each in shard.items(ItemKind.FLOW) if each.tenant == "acme"
    ]
    assert NOW_MS == shard.view.now_ms
