"""Restored schedules are those of the backup, on the shards of their names, and paused."""

from __future__ import annotations

import dataclasses
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.decide import decide
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.schedules import (
    PAUSED_BY_RESTORE,
    DeleteSchedule,
    Due,
    Fire,
    Overlap,
    PauseSchedule,
    Plan,
    PutSchedule,
    Schedule,
    Timing,
    schedule_shard,
)
from codeq_cluster.core.tally import Tally
from codeq_cluster.storage.stored_shard import StoredShard

from .backup_worlds import NOW_MS, RULES, TENANTS, Rows, World, all_rows, back_up

STEP_MS = 1000


class ScheduledWorld(World):
    """A cluster with schedules that fire, and whose runs end."""

    def live(self, steps: int) -> None:
        """Run random operations."""
        for step in range(steps):
            self.random.choice(
                [self._put, self._fire, self._fire, self._claim, self._end, self._change]
            )(str(step))

    def schedules(self) -> list[Schedule]:
        """Return all schedules."""
        items = (item for view in self.views for item in view.items.values())
        return [item for item in items if isinstance(item, Schedule)]

    def _put(self, name: str) -> None:
        schedule_id = self.random.choice(["one", "two", "three", "four"])
        operation = PutSchedule(
            request=name,
            tenant=self.random.choice(TENANTS),
            id=schedule_id,
            by="op",
            plan=Plan(
                timing=Timing(every="1s"),
                task=Create(command="render", payload="{}"),
                overlap=self.random.choice(list(Overlap)),
                note=self.random.choice("ab"),
            ),
            at_ms=NOW_MS,
            next_ms=NOW_MS + STEP_MS,
            zone_rules="",
        )
        self._ask(schedule_shard(operation.tenant, schedule_id, self.shards), operation)

    def _fire(self, _: str) -> None:
        for schedule in self.random.sample(known := self.schedules(), min(2, len(known))):
            at_ms = schedule.next_ms
            fire = Fire(
                tenant=schedule.tenant,
                id=schedule.id,
                generation=schedule.generation,
                version=schedule.version,
                from_ms=schedule.done_ms,
                runs=(Due(at_ms),),
                missed=0,
                done_ms=at_ms,
                next_ms=at_ms + STEP_MS,
                zone_rules="",
            )
            self._ask(schedule_shard(schedule.tenant, schedule.id, self.shards), fire)

    def _change(self, name: str) -> None:
        for schedule in self.random.sample(known := self.schedules(), min(1, len(known))):
            change = self.random.choice([PauseSchedule, DeleteSchedule])
            operation = change(request=name, tenant=schedule.tenant, id=schedule.id, by="op")
            self._ask(schedule_shard(schedule.tenant, schedule.id, self.shards), operation)

    def _ask(self, shard: int, operation: Operation) -> None:
        view = self.views[shard]
        rules = dataclasses.replace(RULES, shards=self.shards)
        view.advance(decide(view, operation, rules).changes)


def test_schedules_come_back_paused_or_running_on_the_shards_of_their_names(
    tmp_path: Path,
) -> None:
    """With any number of shards; how many there are is counted again."""
    seen: Counter[str] = Counter()

    @settings(max_examples=15, deadline=None)
    @given(
        st.integers(0, 2**32),
        st.sampled_from([(1, 1), (4, 2), (2, 2), (2, 3), (1, 4)]),
        st.booleans(),
    )
    def check(seed: int, numbers: tuple[int, int], run: bool) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = ScheduledWorld(before, seed)
            world.live(40)
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(place=place, manifest=back_up(world, place, Path(home)))
            wanted = Wanted(cluster_id="new", shards=after, run_schedules=run)
            into = Path(home, "data")
            restore([source], wanted, into=into, node_id="a")
            tallies: Counter[tuple[int, str]] = Counter()
            found: list[Schedule] = []
            for shard in range(after):
                rows = all_rows(into / f"shard-{shard}")
                for item in _items(rows):
                    if isinstance(item, Tally):
                        tallies[shard, item.tenant] += item.count
                    if isinstance(item, Schedule):
                        found.append(item)
                        assert shard == schedule_shard(item.tenant, item.id, after)
                        fires = item.fires_ms > 0
                        assert fires == any(
                            keyspace.family(key) is Family.FIRE
                            and keyspace.item_parts(key)[1:] == (item.tenant, item.id)
                            for key in rows
                        )
                        seen["fires" if fires else "rests"] += 1

            expected = [
                schedule
                if run or schedule.paused_ms
                else replace(schedule, paused_ms=schedule.updated_ms, paused_by=PAUSED_BY_RESTORE)
                for schedule in world.schedules()
            ]
            assert sorted(expected, key=_name) == sorted(found, key=_name)
            assert tallies == Counter(
                (schedule_shard(each.tenant, each.id, after), each.tenant) for each in found
            )

    check()
    assert seen["fires"] > 0 < seen["rests"]


def _items(rows: Rows) -> list[object]:
    prefix = keyspace.ITEM_PREFIX
    return [records.decode_item(value) for key, value in rows.items() if key.startswith(prefix)]


def _name(schedule: Schedule) -> tuple[str, str]:
    return schedule.tenant, schedule.id


def test_nodes_that_let_schedules_run_are_not_taken_for_those_that_pause_them(
    tmp_path: Path,
) -> None:
    """Replicas compare digests alone."""
    world = ScheduledWorld(1, 1)
    world.live(40)
    place = BackupDirectory(tmp_path / "backup")
    source = RestoreSource(place=place, manifest=back_up(world, place, tmp_path))
    digests: list[bytes] = []
    for number, run in enumerate((False, False, True)):
        into = tmp_path / f"n{number}"
        wanted = Wanted(cluster_id="new", shards=1, run_schedules=run)
        restore([source], wanted, into=into, node_id=into.name)
        with StoredShard(into / "shard-0") as shard:
            digests.append(shard.digest)

    assert digests[0] == digests[1] != digests[2]
