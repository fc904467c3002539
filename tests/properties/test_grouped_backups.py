"""Restored groups end: whichever shard was copied first, none waits for ever or ends twice."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.core.groups import (
    AddMembers,
    CancelGroup,
    CreateGroup,
    Group,
    Member,
    SealGroup,
    group_shard,
)
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Cancel
from codeq_cluster.core.tally import Tally
from tests.fakes.dict_view import DictView

from .backup_worlds import TENANTS, all_rows, back_up
from .copied_worlds import CopiedWorld

STEPS_MAX = 500
NAMES = ("a", "b", "c", "d")


class GroupedWorld(CopiedWorld):
    """A cluster with groups."""

    def live(self, steps: int) -> None:
        """Run random operations."""
        for _ in range(steps):
            name = f"{self.random.getrandbits(64):x}"
            chosen = [self._begin, self._add, self._seal, self._claim, self._end, self.send]
            self.random.choice(chosen)(name)

    def finish(self) -> None:
        """Seal and cancel every group; let everything arrive, and work off what is left."""
        for view in self.views:
            for item in [*view.items.values()]:
                if isinstance(item, Group):
                    home = group_shard(item.tenant, item.id, self.shards)
                    self.ask(home, SealGroup(tenant=item.tenant, id=item.id))
                    self.ask(home, CancelGroup(tenant=item.tenant, id=item.id))
        for _ in range(STEPS_MAX):
            for shard, view in enumerate(self.views):
                view.now_ms += 1
                self.ask(shard, Advance(count=100))
                self._work(shard, view)
            if not self.send("", is_heard=True) and not any(view.lapsed(1) for view in self.views):
                return
        raise AssertionError("the shards come to no rest")

    def _work(self, shard: int, view: DictView) -> None:
        """End tasks that a cancel has not met: on another number of shards it may overtake them."""
        for task in [*view.tasks.values()]:
            if not task.state.terminal and task.more is not None and task.more.member is not None:
                self.ask(shard, Cancel(request=f"w{task.id}", id=task.id, tenant=task.tenant))

    def _begin(self, name: str) -> None:
        group = self.random.choice(NAMES)
        tenant = self.random.choice(TENANTS)
        operation = CreateGroup(
            tenant=tenant,
            id=group,
            digest="",
            then=Create(command="report", payload="{}"),
            tasks=self._tasks(name),
            seal=self.random.random() < 0.3,
        )
        self.ask(group_shard(tenant, group, self.shards), operation)

    def _add(self, name: str) -> None:
        for tenant in TENANTS:
            group = self.random.choice(NAMES)
            add = AddMembers(tenant=tenant, id=group, name=name, tasks=self._tasks(name))
            self.ask(group_shard(tenant, group, self.shards), add)

    def _seal(self, name: str) -> None:
        del name
        tenant, group = self.random.choice(TENANTS), self.random.choice(NAMES)
        self.ask(group_shard(tenant, group, self.shards), SealGroup(tenant=tenant, id=group))

    def _tasks(self, name: str) -> tuple[Create, ...]:
        keys = ["", f"{name}-1", f"{name}-2", f"key {self.random.randrange(3)}"]
        return tuple(
            Create(
                command="render", payload="{}", idempotency_key=key, fingerprint="f" if key else ""
            )
            for key in keys
        )


def _check_counts(views: list[DictView]) -> None:
    """Check every group against its rows, and every tally against the open groups."""
    for view in views:
        rows: dict[tuple[str, str], Counter[str]] = {}
        tallies: Counter[str] = Counter()
        for item in view.items.values():
            if isinstance(item, Member):
                rows.setdefault((item.tenant, item.group), Counter())[item.status] += 1
            if isinstance(item, Tally):
                tallies[item.tenant] += item.count
        for item in view.items.values():
            if isinstance(item, Group):
                found = rows.get((item.tenant, item.id), Counter())
                assert (found.total(), found[""]) == (item.rows, item.live)
                tallies[item.tenant] -= not item.ended_ms
        assert not any(tallies.values())


def test_a_restored_group_ends_once(tmp_path: Path) -> None:
    """With the number of shards of the backup, a divisor of it or another one."""
    seen: Counter[str] = Counter()

    @settings(max_examples=15, deadline=None)
    @given(st.integers(0, 2**32), st.sampled_from([(1, 1), (2, 2), (4, 4), (4, 2), (2, 3)]))
    def check(seed: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = GroupedWorld(before, seed)
            world.live_through_a_backup(25)
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(place=place, manifest=back_up(world, place, Path(home)))
            into = Path(home, "data")
            wanted = Wanted(cluster_id="new", shards=after, forget_keys=True)
            restore([source], wanted, into=into, node_id="a")
            rows = [all_rows(into / f"shard-{shard}") for shard in range(after)]
            grown = GroupedWorld.grown(rows, seed)
            for shard, view in enumerate(grown.views):
                for item in view.items.values():
                    if isinstance(item, Group | Member):
                        name = item.id if isinstance(item, Group) else item.group
                        assert shard == group_shard(item.tenant, name, after)
                        seen["restored"] += 1
            _check_counts(grown.views)
            grown.finish()
            _check_counts(grown.views)
            for view in grown.views:
                for item in view.items.values():
                    if isinstance(item, Group):
                        assert item.ended_ms, item
                        assert 0 == item.live
                        completed = [
                            task.id
                            for task in view.tasks.values()
                            if task.more is not None
                            and task.more.completes is not None
                            and (task.tenant, task.more.completes.id) == (item.tenant, item.id)
                        ]
                        assert [item.then_id] == completed
                        seen["ended"] += 1

    check()
    assert seen["ended"] > 0 < seen["restored"]
