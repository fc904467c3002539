"""Limits that queues share: how many tasks of all of them run at once, and how often they go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.core.decide import decide
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import HoldLimit
from codeq_cluster.core.lane import PerKey
from codeq_cluster.core.limit import LIMITS_MAX, SHARERS_MAX, DeleteLimit, PutLimit, scope_of_limit
from codeq_cluster.core.new_task import CreateUnique
from codeq_cluster.core.operations import Abandon, DeleteTopic, Import, PutFlow, PutTopic
from codeq_cluster.core.outcomes import (
    Changed,
    Created,
    Imported,
    LimitStands,
    Outcome,
    Rejected,
    Rejection,
    Returned,
    TopicStands,
)
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of_queue, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import AttemptOutcome
from codeq_cluster.core.unique import UniqueTerms

from .shard import LEASE_MS, NOW_MS, Shard, create, submit
from .test_held_keys import too_many

TOKEN_MS = 1000
HOLD_MS = 5_000
TWO = PerQueue(max_running=2)
SLOW = PerQueue(rate=Rate(1))
STRIPE = scope_of_limit("stripe")
BOTH = ("charge", "refund")


class Shared(Shard):
    """Two queues that share a limit, on the home shard of their topics."""

    def __init__(self, rule: PerQueue = TWO, *, shards: int = 1) -> None:
        super().__init__(LifetimeRules(shards=shards))
        self._shards = shards
        self._claims = 0
        self.limit(rule)
        for queue in BOTH:
            self.topic(queue)

    def limit(self, rule: PerQueue, name: str = "stripe", *, tenant: str = "acme") -> Outcome:
        """Put a limit."""
        put = PutLimit(
            request=f"{rule} {self.view.now_ms}",
            tenant=tenant,
            name=name,
            by="ops",
            rule=rule,
            shards=self._shards,
        )
        return self.ask(put)

    def topic(
        self,
        queue: str,
        limit: str = "stripe",
        *,
        own: PerQueue | None = None,
        per_key: PerKey | None = None,
    ) -> Outcome:
        """Put a queue's topic, which names a limit."""
        request = f"{queue} {limit} {self.view.now_ms}"
        topic = PutTopic(request=request, tenant="acme", name=queue, by="ops")
        put = PutFlow(topic=topic, per_key=per_key, shards=self._shards, per_queue=own, limit=limit)
        outcome = self.ask(put)
        self.wait(0)
        return outcome

    def add(self, *ids: str) -> None:
        """Create tasks; the first letter says of which queue."""
        for each in ids:
            self.create(each, command={"c": "charge", "r": "refund"}[each[0]])

    def take(self, count: int = 9, commands: tuple[str, ...] = BOTH) -> list[str]:
        """Claim all that is there."""
        self._claims += 1
        return self.claim(count=count, commands=commands, request=f"claim {self._claims}")

    def hold(self, task_id: str, *, commands: tuple[str, ...] = ()) -> Outcome:
        """Give a task back, and hold the limit."""
        nack = too_many(task_id, token=self.task(task_id).lease_token, ms=HOLD_MS)
        return self.ask(HoldLimit(nack=nack, commands=commands))


def test_the_tasks_of_all_queues_count_together() -> None:
    """In one claim and over several; what ends in one queue makes room in the other."""
    shard = Shared()
    shard.add("c1", "c2", "r1", "r2")

    first = shard.take()
    assert 2 == len(first)
    assert [] == shard.take(commands=("charge",))
    assert [] == shard.take(commands=("refund",))
    assert [] == shard.take(commands=())
    shard.ask(submit(id=first[0], token=1))
    assert 1 == len(shard.take(commands=()))
    assert [] == shard.take()


@pytest.mark.parametrize("end", ["expiry", "abandon"])
def test_whatever_ends_a_lease_makes_room_for_every_queue(end: str) -> None:
    """Also time alone."""
    shard = Shared(PerQueue(max_running=1))
    shard.add("c1", "r1")
    assert ["c1"] == shard.take(commands=("charge",))
    assert [] == shard.take(commands=("refund",))
    if end == "expiry":
        shard.wait(LEASE_MS)
    else:
        shard.ask(Abandon(request="x", id="c1", tenant="acme", worker="ann", token=1))

    assert ["r1"] == shard.take(commands=("refund",))


def test_one_rate_is_for_all_queues() -> None:
    """A token that one queue has taken is gone for the other, and one instant opens both."""
    shard = Shared(PerQueue(rate=Rate(1, 1, 2)))
    shard.add("c1", "c2", "r1", "r2")

    assert 2 == len(shard.take())
    gate = shard.view.gates["acme", STRIPE]
    assert NOW_MS + TOKEN_MS == gate.opens_ms
    assert [[], []] == [shard.take(commands=(each,)) for each in BOTH]
    assert 1 == shard.wait(TOKEN_MS)
    assert 1 == len(shard.take())
    assert [] == shard.take(commands=())


def test_a_dear_task_whose_turn_it_is_is_passed_by_no_task_of_another_queue() -> None:
    """A claim of both queues keeps the tokens for it, too."""
    shard = Shared(PerQueue(rate=Rate(1, 1, 10)))
    shard.add(*(f"r{number}" for number in range(10)))
    assert 10 == len(shard.take(10))
    shard.create("c1", command="charge", cost=10)
    shard.add("r10")
    shard.wait(TOKEN_MS)
    taken: list[str] = []
    for _ in range(10):
        taken += shard.take()
        shard.wait(TOKEN_MS)

    assert [["c1"], ["r10"]] == [taken[:1], shard.take()]


def test_a_queue_has_a_limit_of_its_own_beside_the_one_it_shares() -> None:
    """Both hold; a refused task spends nothing of either."""
    shard = Shared(PerQueue(max_running=3, rate=Rate(1, 1, 9)))
    shard.topic("charge", own=PerQueue(max_running=1))
    shard.topic("refund", own=PerQueue(rate=Rate(1, 60)))
    shard.add("c1", "c2", "r1", "r2")

    assert ["c1", "r1"] == sorted(shard.take())
    spent = shard.view.gates["acme", STRIPE].spent_us
    assert [] == shard.take()
    assert spent == shard.view.gates["acme", STRIPE].spent_us


def test_other_queues_and_other_tenants_are_not_bound() -> None:
    """A limit of the same name elsewhere is another one."""
    shard = Shared(PerQueue(max_running=1))
    shard.limit(PerQueue(max_running=5), tenant="zeta")
    shard.add("c1", "r1")
    shard.create("t", command="thumb")
    shard.create("z", tenant="zeta", command="charge")

    assert ["c1", "t"] == sorted(shard.take(commands=()))
    assert ["z"] == shard.claim(tenant="zeta", commands=BOTH, request="zeta's")


def test_a_queue_that_leaves_makes_room_and_another_rule_holds_at_once() -> None:
    """And its own tasks are free."""
    shard = Shared(PerQueue(max_running=1))
    shard.add("c1", "c2", "r1", "r2")
    assert ["c1"] == shard.take()
    shard.topic("charge", limit="")
    assert ["r1", "c2"] == shard.take()
    shard.limit(TWO)
    assert ["r2"] == shard.take()


def test_a_held_limit_holds_all_its_queues() -> None:
    """One answer of an API quiets the workers of each; the task goes first and loses no attempt."""
    shard = Shared(PerQueue(max_running=9))
    shard.add("c1", "c2", "r1")
    shard.create("t", command="thumb")
    shard.take(count=1, commands=("charge",))
    answer = shard.hold("c1")

    assert Returned(dead=False, delay_ms=HOLD_MS) == answer
    assert ["t"] == shard.take(commands=())
    assert 0 == shard.wait(HOLD_MS - 1)
    assert [] == shard.take()
    shard.wait(1)
    assert {"c1", "c2", "r1"} == set(shard.take())
    assert AttemptOutcome.LIMIT_HELD is shard.task("c1").history[0].outcome
    assert 1 == shard.task("c1").attempts


def test_who_may_hold_a_limit() -> None:
    """A token holds what it may work on; a queue without a limit, and none of before, has none."""
    shard = Shared()
    shard.add("c1")
    shard.create("t", command="thumb")
    shard.take(commands=())

    refused = Rejected(Rejection.EVENT_TYPE_NOT_ALLOWED)
    assert refused == shard.hold("c1", commands=("charge",))
    assert Rejected(Rejection.NOTHING_TO_HOLD, "limit") == shard.hold("t")
    assert isinstance(shard.hold("c1", commands=("Charge", "REFUND")), Returned)


def test_puts_and_deletions_say_what_they_change() -> None:
    """Equal values change nothing, and a limit in use stays."""
    shard = Shared()
    shard.wait(1)
    stands = shard.limit(TWO)
    changed = shard.limit(SLOW)
    deletion = DeleteLimit(request="d", tenant="acme", name="Stripe", by="ops", shards=1)

    assert isinstance(stands, LimitStands)
    assert (False, 1) == (stands.made, stands.limit.version)
    assert isinstance(changed, LimitStands)
    assert (False, 2) == (changed.made, changed.limit.version)
    assert Rejected(Rejection.LIMIT_IN_USE, "charge, refund") == shard.ask(deletion)
    shard.topic("charge", limit="")
    shard.ask(DeleteTopic(request="x", tenant="acme", name="refund", by="ops"))
    assert Changed(1) == shard.ask(deletion)
    assert Changed(0) == shard.ask(deletion)
    assert Rejected(Rejection.UNKNOWN_LIMIT, "stripe") == shard.topic("charge")
    actions = [getattr(each, "action", "") for each in shard.items(ItemKind.AUDIT)]
    assert {"limit.put", "limit.delete"} <= set(actions)


def test_a_pin_never_moves() -> None:
    """A queue keeps to the shard of what placed it, so it shares a limit of that shard alone."""
    shard = Shared(shards=64)
    own = PerQueue(max_running=1)
    shard.limit(TWO, "other")
    places = [shard_of_queue("acme", each, 64) for each in (STRIPE, scope_of_limit("other"))]
    shard.topic("render", limit="", own=own)
    there = next(
        name
        for name in map("queue-{}".format, range(10_000))
        if shard_of_queue("acme", name, 64) == places[0]
    )
    shard.topic(there, limit="", own=own)

    assert places[0] != places[1]
    assert Rejected(Rejection.PINNED_ELSEWHERE, STRIPE) == shard.topic("charge", "other")
    assert Rejected(Rejection.PINNED_ELSEWHERE, "render") == shard.topic("render")
    moved = shard.topic(there)
    assert isinstance(moved, TopicStands)
    assert (there, "stripe") == (moved.topic.pinned, moved.topic.limit)
    keyed = shard.topic("keyed", limit="", per_key=PerKey())
    assert isinstance(keyed, TopicStands)
    assert Rejected(Rejection.KEYS_ELSEWHERE) == shard.topic("keyed", per_key=PerKey())


def test_a_create_elsewhere_is_told_where_its_queue_is() -> None:
    """Its refusal names the limit, and the node places the task again."""
    shard = Shared(shards=4)
    home = shard_of_queue("acme", STRIPE, 4)
    away = with_shard("0" * 8, shards=4, wanted=(home + 1) % 4)
    here = with_shard("1" * 8, shards=4, wanted=home)
    refused = shard.ask(create(away, command="charge"))
    made = shard.ask(create(here, command="charge"))
    unique = replace(create(away, command="charge"), unique=UniqueTerms(key="u"))
    of_key = shard.ask(CreateUnique(unique))

    assert Rejected(Rejection.MISPLACED, "charge@stripe") == refused == of_key
    assert isinstance(made, Created)
    assert made.task.more is not None
    assert STRIPE == made.task.more.pinned


def test_an_import_brings_a_limit_and_its_queues() -> None:
    """They are bound together here, too; a queue that has a place here keeps it."""
    there, here = Shared(PerQueue(max_running=1)), Shard(LifetimeRules(shards=64))
    items = there.items(ItemKind.LIMIT) + there.items(ItemKind.TOPIC)
    topic = PutTopic(request="r", tenant="zeta", name="refund", by="ops")
    own = PerQueue(max_running=5)
    here.ask(PutFlow(topic=topic, per_key=None, shards=64, per_queue=own))
    here.ask(DeleteTopic(request="d", tenant="zeta", name="refund", by="ops", shards=64))
    brought = Import(
        request="i", tenant="zeta", by="ops", source="backup", shards=64, items=tuple(items)
    )
    outcome = here.ask(brought)
    home = shard_of_queue("zeta", STRIPE, 64)
    for number in range(2):
        task_id = with_shard(f"{number:08}", shards=64, wanted=home)
        here.create(task_id, tenant="zeta", command="charge")

    assert isinstance(outcome, Imported)
    assert (2, ("refund@stripe",)) == (outcome.items_imported, outcome.topics_apart)
    assert 1 == len(here.claim(tenant="zeta", commands=BOTH, count=9))
    assert {"charge"} == here.view.sharers["zeta", STRIPE]


def test_an_import_without_its_limit_leaves_the_topic_for_another_time() -> None:
    """One that named nothing would promise a limit that does not hold; a repetition brings it."""
    there = Shared()
    limits, topics = there.items(ItemKind.LIMIT), there.items(ItemKind.TOPIC)
    here = Shard()
    for number in range(LIMITS_MAX):
        name = f"l{number}"
        here.ask(PutLimit(request=name, tenant="zeta", name=name, by="ops", rule=TWO, shards=1))
    brought = Import(
        request="i", tenant="zeta", by="ops", source="b", shards=1, items=(*limits, *topics)
    )
    tried = here.ask(replace(brought, dry_run=True))
    full = here.ask(brought)
    named = here.items(ItemKind.TOPIC)
    alone = here.ask(replace(brought, items=tuple(topics)))
    unknown = here.ask(replace(brought, items=tuple(topics), dry_run=True))
    here.ask(DeleteLimit(request="d", tenant="zeta", name="l1", by="ops", shards=1))
    again = here.ask(brought)

    apart = ("charge@stripe", "refund@stripe")
    assert Imported(items_refused=("limit/stripe",), topics_apart=apart) == tried == full
    assert [] == named
    assert Imported(topics_apart=apart) == alone
    assert Imported(items_imported=2) == unknown, "an earlier part may have brought the limit"
    assert Imported(items_imported=3) == again
    assert set(BOTH) == here.view.sharers["zeta", STRIPE]


def test_an_import_brings_no_more_queues_than_may_share_a_limit() -> None:
    """Those that share it here count, and so do those that come with it."""
    there, here = Shared(), Shared()
    for number in range(SHARERS_MAX - len(BOTH)):
        there.topic(f"q{number}")
    topics = [each for each in there.items(ItemKind.TOPIC) if each.id not in BOTH]
    last = replace(topics[0], id="one-more", name="one-more")
    brought = Import(request="i", tenant="acme", by="ops", source="b", shards=1)
    outcome = here.ask(replace(brought, items=(*topics, last)))
    more = here.ask(replace(brought, items=(last,)))

    apart = ("one-more@stripe",)
    assert Imported(items_imported=len(topics), topics_apart=apart) == outcome
    assert Imported(topics_apart=apart) == more


def test_so_many_queues_share_a_limit_and_no_more() -> None:
    """Each claim asks all of them."""
    shard = Shared()
    answers = [shard.topic(f"q{each}") for each in range(SHARERS_MAX - len(BOTH))]

    assert {TopicStands} == {type(each) for each in answers}
    assert Rejected(Rejection.TOO_MANY, "queues of one limit") == shard.topic("one-more")
    assert Rejected(Rejection.INVALID_COST, "1") == _dear(shard)


def test_a_tenant_has_so_many_limits_and_no_more() -> None:
    """Every shard keeps their rules in memory; another tenant has its own."""
    shard = Shared()
    answers = [shard.limit(TWO, f"l{each}") for each in range(LIMITS_MAX - 1)]

    assert {LimitStands} == {type(each) for each in answers}
    assert Rejected(Rejection.TOO_MANY, "limits") == shard.limit(TWO, "one-more")
    assert isinstance(shard.limit(TWO, "one-more", tenant="other"), LimitStands)


def _dear(shard: Shared) -> Outcome:
    shard.limit(SLOW)
    return shard.ask(create("dear", command="charge", cost=2))


@given(
    rule=st.builds(
        PerQueue,
        max_running=st.integers(0, 3),
        rate=st.none() | st.builds(Rate, st.integers(1, 9), st.just(1), st.integers(1, 4)),
    ),
    steps=st.lists(
        st.tuples(
            st.sampled_from(["claim", "end", "wait", "hold", "any"]),
            st.integers(0, 900),
            st.integers(1, 3),
            st.sampled_from(BOTH),
        ),
        max_size=30,
    ),
)
def test_no_story_of_two_queues_exceeds_their_limit(
    rule: PerQueue, steps: list[tuple[str, int, int, str]]
) -> None:
    """Leases of both never exceed it, nor do claims of both in a window, and a hold holds both."""
    if rule == PerQueue():
        return
    shard = Shared(rule)
    shard.add(*(f"{queue}{number}" for number in range(40) for queue in "cr"))
    running: list[str] = []
    claims: list[int] = []
    held_until_ms = 0
    for number, (step, span_ms, count, queue) in enumerate(steps):
        if step == "wait":
            shard.wait(span_ms)
        elif step in ("claim", "any"):
            commands = (queue,) if step == "claim" else ()
            got = shard.claim(count=count, commands=commands, request=f"n{number}")
            running += got
            claims += [shard.view.now_ms] * len(got)
            assert not got or held_until_ms <= shard.view.now_ms
        elif running and step == "end":
            task = running.pop(0)
            token = shard.task(task).lease_token
            shard.ask(submit(id=task, token=token, request=f"e{number}"))
        elif running:
            shard.hold(running.pop(0))
            held_until_ms = max(held_until_ms, shard.view.now_ms + HOLD_MS)
        assert not rule.max_running or len(running) <= rule.max_running
        assert not rule.rate or _most_in_windows(claims, rule.rate)


def _most_in_windows(claims: list[int], rate: Rate) -> bool:
    """Return whether no window has more claims than the burst and what came in it."""
    return all(
        end - start + 1 <= rate.burst + rate.count * (claims[end] - claims[start]) / 1000
        for start in range(len(claims))
        for end in range(start, len(claims))
    )


def test_a_put_that_changes_nothing_writes_nothing() -> None:
    """Neither of the limit, nor of a topic that names it."""
    shard = Shared()
    put = PutLimit(request="r", tenant="acme", name="stripe", by="ops", rule=TWO, shards=1)
    topic = PutTopic(request="r", tenant="acme", name="charge", by="ops")
    flow = PutFlow(topic=topic, per_key=None, shards=1, per_queue=None, limit="Stripe")

    assert [(), ()] == [decide(shard.view, each, shard.rules).changes for each in (put, flow)]
