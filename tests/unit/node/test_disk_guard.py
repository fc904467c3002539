"""DiskGuard: replicas step back from a failing disk, and return to a healthy one."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from codeq_cluster.errors import DataDirectoryRefused, SafetyViolated, StorageDamaged, StorageFailed
from codeq_cluster.node.disk_guard import DiskGuard, OutageReason, free_bytes_of, take_a_write

MIB = 2**20
NO_ROOM = StorageFailed("writing: IO error: No space left on device: While appending")
DAMAGE = StorageDamaged("reading rows: Corruption: block checksum mismatch")
BROKEN = StorageFailed("writing: IO error: While fsync: Input/output error")


class Store:
    """A replica's store that fails to open as often as the test asks."""

    def __init__(self, story: list[str], name: str) -> None:
        self.refuse: BaseException | None = None
        self.meanwhile: Callable[[], None] = lambda: None
        self.idle = asyncio.Event()
        self.idle.set()
        self._story = story
        self._name = name

    async def withdraw(self) -> None:
        """Record it, and wait for the disk."""
        self._story.append(f"{self._name} out")
        await self.idle.wait()

    async def reopen(self) -> None:
        """Record it, or raise the test's error."""
        self.meanwhile()
        if self.refuse is not None:
            self._story.append(f"{self._name} refused")
            raise self.refuse
        self._story.append(f"{self._name} back")


class Stage:
    """Two replicas on a disk with as much room as the test asks."""

    def __init__(self, *, min_free_bytes: int = 256 * MIB) -> None:
        self.story: list[str] = []
        self.stores = [Store(self.story, "0"), Store(self.story, "1")]
        self.free = 1000 * MIB
        self.takes_writes = True
        self.pending = 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.told: list[int] = []
        self.fatal: list[BaseException] = []
        self.disk_guard = DiskGuard(
            replicas=self.stores,
            path=Path("/data"),
            min_free_bytes=min_free_bytes,
            transfer_all=self._transfer_all,
            fatal=lambda _shard, error: self.fatal.append(error),
            free_bytes=lambda _path: self._ask(),
            size_bytes=lambda _path: 4000 * MIB,
            probe=lambda _path: self._probe(),
            pending=lambda: self.pending,
            on_out_of_service=self._tell,
        )

    def _ask(self) -> int:
        if self.free < 0:
            raise OSError(5, "Input/output error")
        return self.free

    def _probe(self) -> None:
        self.meanwhile()
        if not self.takes_writes:
            raise OSError(5, "Input/output error")

    def _tell(self) -> None:
        self.told.append(len(self.reasons()))

    async def _transfer_all(self) -> None:
        self.story.append("transfer")

    def reasons(self) -> dict[int, OutageReason]:
        """Return the reason of each replica that is out."""
        return {shard: out.reason for shard, out in self.disk_guard.out.items()}

    async def later(self) -> list[str]:
        """Look once, after every wait is over; return what happened."""
        self.story.clear()
        self.disk_guard._retry_at = float("-inf")
        await self.disk_guard.look()
        return list(self.story)


async def test_with_enough_room_nothing_happens() -> None:
    """A look only reads."""
    stage = Stage()

    assert [] == await stage.later()
    assert 1000 * MIB == stage.disk_guard.free_bytes
    assert 4000 * MIB == stage.disk_guard.size_bytes
    # The counter exists from the start, so that the first event shows as an increase.
    assert {0: 0, 1: 0} == dict(stage.disk_guard.reseeded)


async def test_all_step_back_below_the_reserve_and_return_well_above_it() -> None:
    """Leaderships go first; small changes of the free space do not matter."""
    stage = Stage()
    stage.free = 255 * MIB

    assert ["transfer", "0 out", "1 out"] == await stage.later()
    assert {0: OutageReason.DISK_FULL, 1: OutageReason.DISK_FULL} == stage.reasons()
    assert "255 MiB are free below /data, store.minFreeBytes is 256 MiB" == (
        stage.disk_guard.out[0].text
    )
    stage.free = 383 * MIB
    assert [] == await stage.later()
    stage.free = 384 * MIB
    assert ["0 back", "1 back"] == await stage.later()
    assert {} == stage.reasons()
    stage.free = 256 * MIB
    assert [] == await stage.later()


async def test_a_failed_write_takes_all_out() -> None:
    """The others share the disk; after a pause each is reopened."""
    stage = Stage()

    stage.disk_guard.failed(1, BROKEN)
    assert {1: OutageReason.STORAGE_FAILED} == stage.reasons()
    await stage.disk_guard.look()
    assert ["1 out", "0 out"] == stage.story
    assert "the disk failed under shard 1" == stage.disk_guard.out[0].text
    assert [1, 2] == stage.told
    await stage.disk_guard.look()
    assert ["1 out", "0 out"] == stage.story

    assert ["0 back", "1 back"] == await stage.later()
    assert {} == stage.reasons()


async def test_a_disk_that_does_not_answer_takes_all_out() -> None:
    """The other nodes lead by then; each of many slow writes is no reason."""
    stage = Stage()
    for stage.pending in range(1, 30):
        assert [] == await stage.later()
    for _ in range(9):
        assert [] == await stage.later()
    stage.stores[0].idle.clear()

    looking = asyncio.ensure_future(stage.later())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ["0 out", "1 out"] == stage.story
    assert {0: OutageReason.STORAGE_FAILED, 1: OutageReason.STORAGE_FAILED} == stage.reasons()
    assert "the disk has not answered a write for 5 s" == stage.disk_guard.out[1].text
    assert "storage failed" == stage.disk_guard.out[1].public
    stage.pending = 0
    stage.stores[0].idle.set()
    await looking
    assert ["0 back", "1 back"] == await stage.later()


async def test_a_node_that_writes_nothing_blames_no_disk() -> None:
    """However long it is idle."""
    stage = Stage()
    for _ in range(30):
        assert [] == await stage.later()
    stage.pending = 1

    assert [] == await stage.later()


async def test_a_full_disk_is_tried_for_ever() -> None:
    """Room may come back, and then no operator need restart the node."""
    stage = Stage(min_free_bytes=0)
    stage.disk_guard.failed(0, NO_ROOM)
    await stage.disk_guard.look()
    stage.stores[0].refuse = DataDirectoryRefused("IO error: No space left on device: While")

    for _ in range(20):
        assert "0 refused" in await stage.later()
    assert {0: OutageReason.DISK_FULL} == stage.reasons()
    stage.stores[0].refuse = None

    assert ["0 back"] == await stage.later()


async def test_a_disk_that_stays_broken_is_given_up() -> None:
    """After ten failures in a row an operator must look; the other shard goes on."""
    stage = Stage()
    stage.disk_guard.failed(0, BROKEN)
    await stage.disk_guard.look()
    stage.stores[0].refuse = DataDirectoryRefused("the data directory cannot be opened: damage")

    assert ["0 refused", "1 back"] == await stage.later()
    for _ in range(7):
        assert ["0 refused"] == await stage.later()
    assert {0: OutageReason.STORAGE_FAILED} == stage.reasons()
    assert ["0 refused"] == await stage.later()
    assert {0: OutageReason.GIVEN_UP} == stage.reasons()
    assert [] == await stage.later()

    text = stage.disk_guard.out[0].text
    assert "cannot be opened: damage" in text
    assert "codeq-cluster repair --data-dir /data" in text


async def test_a_disk_that_fails_again_and_again_is_given_up() -> None:
    """It is not enough that the disk opens; it must also work."""
    stage = Stage()
    for _ in range(9):
        stage.disk_guard.failed(0, BROKEN)
        await stage.disk_guard.look()
        assert ["0 back", "1 back"] == await stage.later()

    stage.disk_guard.failed(0, BROKEN)
    await stage.disk_guard.look()

    assert OutageReason.GIVEN_UP is stage.reasons()[0]
    assert ["1 back"] == await stage.later()


async def test_damage_is_given_up_at_once_and_for_its_shard_alone() -> None:
    """Any reader may find it, and it may be found again later."""
    stage = Stage()

    stage.disk_guard.failed(1, DAMAGE)
    stage.disk_guard.failed(1, DAMAGE)
    await stage.disk_guard.look()

    assert ["1 out"] == stage.story
    assert {1: OutageReason.GIVEN_UP} == stage.reasons()
    assert "block checksum mismatch" in stage.disk_guard.out[1].text
    assert "codeq-cluster repair --data-dir /data" in stage.disk_guard.out[1].text
    assert [] == await stage.later()


@pytest.mark.parametrize("met_by", [0, 1])
@pytest.mark.parametrize("refused", [False, True])
async def test_damage_found_while_stores_are_reopened_is_not_forgotten(
    met_by: int, *, refused: bool
) -> None:
    """Its replica stays out with that reason, whichever store is being reopened."""
    stage = Stage()
    stage.free = 0
    await stage.later()
    stage.free = 1000 * MIB
    stage.stores[met_by].meanwhile = partial(stage.disk_guard.failed, 1, DAMAGE)
    stage.stores[1].refuse = BROKEN if refused else None

    await stage.later()
    assert {1: OutageReason.GIVEN_UP} == stage.reasons()
    assert ["1 out"] == await stage.later()
    assert [] == await stage.later()

    assert {1: OutageReason.GIVEN_UP} == stage.reasons()
    assert "block checksum mismatch" in stage.disk_guard.out[1].text


async def test_a_disk_that_fails_while_it_is_probed_is_tried_once_more() -> None:
    """The new failure replaces the one being retried, and takes the other shard out again."""
    stage = Stage()
    stage.free = 0
    await stage.later()
    stage.free = 1000 * MIB
    loop = asyncio.get_running_loop()
    stage.meanwhile = partial(loop.call_soon_threadsafe, stage.disk_guard.failed, 1, BROKEN)

    assert ["0 back"] == await stage.later()
    stage.meanwhile = lambda: None
    assert {1: OutageReason.STORAGE_FAILED} == stage.reasons()
    assert ["1 out", "0 out"] == await stage.later()
    assert ["0 back", "1 back"] == await stage.later()

    assert {} == stage.reasons()


async def test_pauses_grow_and_are_bounded() -> None:
    """A second at first, four at most; replicas that fail together wait once."""
    stage = Stage(min_free_bytes=0)
    pauses = []
    for _ in range(5):
        now = asyncio.get_running_loop().time()
        stage.disk_guard._retry_at = float("-inf")
        stage.disk_guard.failed(0, NO_ROOM)
        stage.disk_guard.failed(1, NO_ROOM)
        pauses.append(round(stage.disk_guard._retry_at - now))

    assert [1, 2, 4, 4, 4] == pauses


async def test_a_disk_that_takes_no_write_is_not_reopened() -> None:
    """The fault costs no tries, and the replicas are back at the first look after its end."""
    stage = Stage()
    stage.disk_guard.failed(0, BROKEN)
    await stage.disk_guard.look()
    stage.takes_writes = False

    for _ in range(20):
        assert [] == await stage.later()
    assert {0: OutageReason.STORAGE_FAILED, 1: OutageReason.STORAGE_FAILED} == stage.reasons()
    stage.takes_writes = True
    assert 2 == stage.disk_guard._pause_s

    assert ["0 back", "1 back"] == await stage.later()


async def test_a_state_that_differs_is_fetched_again() -> None:
    """The replica still writes its log, so it is not withdrawn; an installed snapshot ends it."""
    stage = Stage()

    assert stage.disk_guard.diverged(1, 77)
    assert stage.disk_guard.diverged(1, 78)
    assert {1: OutageReason.STATE_DIFFERS} == stage.reasons()
    assert "its state at entry 77 is not the majority's" in stage.disk_guard.out[1].text
    assert [] == await stage.later()
    stage.disk_guard.installed(0)
    stage.disk_guard.installed(1)

    assert {} == stage.reasons()
    assert {0: 0, 1: 1} == dict(stage.disk_guard.reseeded)
    stage.disk_guard.installed(1)
    assert {0: 0, 1: 1} == dict(stage.disk_guard.reseeded)


async def test_a_state_that_differs_on_a_full_disk_is_withdrawn_too() -> None:
    """Otherwise the replica would acknowledge log entries that it has no room for."""
    stage = Stage()
    stage.disk_guard.diverged(1, 77)
    stage.free = 0

    assert ["transfer", "0 out", "1 out"] == await stage.later()
    assert not stage.disk_guard.diverged(1, 78)
    stage.free = 1000 * MIB
    assert ["0 back", "1 back"] == await stage.later()


async def test_a_state_that_differs_again_and_again_is_given_up() -> None:
    """Its state is replaced three times in ten minutes; then an operator must look."""
    stage = Stage()
    for _ in range(3):
        assert stage.disk_guard.diverged(0, 77)
        stage.disk_guard.installed(0)

    assert not stage.disk_guard.diverged(0, 77)
    assert not stage.disk_guard.diverged(0, 78)
    assert ["0 out"] == await stage.later()
    assert {0: OutageReason.GIVEN_UP} == stage.reasons()
    assert "codeq-cluster repair --data-dir /data" in stage.disk_guard.out[0].text
    assert [] == await stage.later()


async def test_an_error_other_than_a_disk_failure_is_fatal() -> None:
    """No replica continues after a broken invariant."""
    stage = Stage()
    unsafe = SafetyViolated("two leaders in one term")
    stage.disk_guard.failed(0, unsafe)
    stage.disk_guard.failed(0, BROKEN)
    await stage.disk_guard.look()
    stage.stores[0].refuse = bug = AssertionError("a leader's state is exchanged")

    await stage.later()

    assert [unsafe, bug] == stage.fatal


async def test_a_disk_that_cannot_be_asked_is_left_to_its_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An unknown free space is no reason to stop, and is logged."""
    stage = Stage()
    stage.free = -1

    assert [] == await stage.later()
    assert "free space unknown" in caplog.text


def test_a_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    """A failed probe leaves nothing either; where no write is possible it raises."""
    take_a_write(tmp_path)
    with pytest.raises(OSError, match="No such file"):
        take_a_write(tmp_path / "gone")
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            take_a_write(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)

    assert [] == list(tmp_path.iterdir())


def test_free_space_is_the_file_systems(tmp_path: Path) -> None:
    """It equals the available space of `df`."""
    assert 0 < free_bytes_of(tmp_path) < 2**60
