"""Backup jobs: the facts that a backup states about its cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from codeq_cluster.backup.catalogue import chosen
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.job import BackupJobs, Progress, Stage
from codeq_cluster.broker.background import Background
from codeq_cluster.codec import keyspace, levels
from codeq_cluster.errors import NoLeader
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from tests.fakes.spilled_shard import put
from tests.properties.backup_worlds import NOW_MS, SETTINGS, World, store

T = TypeVar("T")


class Kept(Background):
    """A background that lets a test wait for its work."""

    def __init__(self) -> None:
        super().__init__()
        self.tasks: list[asyncio.Task[Any]] = []

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start the work and keep its task."""
        task = super().spawn(work)
        self.tasks.append(task)
        return task


class Shard:
    """A replica that is up to date, of a group with formats of a level.

    Attributes:
        wrong: The fault it reports from the step `wrong_from` on.
        steps: The calls it received.
    """

    def __init__(self, store: RocksShard, level: int) -> None:
        self.used = level
        self.wrong = self.wrong_from = ""
        self.steps: list[str] = []
        self._store = store

    def watched(self) -> Callable[[], str]:
        """Return the fault, once there is one."""
        self.steps.append("watched")
        return lambda: self.wrong if self.wrong_from in self.steps else ""

    @property
    def level(self) -> int:
        """Return the test's level."""
        self.steps.append("sealed")
        return self.used

    async def settled(self, *, timeout_s: float) -> None:
        """Wait for nothing."""
        assert timeout_s > 0
        self.steps.append("settled")

    def checkpoint(self, path: Path) -> None:
        """Make a checkpoint."""
        self._store.checkpoint(path)
        self.steps.append("cut")


@dataclass
class Clock:
    """Returns the test's time."""

    now_ms: int = NOW_MS


@dataclass
class Rig:
    """Backups of two shards, and their audit records."""

    place: BackupDirectory
    shards: list[Shard]
    background: Kept
    backups: BackupJobs
    recorded: list[Progress]
    clock: Clock

    def on_another_node(self, scratch: Path) -> Rig:
        """Return backups of the same shards into the same place."""
        return rig_of(self.place, self.shards, scratch)

    async def record(self, progress: Progress) -> None:
        """Record it."""
        self.recorded.append(progress)

    async def taken(self, record: Callable[[Progress], Awaitable[None]]) -> Progress:
        """Take a backup and return its outcome."""
        begun = self.backups.start(record)
        await asyncio.gather(*self.background.tasks)
        ended = await self.backups.progress(begun.id)
        assert ended is not None
        return ended


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Return a rig with formats of the first level."""
    world = World(2, seed=3)
    world.live(10)
    stores, shards = [], []
    for number, rows in enumerate(world.rows()):
        store(rows, tmp_path / str(number))
        opened = RocksShard(tmp_path / str(number), settings=SETTINGS, cache=new_cache(SETTINGS))
        stores.append(opened)
        shards.append(Shard(opened, 1))
    yield rig_of(BackupDirectory(tmp_path / "backups"), shards, tmp_path / "scratch")
    for each in stores:
        each.close()


def rig_of(place: BackupDirectory, shards: list[Shard], scratch: Path) -> Rig:
    """Return a rig that keeps one backup."""
    background, clock = Kept(), Clock()
    backups = BackupJobs(
        node_id="n1",
        cluster_id="c",
        place=place,
        shards=shards,
        scratch=scratch,
        keep=1,
        bytes_per_s=0,
        background=background,
        now_ms=lambda: clock.now_ms,
    )
    return Rig(place, shards, background, backups, [], clock)


@pytest.mark.parametrize(("used", "written"), [((1, 1), 1), ((1, 2), 2)])
async def test_a_backup_names_the_newest_formats_in_use(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, used: tuple[int, int], written: int
) -> None:
    """The level covers all shards."""
    monkeypatch.setattr(levels, "LEVEL", 2)
    for shard, level in zip(rig.shards, used, strict=True):
        shard.used = level
    done = await rig.taken(rig.record)

    assert not done.error
    assert [done.id] == [each.id for each in rig.recorded]
    assert written == chosen(rig.place).level


async def test_a_backup_that_cannot_be_put_on_record_is_not_taken(rig: Rig) -> None:
    """The error has the reason, and the next backup can succeed."""

    async def nobody_leads(progress: Progress) -> None:
        raise NoLeader(f"no leader for shard 0, where {progress.id} would be on record")

    failed = await rig.taken(nobody_leads)
    left = rig.place.backups()
    done = await rig.taken(rig.record)

    assert (
        Stage.FAILED,
        f"no leader for shard 0, where {failed.id} would be on record",
    ) == (failed.stage, failed.error)
    assert not left
    assert done.stage is Stage.DONE


async def test_a_backup_that_waits_in_vain_says_where_the_reason_is(rig: Rig) -> None:
    """For instance without a majority; which shard waits for what is for `/readyz` to say."""

    async def never(progress: Progress) -> None:
        raise TimeoutError(progress.id)

    failed = await rig.taken(never)

    assert Stage.FAILED is failed.stage
    assert "no leader" in failed.error
    assert "/readyz" in failed.error


@pytest.mark.parametrize(
    ("wrong_from", "steps"),
    [
        ("watched", ["watched"]),
        ("settled", ["watched", "settled"]),
        ("cut", ["watched", "settled", "cut"]),
        ("sealed", ["watched", "settled", "cut", "sealed"]),
    ],
)
async def test_nothing_is_kept_of_a_replica_that_proves_wrong_by_the_end(
    rig: Rig, wrong_from: str, steps: list[str]
) -> None:
    """The fault may show before, during or after the checkpoints; older backups stay."""
    older = await rig.taken(rig.record)
    wrong = rig.shards[1]
    wrong.steps.clear()
    wrong.wrong, wrong.wrong_from = "its state is not the majority's", wrong_from

    failed = await rig.taken(rig.record)
    left = list(rig.place.backups())
    did = list(wrong.steps)
    wrong.wrong = ""
    after = await rig.taken(rig.record)

    assert (
        Stage.FAILED,
        "shard 1: its state is not the majority's",
    ) == (failed.stage, failed.error)
    assert [older.id] == left
    assert steps == did
    assert after.stage is Stage.DONE
    assert (older.id,) == after.deleted


@pytest.mark.parametrize("ahead_ms", [0, 5000])
async def test_retention_keeps_the_backup_it_comes_with(rig: Rig, ahead_ms: int) -> None:
    """An older backup may sort later, as its clock was ahead or had the same millisecond."""
    rig.clock.now_ms = NOW_MS + ahead_ms
    before = [await rig.taken(rig.record) for _ in range(5)]
    rig.clock.now_ms = NOW_MS
    done = await rig.taken(rig.record)

    assert [(each.id,) for each in before[:-1]] == [each.deleted for each in before[1:]]
    assert (before[-1].id,) == done.deleted
    assert [done.id] == list(rig.place.backups())


async def test_retention_waits_while_the_newest_holds_what_cannot_be_read(rig: Rig) -> None:
    """The older backup, which has the record whole, stays until a backup has it again."""
    older = await rig.taken(rig.record)
    tasks = keyspace.prefix_range(keyspace.TASK_PREFIX)
    store = next(each._store for each in rig.shards if each._store.state.scan(*tasks, 1))
    [(key, record)] = store.state.scan(*tasks, 1)
    put(store, {key: b"\x07"})
    poisoned = await rig.taken(rig.record)
    kept = set(rig.place.backups())
    put(store, {key: record})
    whole = await rig.taken(rig.record)

    assert (Stage.DONE, ()) == (poisoned.stage, poisoned.deleted)
    assert {older.id, poisoned.id} == kept
    assert {older.id, poisoned.id} == set(whole.deleted)


async def test_backups_that_nodes_take_at_once_leave_each_other(rig: Rig, tmp_path: Path) -> None:
    """Each would otherwise delete one that is being verified; a later backup deletes both."""
    older = await rig.taken(rig.record)
    others = [rig.on_another_node(tmp_path / f"scratch-{n}") for n in range(2)]
    nodes = [rig, *others]
    at_once = await asyncio.gather(*(each.taken(each.record) for each in nodes))
    left = set(rig.place.backups())
    last = await rig.taken(rig.record)

    assert [(Stage.DONE, "")] * 3 == [(each.stage, each.error) for each in at_once]
    assert {each.id for each in at_once} == left
    assert {older.id} == {deleted for each in at_once for deleted in each.deleted}
    assert left == set(last.deleted)
