"""Disk guard: a node's replicas step back while its disk is full or has failed, and return later.

A replica that is out takes no turns: it leads nothing, votes for no candidate and acknowledges
nothing. To its peers it looks like a disconnected node. It returns with the state that the disk
holds.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from codeq_cluster.errors import DataDirectoryRefused, StorageDamaged, StorageFailed

log = logging.getLogger(__name__)

_LOOK_S = 0.5  # At 100 MB/s of writes, a fifth of the default reserve.
# Five seconds: slow disks take less, and other nodes lead after two.
_HUNG_LOOKS = 10
# Stores are reopened only on a disk that has just taken a write, so retrying is cheap.
_PAUSE_S = 1.0
_PAUSE_S_MAX = 4.0
_STEADY_S = 60.0  # A replica that has worked for this long has recovered from its last failure.
# Failures in a row, other than lack of room, before an operator must act: about half a minute.
_FAILURES_MAX = 10
# A state that differs again and again has a cause that another snapshot does not mend.
_RESEEDS_MAX = 3
_RESEEDS_S = 600.0
_PROBE = "probe"
_PROBE_BYTES = 2**16
# RocksDB writes this much when it is reopened; with less room the store would soon be out again.
_PROBE_ROOM_BYTES = 4 * 2**20
_NO_ROOM = ("No space left on device", "Disk quota exceeded", "File too large")


class OutageReason(StrEnum):
    """Why a replica is out."""

    DISK_FULL = "disk-full"
    STORAGE_FAILED = "storage-failed"
    STATE_DIFFERS = "state-differs"
    GIVEN_UP = "given-up"


_PUBLIC = {
    OutageReason.DISK_FULL: "its disk is full",
    OutageReason.STORAGE_FAILED: "storage failed",
    OutageReason.STATE_DIFFERS: "its state is not the majority's",
    OutageReason.GIVEN_UP: "given up, until its operator sees to it",
}


@dataclass(frozen=True, slots=True)
class Outage:
    """A replica that is out.

    Attributes:
        text: For the operator; it may name directories of this machine.
    """

    reason: OutageReason
    text: str

    @property
    def public(self) -> str:
        """Return the reason without directories, for callers without the operator role."""
        return _PUBLIC[self.reason]


class GuardedReplica(Protocol):
    """One shard on this node."""

    async def withdraw(self) -> None:
        """Stop making promises: no votes, no acknowledgements."""

    async def reopen(self) -> None:
        """Continue with the state on disk; raises DataDirectoryRefused and StorageFailed."""


class DiskGuard:
    """Takes the replicas of a node out and back in.

    Attributes:
        free_bytes: On the data directory's disk, as of the last look.
        size_bytes: Of that disk, as of the last look.
        reseeded: By shard, how often a differing state was replaced.

    Args:
        replicas: By shard.
        path: The data directory.
        min_free_bytes: With less, all replicas step back; they return at half as much again.
        transfer_all: Transfers the leaderships while the disk still works; bounded.
        fatal: Called with (shard, error) of an error that is not the disk's; does not return.
        free_bytes: Called in a thread; raises OSError.
        size_bytes: Called in a thread; raises OSError.
        probe: Called in a thread before stores are reopened; raises OSError if the disk takes no
            writes.
        pending: Returns the number of the log's write that the disk has not answered; 0 for none.
        on_out_of_service: Called when a replica has gone out of service: callers that wait for
            its entries must look elsewhere.
    """

    def __init__(
        self,
        *,
        replicas: Sequence[GuardedReplica],
        path: Path,
        min_free_bytes: int,
        transfer_all: Callable[[], Awaitable[None]],
        fatal: Callable[[int, BaseException], None],
        free_bytes: Callable[[Path], int] | None = None,
        size_bytes: Callable[[Path], int] | None = None,
        probe: Callable[[Path], None] | None = None,
        pending: Callable[[], int] = lambda: 0,
        on_out_of_service: Callable[[], None] = lambda: None,
    ) -> None:
        self._replicas = replicas
        self._path = path
        self._min_free_bytes = min_free_bytes
        self._transfer_all = transfer_all
        self._fatal = fatal
        self._ask_free = free_bytes or free_bytes_of
        self._ask_size = size_bytes or size_bytes_of
        self._probe = probe or take_a_write
        self._pending = pending
        self._owed = self._owed_looks = 0
        self._on_out_of_service = on_out_of_service
        self._low = False
        self._alarm: int | None = None
        self._out: dict[int, Outage] = {}
        self._latest: dict[int, Outage] = {}
        self._failures: Counter[int] = Counter()
        self._back_since: dict[int, float] = {}
        self._differed_at: dict[int, list[float]] = {}
        self._withdrawn_soon: list[int] = []
        # Start at 0, so that the first one shows as an increase.
        self.reseeded = Counter(dict.fromkeys(range(len(replicas)), 0))
        self._retry_at = float("-inf")
        self._pause_s = _PAUSE_S
        self.free_bytes = 0
        self.size_bytes = 0

    @property
    def out(self) -> dict[int, Outage]:
        """Return the replicas that are out, by shard."""
        return dict(self._out)

    def latest(self, shard: int) -> Outage | None:
        """Return why a replica is out or last was; each new verdict is a new object."""
        return self._latest.get(shard)

    def failed(self, shard: int, error: BaseException) -> None:
        """Take a replica out because its disk refused or its data is damaged."""
        if not isinstance(error, StorageFailed | DataDirectoryRefused):
            self._fatal(shard, error)
            return
        known = self._out.get(shard)
        if known is not None and known.reason is OutageReason.GIVEN_UP:
            return
        # The group has paused itself, unless another replica met the damage.
        self._withdrawn_soon.append(shard)
        now = asyncio.get_running_loop().time()
        if now - self._back_since.get(shard, now) > _STEADY_S:
            self._failures[shard] = 0
            self._pause_s = _PAUSE_S
        self._note(shard, error)
        if not isinstance(error, StorageDamaged):
            # The other replicas share the disk.
            self._alarm = shard

    def diverged(self, shard: int, index: int) -> bool:
        """Take a replica out whose state is not the majority's; return whether to fetch a snapshot.

        Args:
            index: The entry at which the states differ.
        """
        known = self._out.get(shard)
        if known is not None:
            return known.reason is OutageReason.STATE_DIFFERS
        now = asyncio.get_running_loop().time()
        before = [at for at in self._differed_at.get(shard, ()) if now - at < _RESEEDS_S]
        self._differed_at[shard] = [*before, now]
        text = f"its state at entry {index} is not the majority's"
        if len(before) >= _RESEEDS_MAX:
            text += (
                f", after it was fetched again {_RESEEDS_MAX} times; given up: stop the node, "
                f"keep its log for whoever looks into it, and run {self._repair}"
            )
            self._take_out(shard, Outage(OutageReason.GIVEN_UP, text))
            self._withdrawn_soon.append(shard)
            return False
        text += "; it is fetched again from the leader"
        self._take_out(shard, Outage(OutageReason.STATE_DIFFERS, text))
        return True

    def installed(self, shard: int) -> None:
        """Bring a replica back after a snapshot has replaced its state."""
        known = self._out.get(shard)
        if known is not None and known.reason is OutageReason.STATE_DIFFERS:
            self.reseeded[shard] += 1
            del self._out[shard]
            log.warning("replica is back", extra={"shard": shard})

    @property
    def _repair(self) -> str:
        return f"codeq-cluster repair --data-dir {self._path}"

    async def watch(self) -> None:
        """Watch the disk, for ever."""
        while True:
            try:
                await self.look()
            except Exception:
                log.exception("checking the disk failed")
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Look once: take replicas out that must not continue, and back in those that may."""
        if self._hangs():
            # Until it answers, no group takes a turn: none would learn that another node leads.
            text = f"the disk has not answered a write for {_HUNG_LOOKS * _LOOK_S:.0f} s"
            await self._withdraw(Outage(OutageReason.STORAGE_FAILED, text))
            return
        await self._measure()
        while self._withdrawn_soon:
            await self._replicas[self._withdrawn_soon.pop()].withdraw()
        if self._alarm is not None:
            failed, self._alarm = self._alarm, None
            full = self._out[failed].reason is OutageReason.DISK_FULL
            reason = OutageReason.DISK_FULL if full else OutageReason.STORAGE_FAILED
            await self._withdraw(Outage(reason, f"the disk failed under shard {failed}"))
        elif self._low:
            if len(self._resting) < len(self._replicas):
                await self._transfer_all()
            text = (
                f"{_mib(self.free_bytes)} MiB are free below {self._path}, "
                f"store.minFreeBytes is {_mib(self._min_free_bytes)} MiB"
            )
            await self._withdraw(Outage(OutageReason.DISK_FULL, text))
        elif self._resting and asyncio.get_running_loop().time() >= self._retry_at:
            await self._bring_back()

    async def _measure(self) -> None:
        try:
            self.free_bytes = await asyncio.to_thread(self._ask_free, self._path)
            self.size_bytes = await asyncio.to_thread(self._ask_size, self._path)
        except OSError as error:
            # If the disk cannot be asked, the next write will show its state.
            log.warning("free space unknown", extra={"error": str(error)})
            return
        enough = self._min_free_bytes * (3 if self._low else 2) // 2
        low = self.free_bytes < enough
        if low != self._low:
            self._low = low
            log.log(
                logging.ERROR if low else logging.WARNING,
                "disk nearly full" if low else "disk has room again",
                extra={"free_bytes": self.free_bytes, "min_free_bytes": self._min_free_bytes},
            )

    def _hangs(self) -> bool:
        """Return whether the disk has just owed the same write for too many looks.

        Looks count, not seconds: a process that was stopped for a while must not blame its disk.
        """
        pending = self._pending()
        self._owed_looks = self._owed_looks + 1 if pending == self._owed else 0
        self._owed = pending
        return bool(pending) and self._owed_looks == _HUNG_LOOKS

    async def _withdraw(self, outage: Outage) -> None:
        resting = self._resting
        going = [shard for shard in range(len(self._replicas)) if shard not in resting]
        for shard in going:
            self._take_out(shard, outage)
        # Together: each ends its leadership at once, and then waits for the disk.
        await asyncio.gather(*(self._replicas[shard].withdraw() for shard in going))

    @property
    def _resting(self) -> list[int]:
        """Return the shards that take no turns; a differing replica still writes its log."""
        return [
            shard
            for shard, out in self._out.items()
            if out.reason is not OutageReason.STATE_DIFFERS
        ]

    async def _bring_back(self) -> None:
        """Reopen every store that is closed to writes, one after another, while the others work.

        It waits while the disk takes no writes. So a fault costs no tries and no pauses, however
        long it lasts, and the next look notices its end. A store that fails meanwhile stays out.
        """
        resting = {shard: self._out[shard] for shard in sorted(self._resting)}
        tried = {s: out for s, out in resting.items() if out.reason is not OutageReason.GIVEN_UP}
        if not tried or not await self._takes_writes():
            return
        for shard, outage in tried.items():
            if self._out.get(shard) is not outage:
                continue  # It failed again meanwhile: the next look handles that.
            try:
                await self._replicas[shard].reopen()
            except (StorageFailed, DataDirectoryRefused) as error:
                # If damage was found meanwhile, keep that reason: the refusal to open says less.
                if self._out[shard].reason is not OutageReason.GIVEN_UP:
                    self._note(shard, error)
                continue
            except Exception as error:  # noqa: BLE001 - no replica may continue after it
                self._fatal(shard, error)
                continue
            if self._out.get(shard) is not outage:
                continue  # The same; it is withdrawn once more.
            del self._out[shard]
            self._back_since[shard] = asyncio.get_running_loop().time()
            log.warning("replica is back", extra={"shard": shard})

    async def _takes_writes(self) -> bool:
        try:
            await asyncio.to_thread(self._probe, self._path)
        except OSError as error:
            log.debug("the disk takes no writes", extra={"error": str(error)})
            return False
        return True

    def _note(self, shard: int, error: BaseException) -> None:
        text = f"storage failed: {error}"
        no_room = out_of_room(error)
        self._failures[shard] += not no_room
        if isinstance(error, StorageDamaged):
            # The data stays damaged, even if the next reader does not touch the damaged part.
            text = f"the data is damaged: {error}; given up: stop the node and run {self._repair}"
            self._take_out(shard, Outage(OutageReason.GIVEN_UP, text))
        elif self._failures[shard] >= _FAILURES_MAX:
            # Stop trying: retries could continue for ever, and the cause may be damage.
            text += (
                "; given up: stop the node, and when the disk is good again start it, or run "
                + self._repair
            )
            self._take_out(shard, Outage(OutageReason.GIVEN_UP, text))
        else:
            self._take_out(
                shard,
                Outage(OutageReason.DISK_FULL if no_room else OutageReason.STORAGE_FAILED, text),
            )
        now = asyncio.get_running_loop().time()
        # Replicas that fail together are one failure of the disk.
        if now >= self._retry_at:
            self._retry_at = now + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)

    def _take_out(self, shard: int, outage: Outage) -> None:
        self._out[shard] = self._latest[shard] = outage
        self._on_out_of_service()
        log.error(
            "replica is out",
            extra={"shard": shard, "reason": outage.reason.value, "error": outage.text},
        )


def out_of_room(error: BaseException) -> bool:
    """Return whether the disk refused for lack of room."""
    return any(words in str(error) for words in _NO_ROOM)


def free_bytes_of(path: Path) -> int:
    """Return the bytes this process may still write to the file system; raises OSError."""
    there = os.statvfs(path)
    return there.f_bavail * there.f_frsize


def size_bytes_of(path: Path) -> int:
    """Return the size of the file system in bytes; raises OSError."""
    there = os.statvfs(path)
    return there.f_blocks * there.f_frsize


def take_a_write(path: Path) -> None:
    """Write and sync a small file below a directory, with some room left; raises OSError."""
    file = path / _PROBE
    with file.open("wb", buffering=0) as probe:
        # Unlink first: a leftover of the last probe must not make this one fail.
        file.unlink()
        os.posix_fallocate(probe.fileno(), 0, _PROBE_ROOM_BYTES)
        probe.write(bytes(_PROBE_BYTES))
        os.fsync(probe.fileno())


def _mib(size: int) -> int:
    return size // 2**20
