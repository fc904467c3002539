"""Job: backups of a running cluster, taken by one of its nodes, one at a time.

Every node has a replica of every shard, so any node can take a backup:

1. For each shard, wait until this replica has applied the leader's entries.
2. Make checkpoints of all shards within moments.
3. Read the checkpoints while the node serves.

If a replica was out at any time meanwhile, or its state is suspect, the backup fails and is
deleted.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from codeq_cluster import __version__
from codeq_cluster.backup.catalogue import FoundBackup, begun_ms, found, new_id, prunable, verify
from codeq_cluster.backup.create import Cut, Pace, write_manifest, write_part
from codeq_cluster.backup.manifest import BackupManifest, Part, is_id
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.broker.background import Background
from codeq_cluster.core.relays import KEPT_MS
from codeq_cluster.errors import BackupFailed, CodeqError, StorageFailed
from codeq_cluster.raft.journal_rows import stored_term
from codeq_cluster.storage.stored_shard import StoredShard

log = logging.getLogger(__name__)

# For a node that is behind, or a shard without a leader.
SETTLE_S = 30.0
# From the first shard's copy to the last one's. It is less than `KEPT_MS`, so a relay that a later
# copy calls taken is still in that copy, if the earlier one lacks its effect.
CUT_MS_MAX = KEPT_MS // 2


class BackedUpShard(Protocol):
    """One shard's replica on this node."""

    async def settled(self, *, timeout_s: float) -> None:
        """Wait until everything acknowledged before the call is applied here."""

    @property
    def level(self) -> int:
        """Return the level of the formats in use."""

    def watched(self) -> Callable[[], str]:
        """Start to watch the replica; the returned function says what has gone wrong since.

        It returns a text for the operator, empty if nothing is wrong; call it on the loop.
        """

    def checkpoint(self, path: Path) -> None:
        """Copy the shard to a directory; called in a thread, raises StorageFailed."""


class Stage(StrEnum):
    """The stages of a backup."""

    WRITING = "WRITING"
    VERIFYING = "VERIFYING"
    DONE = "DONE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a backup.

    Attributes:
        parts: Shards, in all.
        parts_done: Shards done in this stage.
        bytes: Written so far, or read again so far.
        deleted: Backups that retention has deleted after it.
        ended_ms: 0 while it runs.
    """

    id: str
    node: str
    stage: Stage
    parts: int
    started_ms: int
    parts_done: int = 0
    bytes: int = 0
    tasks: int = 0
    ended_ms: int = 0
    error: str = ""
    deleted: tuple[str, ...] = ()


class BackupRunning(BackupFailed):
    """A backup of this node has not ended yet."""


@dataclass(slots=True, kw_only=True)
class _Run:
    progress: Progress
    pace: Pace
    watches: Sequence[Callable[[], str]] = ()
    before: Container[str] = ()
    parts: tuple[Part, ...] = ()
    manifest: BackupManifest | None = None
    unreadable: int = 0

    def note(self, **changes: Any) -> None:
        # Only the run's thread writes it, and readers take the whole value.
        self.progress = replace(self.progress, **changes)

    def passed(self, size: int) -> None:
        self.note(bytes=self.progress.bytes + size)

    def judge(self) -> None:
        """Raise BackupFailed if anything went wrong with a shard since the watch began."""
        said = ((shard, wrong()) for shard, wrong in enumerate(self.watches))
        if reasons := [f"shard {shard}: {text}" for shard, text in said if text]:
            raise BackupFailed("; ".join(reasons))


class BackupJobs:
    """The backups that this node takes.

    Args:
        shards: This node's replicas, in order.
        scratch: Directory for checkpoints; on the file system of the shards, emptied at once.
        keep: Complete backups that stay.
        bytes_per_s: Bytes of rows read a second, at most; 0 for no limit.
        background: Ends before the shards are closed.
        now_ms: Wall clock, Unix milliseconds.
    """

    def __init__(
        self,
        *,
        node_id: str,
        cluster_id: str,
        place: BackupTarget,
        shards: Sequence[BackedUpShard],
        scratch: Path,
        keep: int,
        bytes_per_s: int,
        background: Background,
        now_ms: Callable[[], int],
    ) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._place = place
        self._shards = shards
        self._scratch = scratch
        self._keep = keep
        self._bytes_per_s = bytes_per_s
        self._background = background
        self._now_ms = now_ms
        self._last: _Run | None = None
        shutil.rmtree(scratch, ignore_errors=True)

    def start(self, record: Callable[[Progress], Awaitable[None]]) -> Progress:
        """Start a backup and return its progress; it runs by itself.

        Args:
            record: Writes the audit record, first of all; the backup fails if it raises.

        Raises:
            BackupRunning: Another one has not ended.
        """
        if self._last is not None and not self._last.progress.ended_ms:
            raise BackupRunning(f"backup {self._last.progress.id} is under way")
        now_ms = self._now_ms()
        run = self._last = _Run(
            progress=Progress(
                id=new_id(now_ms),
                node=self._node_id,
                stage=Stage.WRITING,
                parts=len(self._shards),
                started_ms=now_ms,
            ),
            pace=Pace(self._bytes_per_s),
        )
        self._background.spawn(self._run(run, record))
        return run.progress

    async def progress(self, backup: str) -> Progress | None:
        """Return a backup's progress, or None if it is unknown.

        This node remembers its last one; for others it only knows whether they are complete.

        Raises:
            BackupFailed: The place does not answer.
        """
        if self._last is not None and self._last.progress.id == backup:
            return self._last.progress
        if not is_id(backup):
            return None
        for each in await self.found():
            if each.id == backup and each.manifest is not None:
                manifest = each.manifest
                return Progress(
                    id=backup,
                    node=manifest.node_id,
                    stage=Stage.DONE,
                    parts=manifest.shards,
                    parts_done=manifest.shards,
                    started_ms=begun_ms(backup),
                    bytes=manifest.size,
                    tasks=manifest.tasks,
                )
        return None

    async def found(self) -> list[FoundBackup]:
        """Return the backups of the place, the oldest first; raises BackupFailed."""
        return await asyncio.to_thread(found, self._place)

    async def _run(self, run: _Run, record: Callable[[Progress], Awaitable[None]]) -> None:
        backup = run.progress.id
        log.info("backup begun", extra={"backup": backup, "where": self._place.where})
        try:
            run.watches = [shard.watched() for shard in self._shards]
            async with asyncio.timeout(SETTLE_S):
                await record(run.progress)
                # Check for faults first: waiting for a replica that is out could be in vain.
                run.judge()
                await asyncio.gather(*(shard.settled(timeout_s=SETTLE_S) for shard in self._shards))
            run.before = await asyncio.to_thread(self._place.backups)
            await self._take(run)
        except asyncio.CancelledError:
            await self._failed(run, "the node was stopped")
            raise
        except TimeoutError:
            why = "it has no leader, or this node is behind; /readyz of this node says which"
            await self._failed(run, f"a shard was not caught up within {SETTLE_S:g} s: {why}")
        except CodeqError as error:
            await self._failed(run, str(error))
        except BaseException as error:
            await self._failed(run, repr(error))
            raise
        else:
            run.note(stage=Stage.DONE, ended_ms=self._now_ms())
            manifest = run.manifest
            assert manifest is not None
            done = {"backup": backup, "bytes": manifest.size, "tasks": manifest.tasks}
            log.info("backup done", extra=done | {"deleted": list(run.progress.deleted)})

    async def _failed(self, run: _Run, reason: str) -> None:
        run.note(stage=Stage.FAILED, ended_ms=self._now_ms(), error=reason)
        log.warning("backup failed", extra={"backup": run.progress.id, "error": reason})

    async def _in_thread(self, run: _Run, work: Callable[[_Run], None]) -> None:
        """Run blocking work; on cancellation, stop it and wait for its end."""
        working = asyncio.get_running_loop().run_in_executor(None, work, run)
        try:
            await asyncio.shield(working)
        except asyncio.CancelledError:
            run.pace.stop()
            with suppress(CodeqError):
                await working
            raise

    async def _take(self, run: _Run) -> None:
        """Write the backup, read it again, then let retention delete older ones.

        Retention waits if the backup holds records that cannot be read.

        A fault of a shard that shows until then counts, because its cut may contain it already.
        """
        try:
            run.judge()
            await self._in_thread(run, self._write)
            run.judge()
            await self._in_thread(run, self._seal)
        except BaseException:
            # The remains have no manifest, so a failure to delete them does no harm.
            await self._in_thread(run, self._discard)
            raise
        # A backup that fails verification is left for an operator to look at.
        await self._in_thread(run, self._verify)
        try:
            run.judge()
        except BackupFailed:
            await self._in_thread(run, self._discard)
            raise
        if run.unreadable:
            # An older backup may still have what this one cannot give back.
            extra = {"backup": run.progress.id, "unreadable": run.unreadable}
            log.warning("backup holds unreadable records, older ones are kept", extra=extra)
            return
        await self._in_thread(run, self._prune)

    def _write(self, run: _Run) -> None:
        home = self._scratch / run.progress.id
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self._scratch, ignore_errors=True)
            for cut in self._cuts(home, stack):
                part = write_part(
                    self._place, run.progress.id, cut, pace=run.pace, passed=run.passed
                )
                run.parts += (part,)
                run.note(parts_done=len(run.parts))
        run.pace.spend(0)

    def _seal(self, run: _Run) -> None:
        run.manifest = BackupManifest(
            id=run.progress.id,
            cluster_id=self._cluster_id,
            node_id=self._node_id,
            created_ms=run.progress.started_ms,
            release=__version__,
            parts=run.parts,
            # Read after the cuts: the level never falls.
            level=max(shard.level for shard in self._shards),
        )
        write_manifest(self._place, run.manifest)

    def _discard(self, run: _Run) -> None:
        with suppress(BackupFailed):
            self._place.delete(run.progress.id)

    def _cuts(self, home: Path, stack: ExitStack) -> list[Cut]:
        try:
            home.mkdir(parents=True)
        except OSError as error:
            raise StorageFailed(f"making room for checkpoints: {error}") from error
        begun_ms = self._now_ms()
        for number, shard in enumerate(self._shards):
            shard.checkpoint(home / str(number))
        if not 0 <= self._now_ms() - begun_ms <= CUT_MS_MAX:
            raise BackupFailed("copying the shards took too long for relays between them")
        cuts = []
        for number in range(len(self._shards)):
            stored = stack.enter_context(StoredShard(home / str(number)))
            term = stored_term(stored.log_get, stored.index)
            if term is None:
                raise StorageFailed(f"shard {number} lacks the entry that its state ends with")
            cuts.append(
                Cut(
                    shard=number,
                    index=stored.index,
                    term=term,
                    digest=stored.digest,
                    stored=stored,
                )
            )
        return cuts

    def _verify(self, run: _Run) -> None:
        manifest = run.manifest
        assert manifest is not None
        run.note(stage=Stage.VERIFYING, bytes=0, parts_done=0, tasks=manifest.tasks)

        def passed(size: int) -> None:
            run.passed(size)
            ends = done = 0
            read = run.progress.bytes
            for part in manifest.parts:
                ends += part.size
                done += read >= ends
            run.note(parts_done=done)

        run.unreadable = verify(self._place, manifest, passed=passed, spend=run.pace.spend)

    def _prune(self, run: _Run) -> None:
        deleted = []
        now_ms, taken, keep = self._now_ms(), run.progress.id, self._keep
        for each in prunable(self._place, keep=keep, now_ms=now_ms, taken=taken, before=run.before):
            self._place.delete(each.id)
            deleted.append(each.id)
        run.note(deleted=tuple(deleted))
