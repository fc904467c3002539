"""Node report: a node's statement about itself for the cluster page."""

from __future__ import annotations

from msgspec import Struct


class ShardReport(Struct, frozen=True, kw_only=True):
    """One shard on one node.

    Attributes:
        leads: The node decides for it.
        lags: Entries that each peer lacks, by its id; only where the node leads.
        out: Why the replica takes no part; empty if it does.
    """

    shard: int
    leads: bool
    voting: bool
    term: int
    commit_index: int
    applied_index: int
    log_bytes: int
    lags: dict[str, int] = {}
    out: str = ""


class NodeReport(Struct, frozen=True, kw_only=True):
    """One node.

    Attributes:
        missing: Why it is not ready, for the operator.
        started_ms: Unix milliseconds.
        disk_free_bytes: Of the data directory's disk, as is `disk_bytes`.
        memory_bytes: Resident.
    """

    id: str
    version: str
    started_ms: int
    missing: tuple[str, ...]
    disk_free_bytes: int
    disk_bytes: int
    memory_bytes: int
    shards: tuple[ShardReport, ...]
