"""Ports: what serving and fetching snapshots need of a replica, which `node/` provides."""

from __future__ import annotations

from typing import Protocol

# The calls of a fetch, by their names on the link.
TAKE = "snapshot.take"
READ = "snapshot.read"


class SnapshotReplica(Protocol):
    """One shard on this node."""

    @property
    def leader(self) -> str | None:
        """Return who leads the shard."""

    @property
    def serves_snapshots(self) -> bool:
        """Return whether peers may have this replica's state: it leads and is not suspect."""

    @property
    def wanted_from(self) -> int:
        """Return the first entry whose state is of use to this replica; 0 for any."""

    @property
    def level(self) -> int:
        """Return the level of the formats in use."""

    def hold(self) -> None:
        """Keep the log entries after a snapshot that is being read."""

    def reaches(self, index: int) -> bool:
        """Return whether the log still has the entries after this one."""

    def wants(self, index: int, term: int) -> bool:
        """Return whether a snapshot of that entry is ahead of this replica."""

    async def exchange(self, index: int, term: int, members: bytes) -> bool:
        """Replace the state by the received snapshot of that entry; raises StorageFailed.

        Returns False if the snapshot is no longer ahead of this replica.
        """
