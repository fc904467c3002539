"""Imports: everything arrives, is counted exactly, and arrives only once."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.tenant_reader import TenantReader
from codeq_cluster.broker.requests.importer import Importer
from codeq_cluster.broker.requests.producer import fingerprint_of
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec.arrivals import Arrivals, decode_arrivals, encode_arrivals
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.changes import Decision
from codeq_cluster.core.decide import decide
from codeq_cluster.core.dependencies import CreateDependent, CreateGraph, Dependencies, Need, Node
from codeq_cluster.core.faults import fault, new_item_fault
from codeq_cluster.core.importing import ARRIVALS_MAX
from codeq_cluster.core.items import Delivery
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import Advance, Import, Operation
from codeq_cluster.core.outcomes import Imported, Outcome
from codeq_cluster.core.placing import is_apart
from codeq_cluster.core.sharding import home_shard, shard_of, shard_of_lane, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from tests.fakes.dict_view import DictView

from .backup_worlds import NOW_MS, RULES, TENANTS, World, back_up
from .rows import Rows, counters_in, recomputed, write

seeds = st.integers(0, 2**32)
examples = settings(max_examples=20, deadline=None)


class Source(World):
    """A cluster whose workers also say how far they are, and leave something to the next ones."""

    def _end(self, name: str) -> None:
        self._report(name)
        super()._end(name)


class Target(World):
    """A cluster with a history of its own, whose rows are kept as its leaders write them."""

    def __init__(self, shards: int, seed: int) -> None:
        super().__init__(shards, seed)
        self.kept: list[Rows] = []

    def settle(self) -> None:
        """Start to record the rows."""
        self.kept = [recomputed(view) for view in self.views]

    def decide(self, shard: int, operation: Operation) -> Decision:
        """Let a shard decide, and record the rows that it writes."""
        decision = decide(self.views[shard], operation, RULES)
        rows = self.kept[shard]
        write(rows, mutations(decision.changes, counters_in(rows)))
        self.views[shard].advance(decision.changes)
        return decision

    def take(self, arrivals: Arrivals, tenant: str, **flags: bool) -> list[Decision]:
        """Import as one request does."""
        asked = Import(
            request="import", tenant=tenant, by="op", source="b", shards=self.shards, **flags
        )
        home = home_shard(tenant, self.shards)
        decisions = [self.decide(home, replace(asked, items=arrivals.items))]
        for shard in range(self.shards):
            own = [each for each in arrivals.tasks if shard_of(each.task.id, self.shards) == shard]
            for start in range(0, len(own), ARRIVALS_MAX):
                part = tuple(map(_keyed, own[start : start + ARRIVALS_MAX]))
                decisions.append(self.decide(shard, replace(asked, tasks=part)))
        return decisions

    def assert_exact(self) -> None:
        """Assert that the rows are exactly those of the tasks and items, recounted."""
        for view, rows in zip(self.views, self.kept, strict=True):
            assert recomputed(view) == rows


def _keyed(arrival: Arrival) -> Arrival:
    task = arrival.task
    return replace(arrival, fingerprint=fingerprint_of(task.command, arrival.payload))


def carried(world: World, home: Path, tenant: str) -> Arrivals:
    """Return a tenant's tasks and items from a backup of the world, sent over the wire."""
    place = BackupDirectory(home / "backups")
    tenant_reader = TenantReader(place=place, manifest=back_up(world, place, home), tenant=tenant)
    parts = tenant_reader.manifest.parts
    arrivals = Arrivals(
        tuple(task for part in parts for task in tenant_reader.tasks(part)),
        tuple(item for part in parts for item in tenant_reader.governing(part)),
    )
    assert [] == [fault(each) for each in arrivals.tasks if fault(each)]
    assert [] == [new_item_fault(each) for each in arrivals.items if new_item_fault(each)]
    assert arrivals == decode_arrivals(encode_arrivals(arrivals))
    return arrivals


def outcome_of(decisions: list[Decision]) -> Counter[str]:
    """Return the sum of the outcomes."""
    sums: Counter[str] = Counter()
    for decision in decisions:
        assert isinstance(decision.outcome, Imported)
        for name, value in asdict(decision.outcome).items():
            sums[name] += value if isinstance(value, int) else len(value)
    return sums


def own_tasks(view: DictView, tenant: str) -> dict[str, Task]:
    """Return a tenant's tasks by id."""
    return {task.id: task for task in view.tasks.values() if task.tenant == tenant}


def callbacks(world: World, tenant: str) -> dict[str, Delivery]:
    """Return a tenant's callbacks whose tasks exist."""
    return {
        item.id: item
        for view in world.views
        for (kind, owner, _), item in view.items.items()
        if kind is ItemKind.DELIVERY and owner == tenant and isinstance(item, Delivery)
        if item.task_id in view.tasks
    }


def test_every_count_is_exact_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    """The target may have any history and any number of shards."""

    @examples
    @given(seeds, st.integers(0, 80), st.sampled_from([(1, 1), (4, 2), (2, 1), (2, 3), (1, 4)]))
    def check(seed: int, length: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        tenant = TENANTS[seed % 3]
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            source, target = Source(before, seed), Target(after, seed + 1)
            source.live(length)
            target.live(length // 2)
            target.settle()
            arrivals = carried(source, Path(home), tenant)
            had = {t.id: t for view in target.views for t in own_tasks(view, tenant).values()}
            done = outcome_of(target.take(arrivals, tenant, forget_keys=True))
            target.assert_exact()
            again = target.take(arrivals, tenant, forget_keys=True)
            target.assert_exact()

            came = {each.task.id: each.task for each in arrivals.tasks}
            assert {t for view in source.views for t in own_tasks(view, tenant)} == set(came)
            found = {t.id: t for view in target.views for t in own_tasks(view, tenant).values()}
            assert len(came) == done["imported"] + done["ended"]
            assert len(had) + done["imported"] == len(found)
            assert had == {task_id: found[task_id] for task_id in had}
            for task_id in set(found) - set(had):
                expected = came[task_id]
                if not found[task_id].idempotency_key:
                    expected = replace(expected, idempotency_key="")
                assert replace(expected, seq=0) == replace(found[task_id], seq=0)
                assert found[task_id].seq <= expected.seq or not expected.seq
            assert (
                done["forgotten_keys"]
                + sum(bool(found[each].idempotency_key) for each in set(found) & set(came))
                + sum(bool(came[each].idempotency_key) for each in set(came) - set(found))
            ) == sum(bool(task.idempotency_key) for task in came.values())
            there, here = callbacks(source, tenant), callbacks(target, tenant)
            assert {name: here[name] for name in here if here[name].task_id in came} == {
                name: there[name] for name in there if there[name].task_id in found
            }
            assert all(decision.changes == () for decision in again)
            assert done["imported"] == outcome_of(again)["present"]

    check()


def test_imported_tasks_behave_like_local_ones(tmp_path: Path) -> None:
    """Delays end, leases expire and ended tasks are deleted, at their original times."""

    @examples
    @given(seeds, st.integers(1, 80), st.sampled_from([(1, 1), (4, 2)]))
    def check(seed: int, length: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        tenant = TENANTS[seed % 3]
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            source, target = Source(before, seed), Target(after, seed)
            source.live(length)
            target.settle()
            arrivals = carried(source, Path(home), tenant)
            now_ms = source.views[0].now_ms
            for view in target.views:
                view.now_ms = now_ms
            target.take(arrivals, tenant)
            for span_ms in (1, 1_000, 60_000, 3_600_000, RULES.dlq_retention_ms):
                now_ms += span_ms
                for shard, view in enumerate(target.views):
                    view.now_ms = now_ms
                    while target.decide(shard, Advance(count=50)).changes:
                        pass
                target.assert_exact()
            left = [task for view in target.views for task in view.tasks.values()]

            assert {task.state for task in left} <= {State.READY, State.DEAD, State.DELAYED}

    check()


def test_a_dry_run_predicts_the_import_and_changes_nothing(tmp_path: Path) -> None:
    """The dry run's answer equals that of the import that follows."""
    source, target = World(4, seed=3), Target(2, seed=4)
    source.live(120)
    target.live(40)
    target.settle()
    arrivals = carried(source, tmp_path, "acme")
    told = target.take(arrivals, "acme", dry_run=True)
    assert all(decision.changes == () for decision in told)
    target.assert_exact()

    assert outcome_of(target.take(arrivals, "acme")) == outcome_of(told)
    assert outcome_of(told)["imported"] > 0


class Receiving:
    """The shards of a cluster as its importer sees them."""

    def __init__(self, shards: int) -> None:
        self.count = shards
        self.views = [DictView(now_ms=NOW_MS) for _ in range(shards)]

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Decide the operations in order."""
        del deadline
        rules = dataclasses.replace(RULES, shards=self.count)
        decisions = []
        for operation in operations:
            decisions.append(decide(self.views[shard], operation, rules))
            self.views[shard].advance(decisions[-1].changes)
        return [decision.outcome for decision in decisions]


def test_the_tasks_of_a_tenant_with_another_name_wait_for_each_other_there(tmp_path: Path) -> None:
    """Keys place a task anew under another name, also one that others wait for."""
    world = World(4, seed=5)
    rules = dataclasses.replace(RULES, shards=world.shards)

    def ask(operation: Create | CreateKeyed | CreateDependent, create: Create) -> None:
        view = world.views[shard_of(create.id, world.shards)]
        view.advance(decide(view, operation, rules).changes)

    def create(**fields: str) -> Create:
        new = Create(tenant="acme", command="render", payload="1", **fields)
        while not new.id or is_apart(new, world.shards):
            new = replace(new, id=world._id())
        return new

    parents = [
        *(create(idempotency_key=f"once {n}", fingerprint="f") for n in range(4)),
        *(create(key=f"customer {n}") for n in range(4)),
        create(),
    ]
    for parent in parents:
        ask(CreateKeyed(parent) if parent.key else parent, parent)
    for _ in range(6):
        needs = tuple(Need(parent=parent.id, name=parent.id) for parent in parents)
        dependent = create()
        ask(CreateDependent(Node(dependent, needs)), dependent)
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(world, place, tmp_path)
    receiving = Receiving(2)
    known = TenantReader(place=place, manifest=manifest, tenant="acme")
    found = known.placed_parents(tenant="zeta", shards=receiving.count)
    known = dataclasses.replace(known, parents=found)
    arrivals = Arrivals(tuple(task for part in manifest.parts for task in known.tasks(part)))
    taken = Importer(receiving).take(
        Caller("zeta", "op", deadline=1.0),
        arrivals,
        source="b",
        record="i",
        forget_keys=False,
        dry_run=False,
    )
    outcome = asyncio.run(taken)

    assert len(parents) + 6 == outcome.imported == outcome.renamed
    here = {task.id for view in receiving.views for task in view.tasks.values()}
    rows = [
        item
        for view in receiving.views
        for item in view.items.values()
        if isinstance(item, Dependencies)
    ]
    assert 6 == len(rows)
    for row in rows:
        assert len(parents) == len({each.parent for each in row.of})
        assert {each.parent for each in row.of} <= here


def test_tasks_that_were_on_their_way_know_their_parents_under_another_name(tmp_path: Path) -> None:
    """Whether the parent or the dependent was, when the shard that made both was copied."""
    world = World(2, seed=1)
    rules = dataclasses.replace(RULES, shards=world.shards)

    def node(name: str, shard: int, *parents: str) -> Node:
        keys = (f"{name} {number}" for number in range(99))
        key = next(each for each in keys if shard_of_lane("acme", "render", each, 2) == shard)
        task_id = with_shard(world._id(), shards=2, wanted=shard)
        new = Create(id=task_id, tenant="acme", command="render", payload="1", key=key)
        return Node(new, tuple(Need(parent=each, name=each) for each in parents))

    parents = [node("parent", shard) for shard in range(2)]
    for parent, shard in zip(parents, (1, 0), strict=True):
        graph = CreateGraph(
            tenant="acme", shard=0, nodes=(parent, node("child", shard, parent.create.id))
        )
        world.views[0].advance(decide(world.views[0], graph, rules).changes)
    place = BackupDirectory(tmp_path / "backups")
    known = TenantReader(place=place, manifest=back_up(world, place, tmp_path), tenant="acme")
    found = known.placed_parents(tenant="zeta", shards=3)
    known = dataclasses.replace(known, parents=found)
    arrivals = [*known.on_their_way()]
    for part in known.manifest.parts:
        arrivals += known.tasks(part)
    rows = [each.dependencies for each in arrivals if each.dependencies is not None]

    assert {parent.create.id for parent in parents} == found.keys()
    assert sorted(found.values()) == sorted(row.of[0].parent for row in rows)
