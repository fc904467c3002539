"""Ports: interfaces that serving and fetching a snapshot need; `node/recovery.py` provides them."""

from __future__ import annotations

from typing import Protocol

from codeq_cluster.snapshots.manifest import SnapshotManifest

# The calls of a fetch, by their names on the link.
TAKE = "snapshot.take"
READ = "snapshot.read"


class IncomingFiles(Protocol):
    """A snapshot being received by this node; every method blocks."""

    def write(self, file: int, offset: int, crc: int, chunk: bytes) -> None:
        """Add the next chunk of a file; raises ValueError or StorageFailed."""

    def verify(self) -> None:
        """Read every row, or end early after `stop`; raises StorageFailed."""

    def stop(self) -> None:
        """Make `verify` fail soon, in whichever thread it runs."""

    def drop(self) -> None:
        """Delete the part received so far."""


class Store(Protocol):
    """One shard's snapshots on this node; the methods block, so call them in a thread."""

    def take(self) -> SnapshotManifest:
        """Make a snapshot; raises StorageFailed."""

    def read(self, snapshot: SnapshotManifest, file: int, offset: int) -> tuple[int, bytes]:
        """Return checksum and bytes of a chunk; raises ValueError or StorageFailed."""

    def drop(self, snapshot: SnapshotManifest) -> None:
        """Delete a snapshot."""

    def begin(self, manifest: SnapshotManifest) -> IncomingFiles:
        """Prepare to receive a snapshot; delete what is in its place.

        Raises ValueError for a manifest that cannot be right, or StorageFailed.
        """


class SnapshotReplica(Protocol):
    """One shard on this node."""

    @property
    def leader(self) -> str | None:
        """Return who leads the shard."""

    @property
    def lends(self) -> bool:
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


class SnapshotCalls(Protocol):
    """The link's RPC."""

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Call a peer; raises PeerUnreachable, LinkLost and what the peer raised."""
