"""Report: this node's report for the cluster page."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from codeq_cluster import __version__
from codeq_cluster.broker.ports import ReadinessCheck
from codeq_cluster.membership.node_report import NodeReport, ShardReport
from codeq_cluster.node.disk_guard import DiskGuard
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.settings import NodeSettings


class Reporter:
    """Makes the report.

    Args:
        settings: The node's settings.
        groups: Of this node.
        disk_guard: Knows which replicas are out.
        missing: Returns why the node is not ready.
        started_ms: Unix milliseconds.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        groups: Sequence[RaftGroup],
        disk_guard: DiskGuard,
        missing: ReadinessCheck,
        started_ms: int,
    ) -> None:
        self._settings = settings
        self._groups = groups
        self._disk_guard = disk_guard
        self._missing = missing
        self._started_ms = started_ms

    async def report(self) -> NodeReport:
        """Return the node's current report."""
        # In a thread: a disk that hangs must delay only this report.
        disk = await asyncio.to_thread(shutil.disk_usage, self._settings.data_dir)
        return NodeReport(
            id=self._settings.node_id,
            version=__version__,
            started_ms=self._started_ms,
            # Only operators may ask for a report.
            missing=tuple(self._missing(in_full=True)),
            disk_free_bytes=disk.free,
            disk_bytes=disk.total,
            memory_bytes=_resident_bytes(),
            shards=tuple(map(self._shard, self._groups)),
        )

    def _shard(self, group: RaftGroup) -> ShardReport:
        status = group.status()
        out = self._disk_guard.out.get(status.shard)
        lags = {peer.id: max(0, status.log_last - peer.match_index) for peer in status.peers}
        return ShardReport(
            shard=status.shard,
            leads=status.is_leader,
            voting=status.voting,
            term=status.term,
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            log_bytes=status.log_bytes,
            lags=lags if status.is_leader else {},
            out=out.text if out is not None else "",
        )


def _resident_bytes() -> int:
    """Return the process's resident memory, 0 if the system does not provide it."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
