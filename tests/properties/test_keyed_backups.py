"""Backups of tasks with keys: their rows follow from the tasks, and rules from the topics."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core import lanes, uniques
from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.flowing import rule_on
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.items import Topic
from codeq_cluster.core.lane import (
    Flow,
    KeyRule,
    Lane,
    OwnRule,
    PerKey,
    SetFlow,
    SetKey,
    WhenDead,
    lane_of,
)
from codeq_cluster.core.limit import PutLimit
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateUnique
from codeq_cluster.core.operations import Advance, DeleteTopic, Operation, PutFlow, PutTopic
from codeq_cluster.core.placing import is_apart, placed_by_key
from codeq_cluster.core.relays import Relay
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import (
    home_shard,
    shard_of,
    shard_of_lane,
    shard_of_queue,
    with_shard,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.tally import KEY_RULES, Tally
from codeq_cluster.core.task import State, Task
from codeq_cluster.core.unique import Holder, Merged, On, UniqueTerms, unique_key
from codeq_cluster.errors import BackupFailed

from .backup_worlds import RULES as FOR_ONE
from .backup_worlds import TENANTS, World, all_rows, back_up
from .rows import Rows

seeds = st.integers(0, 2**32)
RULES = (None, PerKey(), PerKey(max_running=2, when_dead=WhenDead.STOP))


class KeyedWorld(World):
    """A world whose tasks have keys, on shards that know the rules of the keys."""

    def live(self, steps: int) -> None:
        """Run random operations."""
        for step in range(steps):
            does = [self._create_keyed, self._create_keyed, self._create_unique]
            does += [self._put_rule, self._set_key, self._claim]
            does += [self._end, self._wait, self._requeue]
            self.random.choice(does)(str(step))

    def _create_keyed(self, name: str) -> None:
        tenant = self.random.choice(TENANTS)
        command = self.random.choice(["render", "Render", "scan"])
        key = f"key/{self.random.randrange(3)}"
        shard = shard_of_lane(tenant, command.lower(), key, self.shards)
        create = Create(
            id=with_shard(self._id(), shards=self.shards, wanted=shard),
            tenant=tenant,
            command=command,
            payload=f'"{name}"',
            priority=self.random.choice([0, 9]),
            max_attempts=1,
            key=key,
        )
        self._ask(shard, CreateKeyed(create))

    def _create_unique(self, name: str) -> None:
        tenant = self.random.choice(TENANTS)
        unique = UniqueTerms(
            key=f"unique/{self.random.randrange(2)}",
            on=self.random.choice(list(On)),
            throttle_ms=self.random.choice([0, 60_000]),
        )
        create = Create(
            tenant=tenant,
            command=self.random.choice(["render", "Render"]),
            payload=f'"{name}"',
            max_attempts=1,
            key=self.random.choice(["", "key/0"]),
            unique=unique,
        )
        shard = placed_by_key(create, tenant, self.shards)
        assert shard is not None
        task_id = with_shard(self._id(), shards=self.shards, wanted=shard)
        self._ask(shard, CreateUnique(replace(create, id=task_id)))

    def _set_key(self, name: str) -> None:
        tenant, key = self.random.choice(TENANTS), f"key/{self.random.randrange(5)}"
        queue = self.random.choice(["render", "scan"])
        own = self.random.choice([None, OwnRule(paused=True), OwnRule(max_running=3, weight=2)])
        shard = shard_of_lane(tenant, queue, key, self.shards)
        said = SetKey(request=name, tenant=tenant, queue=queue, key=key, own=own, by="op")
        self._ask(shard, said)

    def _put_rule(self, name: str) -> None:
        tenant = self.random.choice(TENANTS)
        queue, home = self.random.choice(["render", "scan"]), home_shard(tenant, self.shards)
        topic = PutTopic(request=name, tenant=tenant, name=queue, by="op")
        rule = self.random.choice(RULES)
        self._ask(home, PutFlow(topic=topic, per_key=rule, shards=self.shards))
        stands = self.views[home].policy(tenant, queue).topic
        assert stands is not None
        for shard in range(self.shards):
            if stands.rule_seq and self.random.random() < 0.8:  # Another one hears of it later.
                self._ask(shard, SetFlow(rule_on(stands, shard)))


def restored(world: World, shards: int, home: Path, *, forget_keys: bool = False) -> list[Rows]:
    """Return the rows of a cluster that is made from a backup of the world."""
    place = BackupDirectory(home / "backups")
    source = RestoreSource(place=place, manifest=back_up(world, place, home))
    wanted = Wanted(cluster_id="new", shards=shards, forget_keys=forget_keys)
    restore([source], wanted, into=home / "data", node_id="a")
    return [all_rows(home / "data" / f"shard-{shard}") for shard in range(shards)]


def tasks_in(rows: Rows) -> list[Task]:
    """Return the tasks of a shard."""
    return [
        records.decode_task(value)
        for key, value in rows.items()
        if keyspace.family(key) is Family.TASK
    ]


def items_in(rows: Rows) -> list[object]:
    """Return the items of a shard."""
    return [
        records.decode_item(value)
        for key, value in rows.items()
        if keyspace.family(key) is Family.ITEM
    ]


def test_each_shard_has_the_rows_of_its_keys_and_every_rule(tmp_path: Path) -> None:
    """Restored to any divisor of the number of shards, with all tasks as they were."""

    @settings(max_examples=15, deadline=None)
    @given(seeds, st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1), (6, 3)]))
    def check(seed: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = KeyedWorld(before, seed)
            world.live(60)
            found = restored(world, after, Path(home))
            tasks = {task.id: task for rows in found for task in tasks_in(rows)}
            rules = {
                (topic.tenant, topic.id): topic.per_key
                for view in world.views
                for topic in view.items.values()
                if isinstance(topic, Topic) and topic.per_key is not None
            }

            own = {
                (rule.tenant, rule.id): rule
                for view in world.views
                for rule in view.items.values()
                if isinstance(rule, KeyRule)
            }
            kept_own = {
                (rule.tenant, rule.id): (rule, shard)
                for shard, rows in enumerate(found)
                for rule in items_in(rows)
                if isinstance(rule, KeyRule)
            }

            assert world.tasks() == tasks
            assert kept_own == {
                name: (rule, shard_of_lane(rule.tenant, rule.queue, rule.key, after))
                for name, rule in own.items()
            }
            for shard, rows in enumerate(found):
                counted = {
                    name: Lane(tenant=rule.tenant, id=rule.id, key=rule.key, own=rule.own)
                    for name, (rule, at) in kept_own.items()
                    if at == shard
                }
                tallies = Counter(tenant for tenant, _ in counted)
                holders: dict[tuple[str, str], Holder] = {}
                for task in tasks_in(rows):
                    lanes.count(counted, task)
                    uniques.count(holders, task)
                items = items_in(rows)
                kept = {(each.tenant, each.id): each for each in items if isinstance(each, Lane)}
                flows = [each for each in items if isinstance(each, Flow)]
                kept_keys = [each for each in items if isinstance(each, Holder)]

                assert holders == {(each.tenant, each.id): each for each in kept_keys}
                assert all(each.task_id for each in kept_keys)
                assert all(
                    shard_of(each.task_id, after) == shard
                    for each in items
                    if isinstance(each, Merged)
                )

                assert counted == kept
                assert tallies == {
                    each.tenant: each.count
                    for each in items
                    if isinstance(each, Tally) and each.id == KEY_RULES
                }
                waiting = {(each.tenant, each.queue): None for each in kept.values() if each.held}
                assert waiting | rules == {(each.tenant, each.id): each.per_key for each in flows}
                assert all(each.expires_ms for each in flows)
                assert [] == [each for each in items if isinstance(each, Relay)]

    check()


def test_a_task_that_waits_for_a_rule_that_has_ended_goes_on(tmp_path: Path) -> None:
    """The shard is copied before it has let all of them go, and no topic has the rule."""
    world = KeyedWorld(1, 1)
    topic = PutTopic(request="t", tenant="acme", name="render", by="op")
    view = world.views[0]
    view.advance(decide(view, PutFlow(topic=topic, per_key=PerKey(), shards=1), FOR_ONE).changes)
    for task_id in ("a", "b", "c"):
        create = Create(id=task_id, tenant="acme", command="render", payload="{}", key="k")
        view.advance(decide(view, CreateKeyed(create), FOR_ONE).changes)
    ended = PutFlow(topic=replace(topic, request="u"), per_key=None, shards=1)
    view.advance(decide(view, ended, FOR_ONE).changes)
    [rows] = restored(world, 1, tmp_path)
    view.items = {name: item for name, item in view.items.items() if name[0] is not ItemKind.FLOW}
    [flow] = [each for each in items_in(rows) if isinstance(each, Flow)]
    view.advance([ItemChange(before=None, after=flow)])
    view.advance(decide(view, Advance(count=9), FOR_ONE).changes)

    assert 2 == sum(task.state is State.HELD for task in tasks_in(rows))
    assert {State.READY} == {task.state for task in world.tasks().values()}


@pytest.mark.parametrize(("deleted", "late"), [(False, False), (True, False), (False, True)])
def test_a_limited_queue_stays_on_its_shard(tmp_path: Path, deleted: bool, late: bool) -> None:
    """With its rule, or, when its topic is gone, so that its keys are looked for where they are.

    So does a task that came to its queue's shard before the rule did.
    """
    world = KeyedWorld(4 if late else 3, 4)
    rules = LifetimeRules(shards=4)
    home, place = home_shard("acme", 4), shard_of_queue("acme", "limited", 4)
    topic = PutTopic(request="t", tenant="acme", name="limited", by="op")
    limit = PerQueue(max_running=2)
    put = PutFlow(topic=topic, per_key=None, shards=4, per_queue=limit)
    world.views[home].advance(decide(world.views[home], put, rules).changes)
    stands = world.views[home].policy("acme", "limited").topic
    assert stands is not None
    view = world.views[place]
    task_id = with_shard("feedfeed", shards=4, wanted=place)
    create = Create(id=task_id, tenant="acme", command="limited", payload="{}", idempotency_key="k")
    asked: list[Operation] = [replace(create, fingerprint="f")]
    if place != home:
        asked.insert(1 if late else 0, SetFlow(rule_on(stands, place)))
    for operation in asked:
        view.advance(decide(view, operation, rules).changes)
    if deleted:
        gone = DeleteTopic(request="d", tenant="acme", name="limited", by="op", shards=4)
        world.views[home].advance(decide(world.views[home], gone, rules).changes)
    found = restored(world, 4, tmp_path)
    flows = [
        each
        for rows in found
        for each in items_in(rows)
        if isinstance(each, Flow) and each.id == "limited"
    ]

    [task] = tasks_in(found[place])

    assert late == (task.more is None)
    assert (task_id, "k") == (task.id, task.idempotency_key)
    assert keyspace.idempotency("acme", "k") in found[place]
    assert 4 == len(flows)
    assert {(None if deleted else limit, "limited")} == {
        (each.per_queue, each.pinned) for each in flows
    }


def test_a_shared_limit_is_in_force_after_a_restore(tmp_path: Path) -> None:
    """On every shard, with the queue that names it, whose tasks are where they were."""
    world = KeyedWorld(3, 4)
    rules = LifetimeRules(shards=4)
    home, place = home_shard("acme", 4), shard_of_queue("acme", "@api", 4)
    rule = PerQueue(max_running=2)
    put = PutLimit(request="l", tenant="acme", name="api", by="op", rule=rule, shards=4)
    topic = PutTopic(request="t", tenant="acme", name="shared", by="op")
    flow = PutFlow(topic=topic, per_key=None, shards=4, limit="api")
    for operation in (put, flow):
        world.views[home].advance(decide(world.views[home], operation, rules).changes)
    stands = world.views[home].policy("acme", "shared").topic
    assert stands is not None
    view = world.views[place]
    if place != home:
        view.advance(decide(view, SetFlow(rule_on(stands, place)), rules).changes)
    task_id = with_shard("feedfeed", shards=4, wanted=place)
    create = Create(id=task_id, tenant="acme", command="shared", payload="{}")
    view.advance(decide(view, create, rules).changes)
    for shards in (4, 2):
        found = restored(world, shards, tmp_path / str(shards))
        flows = [
            [each for each in items_in(rows) if isinstance(each, Flow) and each.tenant == "acme"]
            for rows in found
        ]
        at = shard_of_queue("acme", "@api", shards)

        assert [task_id] == [task.id for task in tasks_in(found[at])]
        for each in flows:
            named = {flow.id: flow for flow in each}
            assert rule == named["@api"].per_queue
            assert ("@api", "api") == (named["shared"].pinned, named["shared"].limit)


def test_more_shards_take_no_key_whose_tasks_would_be_apart(tmp_path: Path) -> None:
    """They are refused, or left out if that is wanted; then nothing holds their tasks."""
    world = KeyedWorld(2, 1)
    world.live(80)
    apart = {task.id for task in world.tasks().values() if is_apart(task, 3)}
    with pytest.raises(BackupFailed, match=f"^{len(apart)} tasks with keys cannot"):
        restored(world, 3, tmp_path / "refused")
    found = restored(world, 3, tmp_path / "forgotten", forget_keys=True)
    tasks = {task.id: task for rows in found for task in tasks_in(rows)}

    assert apart
    assert apart == {
        each for each in tasks if not lane_of(tasks[each]) and not unique_key(tasks[each])
    }
    assert State.HELD not in {tasks[each].state for each in apart}
