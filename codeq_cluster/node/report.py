"""Report: this node's report for the cluster page."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path

from codeq_cluster import __version__
from codeq_cluster.membership.node_report import NodeReport, ShardReport
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.parts import NodeParts
from codeq_cluster.raft.group import RaftGroup


class Reporter:
    """Makes the report."""

    def __init__(self, base: NodeBase, parts: NodeParts) -> None:
        self._settings = base.settings
        self._parts = parts
        self._started_ms = base.clock.wall_ms()

    async def report(self) -> NodeReport:
        """Return the node's current report."""
        # In a thread: a disk that hangs must delay only this report.
        disk = await asyncio.to_thread(shutil.disk_usage, self._settings.data_dir)
        return NodeReport(
            id=self._settings.node_id,
            version=__version__,
            started_ms=self._started_ms,
            # Only operators may ask for a report.
            missing=tuple(self._parts.readiness.missing(in_full=True)),
            disk_free_bytes=disk.free,
            disk_bytes=disk.total,
            memory_bytes=_resident_bytes(),
            shards=tuple(map(self._shard, self._parts.replicas.groups)),
        )

    def _shard(self, group: RaftGroup) -> ShardReport:
        status = group.status()
        out = self._parts.recovery.disk_guard.out.get(status.shard)
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
