"""Restored graphs end: whichever shard was copied first, no task waits for ever or starts early."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.core.changes import Change, ItemChange
from codeq_cluster.core.courses import status_of
from codeq_cluster.core.dependencies import (
    DEPENDENCY_UNKNOWN,
    SENT_GRACE_MS,
    CreateDependent,
    CreateGraph,
    Dependencies,
    Edge,
    Need,
    Node,
    OnDead,
    RunIf,
    Terms,
    Verdict,
)
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Claim, Delete, Submit
from codeq_cluster.core.outcomes import Claimed
from codeq_cluster.core.placing import placed_by_key
from codeq_cluster.core.relays import Relay, RelayedTask
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import COMPLETED, FAILED, State

from .backup_worlds import RULES, TENANTS, all_rows, back_up
from .copied_worlds import CopiedWorld

STEPS_MAX = 300
STEP_MS = 600_000


class GraphedWorld(CopiedWorld):
    """A cluster with tasks that wait for each other.

    Attributes:
        needs: What each dependent waits for, as it was asked.
        seen: How each task has ended, by its id.
        unknown: Those that have ended because a parent is unknown.
    """

    # So that no parent is deleted before those on their way to it ask for it.
    rules: ClassVar[LifetimeRules] = dataclasses.replace(RULES, retention_ms=90 * SENT_GRACE_MS)

    def __init__(self, shards: int, seed: int) -> None:
        super().__init__(shards, seed)
        self.needs: dict[str, tuple[Need, ...]] = {}
        self.seen: defaultdict[str, set[str]] = defaultdict(set)
        self.unknown: set[str] = set()

    def live(self, steps: int) -> None:
        """Run random operations."""
        for _ in range(steps):
            name = f"{self.random.getrandbits(64):x}"
            chosen = [self._depend, self._graph, self._work, self._end, self._forget]
            self.random.choice([*chosen, self._requeue, self._wait, self.send])(name)

    def finish(self) -> None:
        """Let everything arrive days later, and work off whatever may run, dead letters too."""
        for view in self.views:
            view.now_ms += 5 * SENT_GRACE_MS
        for step in range(STEPS_MAX):
            for shard, view in enumerate(self.views):
                view.now_ms += STEP_MS
                self.ask(shard, Advance(count=100))
                while view.lapsed(1):
                    self.ask(shard, Advance(count=100))
            self._work(f"last{step}", everything=True)
            self._requeue(f"again{step}")
            if not self.send("", is_heard=True) and all(
                task.state.terminal and task.state is not State.DEAD
                for task in self.tasks().values()
            ):
                return
        raise AssertionError("the shards come to no rest")

    def note(self, changes: tuple[Change, ...]) -> None:
        """Note how tasks end."""
        for change in changes:
            if not isinstance(change, ItemChange) and change.result is not None:
                assert change.after is not None
                self.seen[change.after.id].add(status_of(change.after))
                if change.after.error.startswith(DEPENDENCY_UNKNOWN):
                    self.unknown.add(change.after.id)

    def _depend(self, _: str) -> None:
        """Create a task that waits for up to two others."""
        random, tenant = self.random, self.random.choice(TENANTS)
        others = sorted(id_ for id_, task in self.tasks().items() if task.tenant == tenant)
        parents = random.sample(others, min(len(others), random.randrange(3)))
        create = Create(id=self._id(), tenant=tenant, command="render", payload="1", max_attempts=2)
        needs = tuple(
            Need(
                parent=parent,
                name=parent,
                terms=Terms(run_if=random.choice([*RunIf]), on_dead=random.choice([*OnDead])),
            )
            for parent in parents
        )
        if needs:
            self.needs[create.id] = needs
        operation = CreateDependent(Node(create, needs)) if needs else create
        self.ask(shard_of(create.id, self.shards), operation)

    def _graph(self, name: str) -> None:
        """Create a chain of tasks, some with keys, which may be of other shards."""
        tenant, random = self.random.choice(TENANTS), self.random
        nodes: list[Node] = []
        for number in range(random.randrange(2, 5)):
            keys: dict[str, Any] = {random.choice(["key", "idempotency_key"]): f"{name}.{number}"}
            create = Create(
                id=self._id(),
                tenant=tenant,
                command="render",
                payload="1",
                max_attempts=2,
                fingerprint="f" if "idempotency_key" in keys else "",
                **keys,
            )
            placed = placed_by_key(create, tenant, self.shards)
            assert placed is not None
            task_id = with_shard(create.id, shards=self.shards, wanted=placed)
            parents = random.sample([each.create.id for each in nodes], min(number, 2))
            needs = tuple(Need(parent=parent, name=parent) for parent in parents)
            self.needs[task_id] = needs
            nodes.append(Node(replace(create, id=task_id), needs))
        shard = shard_of(random.choice(nodes).create.id, self.shards)
        random.shuffle(nodes)
        self.ask(shard, CreateGraph(tenant=tenant, shard=shard, nodes=tuple(nodes)))

    def _work(self, name: str, *, everything: bool = False) -> None:
        """Claim tasks, each of which may run; end some."""
        for shard in range(self.shards):
            for tenant in TENANTS:
                claim = Claim(
                    request=f"{name}.{shard}",
                    tenant=tenant,
                    worker="ann",
                    commands=("render",),
                    count=100 if everything else 2,
                    lease_ms=STEP_MS // 2,
                )
                claimed = self.ask(shard, claim)
                assert isinstance(claimed, Claimed)
                for task in claimed.tasks:
                    for need in self.needs.get(task.id, ()):
                        verdicts = map(need.terms.verdict, self.seen[need.parent])
                        assert Verdict.MET in verdicts, task
                    if everything or self.random.random() < 0.7:
                        done = everything or self.random.random() < 0.7
                        submit = Submit(
                            request=f"s{name}{task.id}",
                            id=task.id,
                            tenant=tenant,
                            worker="ann",
                            status=COMPLETED if done else FAILED,
                            body="1" if done else "",
                        )
                        self.ask(shard, submit)

    def on_their_way(self) -> set[str]:
        """Return the ids of the tasks that are on their way to another shard."""
        items = [item for view in self.views for item in view.items.values()]
        effects = [each.effect for each in items if isinstance(each, Relay) and each.sent_as]
        return {each.create.id for each in effects if isinstance(each, RelayedTask)}

    def _forget(self, name: str) -> None:
        """Delete a task that has ended, now and then."""
        ended = [task for task in self.tasks().values() if task.state.terminal]
        if ended and self.random.random() < 0.3:
            task = self.random.choice(sorted(ended, key=lambda task: task.id))
            delete = Delete(request=name, tenant=task.tenant, ids=(task.id,), by="op")
            self.ask(shard_of(task.id, self.shards), delete)


def test_a_restored_graph_goes_on(tmp_path: Path) -> None:
    """With the number of shards of the backup, a divisor of it or another one."""
    seen: Counter[str] = Counter()

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([(1, 1), (2, 2), (4, 4), (4, 2), (2, 3)]))
    def check(seed: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = GraphedWorld(before, seed)
            world.live_through_a_backup(25)
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(place=place, manifest=back_up(world, place, Path(home)))
            into = Path(home, "data")
            wanted = Wanted(cluster_id="new", shards=after, forget_keys=True)
            restore([source], wanted, into=into, node_id="a")
            rows = [all_rows(into / f"shard-{shard}") for shard in range(after)]
            grown = GraphedWorld.grown(rows, seed)
            grown.needs, grown.seen = world.needs, world.seen
            known = {*grown.tasks(), *grown.on_their_way()}
            seen["on their way"] += len(grown.on_their_way())
            seen["waiting"] += sum(task.waits_for_others for task in grown.tasks().values())
            grown.finish()

            for id_, task in grown.tasks().items():
                seen[task.state.name] += 1
                row = grown.views[shard_of(id_, after)].item(
                    ItemKind.DEPENDENCIES, task.tenant, id_
                )
                assert isinstance(row, Dependencies) == bool(world.needs.get(id_))
            for id_ in grown.unknown:
                assert not {need.parent for need in world.needs[id_]} <= known
            edges = [
                item
                for view in grown.views
                for item in view.items.values()
                if isinstance(item, Edge)
            ]
            assert {edge.parent for edge in edges} <= {*grown.tasks()}

    check()
    assert min(seen["waiting"], seen["on their way"], seen["DONE"], seen["FAILED"]) > 0
