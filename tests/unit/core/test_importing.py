"""Imports: tasks come whole or not at all, and never replace existing ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.checkpoint import Checkpoint, Report
from codeq_cluster.core.items import (
    PAUSES_MAX,
    Audit,
    Delivery,
    Pause,
    Subscription,
    Topic,
    audit_id,
    audit_ms,
)
from codeq_cluster.core.lane import Flow, PerKey, lane_of
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Delete, Import, PutFlow, PutTopic, Staging, Undelivered
from codeq_cluster.core.outcomes import Imported
from codeq_cluster.core.placing import is_apart
from codeq_cluster.core.relays import Relay
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import (
    PAUSED_BY_IMPORT,
    SCHEDULES_MAX,
    Plan,
    RunRow,
    Schedule,
    Timing,
)
from codeq_cluster.core.sharding import home_shard, shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import SCHEDULES, Tally
from codeq_cluster.core.task import State

from .shard import LEASE_MS, NOW_MS, Shard, create, submit

IMPORT = Import(request="import-1", tenant="acme", by="ops", source="b", shards=1)
WEBHOOK = "https://example.com/hook"


def arrival(shard: Shard, task_id: str = "t") -> Arrival:
    """Return a shard's task with everything that belongs to it."""
    view = shard.view
    task = shard.task(task_id)
    return Arrival(
        task=task,
        payload=view.payload(task_id),
        result=view.result(task_id),
        deliveries=tuple(
            (item, view.bodies[item.tenant, item.id])
            for item in shard.items(ItemKind.DELIVERY)
            if isinstance(item, Delivery) and item.task_id == task_id
        ),
        fingerprint="f" if task.idempotency_key else "",
    )


def made(**fields: object) -> Arrival:
    """Return a task just created in another cluster."""
    shard = Shard()
    shard.create(**fields)
    return arrival(shard)


def ended(**fields: object) -> Arrival:
    """Return an ended task whose callback is pending."""
    shard = Shard()
    shard.create(webhook=WEBHOOK, **fields)
    shard.claim()
    shard.ask(submit(body='{"ok":true}'))
    return arrival(shard)


def took(shard: Shard, *arrivals: Arrival, **flags: object) -> Imported:
    """Import tasks into a shard and return the outcome."""
    outcome = shard.ask(replace(IMPORT, tasks=arrivals, **flags))
    assert isinstance(outcome, Imported)
    return outcome


def recorded(shard: Shard) -> list[tuple[str, str, str]]:
    """Return action, target and detail of the audit records."""
    return [
        (item.action, item.target, item.detail)
        for item in shard.items(ItemKind.AUDIT)
        if isinstance(item, Audit)
    ]


def keyed(*names: str) -> Shard:
    """Return a shard that has a rule of keys, and tasks of one key."""
    shard = Shard()
    topic = PutTopic(request="p", tenant="acme", name="render", by="op")
    shard.ask(PutFlow(topic=topic, per_key=PerKey(), shards=1))
    shard.wait(0)
    for name in names:
        shard.ask(CreateKeyed(replace(create(name), key="k")))
    return shard


def test_a_task_whose_checkpoint_was_left_behind_has_none() -> None:
    """Its size would count for ever; with the checkpoint it is the same as there."""
    there, bare, whole = Shard(), Shard(), Shard()
    there.create()
    there.claim()
    there.ask(Report(id="t", tenant="acme", worker="ann", extend_ms=1, checkpoint="[7]"))
    came = arrival(there)
    took(bare, came)
    [row] = there.items(ItemKind.CHECKPOINT)
    assert isinstance(row, Checkpoint)
    took(whole, replace(came, checkpoint=row))

    assert (0, 3) == tuple(each.task("t").more.checkpoint_bytes for each in (bare, whole))  # type: ignore[union-attr]
    assert ([], [row]) == (bare.items(ItemKind.CHECKPOINT), whole.items(ItemKind.CHECKPOINT))


def test_a_held_task_waits_where_its_key_is_busy_and_nowhere_else() -> None:
    """The order of the key stays; without a rule nothing holds the task."""
    there = keyed("a", "b")
    came = arrival(there, "a"), arrival(there, "b")
    bound, free = keyed(), Shard()
    took(bound, *came)
    took(free, *came)

    assert State.HELD is there.task("b").state
    assert (State.READY, State.HELD) == (bound.task("a").state, bound.task("b").state)
    assert (State.READY, State.READY) == (free.task("a").state, free.task("b").state)


def test_a_key_of_another_shard_stays_behind_only_if_that_is_wanted() -> None:
    """One log decides about a key; without its key, nothing holds the task."""
    came = arrival(keyed("a", "b"), "b")
    shards = next(n for n in range(2, 9) if is_apart(came.task, n))
    refused, forgotten = keyed(), keyed()
    first = took(refused, came, shards=shards)
    second = took(forgotten, came, shards=shards, forget_keys=True)

    assert ("b",) == first.keys_apart
    assert 1 == second.forgotten_keys
    assert State.READY is forgotten.task("b").state
    assert "" == lane_of(forgotten.task("b"))


def test_an_imported_topic_has_its_rule_of_keys_on_every_shard() -> None:
    """The rule is in force here at once, and on its way to the others."""
    topic = keyed().view.policy("acme", "render").topic
    assert topic is not None
    shard = Shard()
    took(shard, items=(topic,), shards=3)
    flow = shard.view.item(ItemKind.FLOW, "acme", "render")
    relays = [each for each in shard.items(ItemKind.RELAY) if isinstance(each, Relay)]
    stands = shard.view.policy("acme", "render").topic

    assert isinstance(flow, Flow)
    assert stands is not None
    assert (PerKey(), stands.rule_seq) == (flow.per_key, flow.seq)
    assert {0, 1, 2} - {home_shard("acme", 3)} == {each.to for each in relays}


def test_a_task_is_imported_unchanged_and_once() -> None:
    """Result and callback come too; a second import finds them and leaves no record."""
    shard = Shard()
    came = ended()
    first = took(shard, came)
    shard.view.now_ms += 1
    second = took(shard, came, request="import-2")

    assert Imported(imported=1) == first
    assert Imported(present=1) == second
    assert came == arrival(shard)
    assert WEBHOOK == shard.delivery().url
    assert [("task.import", "b", "1 task")] == recorded(shard)


@pytest.mark.parametrize(("after_ms", "records"), [(3_600_000, 1), (3_600_001, 2)])
def test_an_import_adds_to_its_record_for_an_hour(after_ms: int, records: int) -> None:
    """After that its name leads to a record of now, above all that were read before."""
    shard = Shard()
    name = audit_id(shard.view.now_ms, "0" * 24)
    came = made()
    took(shard, came, request=name)
    shard.view.now_ms += after_ms
    took(shard, replace(came, task=replace(came.task, id="u")), request=name)

    noted = [item.id for item in shard.items(ItemKind.AUDIT)]
    newest = shard.view.now_ms if records > 1 else NOW_MS
    assert records == len(noted)
    assert newest == audit_ms(noted[0])


def test_a_callback_that_was_made_is_not_made_again() -> None:
    """Its task exists here, so a second import brings neither task nor callback."""
    shard = Shard()
    came = ended()
    took(shard, came)
    shard.view.items.pop((ItemKind.DELIVERY, "acme", "t.1"))
    took(shard, came, request="import-2")

    assert [] == shard.items(ItemKind.DELIVERY)


def test_a_task_that_comes_back_ends_while_its_uploads_are_still_swept() -> None:
    """One sweep of the upload is left, due after the second end."""
    shard = Shard()
    shard.create()
    shard.claim()
    shard.ask(Staging(id="t", tenant="acme", worker="ann", upload="u1"))
    copied = arrival(shard)
    shard.ask(submit())
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))
    left = shard.items(ItemKind.SWEEP)
    shard.view.now_ms += 1
    took(shard, copied)
    shard.ask(submit())

    assert [("t", "u1")] == shard.swept()
    assert left != shard.items(ItemKind.SWEEP)


def test_a_task_that_comes_keeps_a_priority_outside_the_tiers() -> None:
    """Its own cluster accepted it, and an import loses no task to a policy."""
    shard = Shard()
    shard.ask(PutTopic(request="p", tenant="acme", name="render", by="op", priority_tiers=(1,)))
    outcome = took(shard, made(priority=7))

    assert Imported(imported=1) == outcome
    assert 7 == shard.task().priority


def test_the_former_tenant_of_a_task_does_not_matter() -> None:
    """Everything becomes the importing tenant's."""
    shard = Shard()
    came = ended()
    took(shard, came, tenant="zeta")

    assert "zeta" == shard.task().tenant
    assert {"zeta"} == {item.tenant for item in shard.view.items.values()}


def test_a_lease_goes_on_with_its_token() -> None:
    """The lease also keeps its end."""
    there, here = Shard(), Shard()
    there.create()
    there.claim()
    took(here, arrival(there))
    assert there.task() == here.task()
    here.wait(LEASE_MS - 1)
    assert here.task().state is State.LEASED
    here.wait(1)

    assert here.task().state is State.READY


def test_an_imported_task_that_waited_longer_goes_first() -> None:
    """A task keeps its place in the order, and never gets a later one."""
    there, here = Shard(), Shard()
    for task_id in ("a", "b"):
        there.create(task_id)
    for _ in range(10):
        here.view.next_seq()
    here.create("c")
    late = replace(arrival(there, "a"), task=replace(there.task("a"), id="d", seq=2**60))
    took(here, arrival(there, "b"), arrival(there, "a"), late)
    here.create("e")

    assert ["a", "b", "c", "d", "e"] == here.claim(count=5)


def test_an_expired_task_is_not_imported() -> None:
    """An expired task is ignored without a trace."""
    shard = Shard()
    came = ended()
    shard.view.now_ms = came.task.retain_until_ms
    outcome = took(shard, came)

    assert Imported(ended=1) == outcome
    assert {} == shard.view.tasks


def test_an_id_in_use_is_left_to_its_task() -> None:
    """The importer keeps no id that another tenant can have; the shard would not overwrite one."""
    shard = Shard()
    shard.create(tenant="zeta", payload='"zeta"')
    before = shard.task()
    outcome = took(shard, made())

    assert Imported(present=1) == outcome
    assert before == shard.task()


def test_a_key_that_is_taken_keeps_its_task_out_or_is_forgotten() -> None:
    """The key's task may be an existing one, or one from the same import."""
    shard = Shard()
    shard.create("here", idempotency_key="k", fingerprint="f")
    came = [
        replace(made(idempotency_key=key), task=replace(made(idempotency_key=key).task, id=task_id))
        for task_id, key in (("t1", "k"), ("t2", "new"), ("t3", "new"))
    ]
    kept_out = took(shard, *came)
    forgetful = took(shard, *came, forget_keys=True)

    assert Imported(imported=1, keys_taken=("t1", "t3")) == kept_out
    assert Imported(imported=2, present=1, forgotten_keys=2) == forgetful
    assert ["", "new", ""] == [shard.task(each).idempotency_key for each in ("t1", "t2", "t3")]
    row = shard.view.keyed("acme", "k")
    assert row is not None
    assert "here" == row.task_id


def test_a_key_that_another_shard_decides_about_is_not_kept() -> None:
    """Two logs would have to agree on every create with this key."""
    shard = Shard()
    came = made(idempotency_key="k")
    shards = next(
        count for count in range(2, 50) if shard_of("acme/k", count) != shard_of("t", count)
    )

    assert Imported(keys_apart=("t",)) == took(shard, came, shards=shards)
    assert Imported(imported=1, forgotten_keys=1) == took(
        shard, came, shards=shards, forget_keys=True
    )


@pytest.mark.parametrize(
    ("rules", "limit"),
    [
        (LifetimeRules(budgets={"acme": Budget(waiting_max=2)}), "readyTasks"),
        (LifetimeRules(budgets={"acme": Budget(bytes_max=5)}), "storedBytes"),
        (LifetimeRules(queues_max=2), "queuesMax"),
    ],
)
def test_a_budget_holds_for_imported_tasks(rules: LifetimeRules, limit: str) -> None:
    """The rest waits for the next import; existing tasks cost nothing."""
    shard = Shard(rules)
    came = [
        replace(made(), task=replace(made().task, id=f"t{n}", command=f"q{n}")) for n in range(4)
    ]
    first = took(shard, *came)
    second = took(shard, *came)

    assert Imported(imported=2, left=2, limit=limit) == first
    assert Imported(present=2, left=2, limit=limit) == second


def test_policies_come_unless_there_is_one() -> None:
    """An operator's policy here stays; items beyond their kind's bound are refused by name."""
    shard = Shard()
    topic = Topic(tenant="zeta", id="render", name="Render", max_attempts=3)
    pause = Pause(tenant="zeta", id="scan", by="op", since_ms=NOW_MS)
    first = took(shard, items=(topic, pause))
    second = took(shard, items=(replace(topic, max_attempts=9), pause), request="import-2")

    assert Imported(items_imported=2) == first
    assert Imported(items_present=2) == second
    assert replace(topic, tenant="acme") == shard.view.item(ItemKind.TOPIC, "acme", "render")
    assert [("task.import", "b", "2 policies and subscriptions")] == recorded(shard)
    full = [replace(pause, id=f"q{n}") for n in range(PAUSES_MAX)]
    for start in range(0, len(full), 50):
        last = took(shard, items=tuple(full[start : start + 50]), request=f"import-{start}")
    assert Imported(items_imported=49, items_refused=("pause/q999",)) == last


def test_callbacks_that_go_ahead_bring_no_task() -> None:
    """The task follows; until then the same callbacks may come again."""
    shard = Shard()
    came = ended()
    ahead = replace(came, payload="", result=None)
    took(shard, ahead, callbacks_only=True)
    shard.ask(Undelivered(tenant="acme", id="t.1", attempt=1))
    took(shard, ahead, callbacks_only=True, request="import-2")
    assert (0, {}) == (shard.delivery().attempts, shard.view.tasks)
    took(shard, replace(came, deliveries=()), request="import-3")
    took(shard, replace(ahead, deliveries=()), callbacks_only=True, request="import-4")

    assert came == arrival(shard)


def test_a_dry_run_changes_nothing() -> None:
    """A dry run leaves no record either."""
    shard = Shard()
    outcome = took(shard, ended(), dry_run=True)

    assert Imported(imported=1) == outcome
    assert ({}, {}) == (shard.view.tasks, shard.view.items)


def test_more_than_one_decision_can_bear_is_a_bug() -> None:
    """The importer divides larger ones."""
    came = [replace(made(), task=replace(made().task, id=f"t{n}")) for n in range(65)]
    with pytest.raises(AssertionError):
        took(Shard(), *came)


def test_the_create_that_made_it_is_answered_by_it() -> None:
    """A producer's retry gets the imported task."""
    shard = Shard()
    took(shard, made(idempotency_key="k", fingerprint="f"))
    again = shard.ask(create("other", idempotency_key="k", fingerprint="f"))

    assert getattr(again, "replay", None) is True


def test_a_subscription_ends_no_later_than_its_own_time() -> None:
    """The other cluster's clock may be wrong, and each node keeps the item in memory."""
    shard = Shard()
    item = Subscription(
        tenant="x",
        id="s",
        worker="w",
        callback_url="https://example.com/",
        ttl_ms=60_000,
        expires_ms=2**47,
    )
    outcome = took(shard, items=(item, replace(item, expires_ms=NOW_MS + 1)))
    kept = shard.view.item(ItemKind.SUBSCRIPTION, "acme", "s")

    assert Imported(items_imported=1, items_present=1) == outcome
    assert isinstance(kept, Subscription)
    assert NOW_MS + 60_000 == kept.expires_ms


def test_a_schedule_comes_paused_and_without_the_runs_it_had() -> None:
    """It fires in its own cluster still, and a run that ends there is none of this one's."""
    shard = Shard()
    run = RunRow(name="1", at_ms=1, task_id="t")
    plan = Plan(timing=Timing(every="1h"), task=replace(create(), id="", tenant=""))
    own = Schedule(tenant="zeta", id="nightly", plan=plan, generation=7, next_ms=9, open=(run,))
    items = (own, replace(own, id="hourly", open=(), queued=(run,), recent=(run,)))

    outcome = shard.ask(replace(IMPORT, items=items))

    assert isinstance(outcome, Imported)
    assert 2 == outcome.items_imported
    found = [item for item in shard.items(ItemKind.SCHEDULE) if isinstance(item, Schedule)]
    alone = [(each.tenant, each.open, each.queued, each.recent) for each in found]
    assert [("acme", (), (), ())] * 2 == alone
    assert [PAUSED_BY_IMPORT] * 2 == [each.paused_by for each in found]
    assert all(each.paused_ms and not each.fires_ms for each in found)
    assert 3 == len({own.generation, *(each.generation for each in found)})
    tally = shard.view.item(ItemKind.TALLY, "acme", SCHEDULES)
    assert Tally(tenant="acme", count=2) == tally


def test_no_more_schedules_come_than_a_shard_may_have() -> None:
    """Those beyond are named."""
    shard = Shard()
    full = Tally(tenant="acme", count=SCHEDULES_MAX - 1)
    shard.view.advance([ItemChange(before=None, after=full)])
    plan = Plan(timing=Timing(every="1h"), task=replace(create(), id="", tenant=""))
    items = tuple(Schedule(tenant="", id=each, plan=plan, generation=1) for each in "ab")

    outcome = shard.ask(replace(IMPORT, items=items))

    assert isinstance(outcome, Imported)
    assert (1, ("sched/b",)) == (outcome.items_imported, outcome.items_refused)
