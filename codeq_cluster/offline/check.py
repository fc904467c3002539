"""Check: reads all of a stopped node's directory and reports its damage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.offline.inspect import add_pending, mirrored
from codeq_cluster.raft.journal import Journal
from codeq_cluster.storage.directory import held_directory, read_identity, wal_of
from codeq_cluster.storage.identity import DirectoryIdentity
from codeq_cluster.storage.stored_shard import StoredShard

_ALL = (b"", b"\xff" * 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The result of a directory's check.

    Attributes:
        identity: The node's; None if it cannot be read.
        damages: One line for each damage, naming the file or the shard.
        risks: One line for each reason why the directory may hold the only copy of data.
    """

    identity: DirectoryIdentity | None
    damages: tuple[str, ...]
    risks: tuple[str, ...]


@contextmanager
def examined(path: Path) -> Iterator[Examined]:
    """Read all of a stopped node's directory; it stays locked until the end of the block.

    Raises:
        DataDirectoryRefused: It is in use, or is no data directory.
    """
    with held_directory(path):
        identity: DirectoryIdentity | None = None
        damages: list[str] = []
        members: set[str] = set()
        try:
            identity = read_identity(path)
        except DataDirectoryRefused as error:
            damages.append(str(error))
        if identity is not None:
            with TemporaryDirectory(prefix="codeq-repair-") as aside:
                for shard in range(identity.shards):
                    try:
                        # If shards differ, the smallest group is the one at risk. The members
                        # that began the cluster say nothing about a shard that cannot be read:
                        # they may have left since.
                        voters = _read(path.absolute(), shard, Path(aside), identity)
                        members = min(filter(None, (members, voters)), key=len, default=members)
                    except (StorageFailed, DataDirectoryRefused) as error:
                        damages.append(f"shard-{shard}: {' '.join(str(error).split())}")
        yield Examined(identity=identity, damages=tuple(damages), risks=_risks(identity, members))


def _risks(identity: DirectoryIdentity | None, members: set[str]) -> tuple[str, ...]:
    if identity is None or not members:
        return ("it cannot be read whether this node has peers that hold the same",)
    others = sorted(members - {identity.node_id})
    if not others:
        return ("this node has no peers: nobody else holds what it holds",)
    if len(others) == 1:
        return (f"its one peer {others[0]} is no majority of two, and a majority takes a node in",)
    return ()


def _read(path: Path, shard: int, aside: Path, identity: DirectoryIdentity) -> set[str]:
    """Read all of a shard; return its voters.

    Raises:
        StorageFailed: It is damaged.
        DataDirectoryRefused: It is damaged or missing.
    """
    if not (path / f"shard-{shard}").is_dir():
        raise DataDirectoryRefused("it is missing")
    wal = wal_of(path, identity)
    with StoredShard(mirrored(path, shard, aside), wal=wal) as stored:
        for _ in stored.rows(*_ALL):
            pass
        if wal is not None:
            add_pending(wal, {shard: stored})
        journal = Journal(_Log(stored), cache_bytes_max=0)
        journal.load(applied=stored.index, bootstrap=identity.bootstrap)
        return set(journal.memberships.newest[1].voters)


class _Log:
    """The rows of a log that is not being written."""

    def __init__(self, stored: StoredShard) -> None:
        self._stored = stored

    def get(self, key: bytes) -> bytes | None:
        return self._stored.log_get(key)

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        del bytes_max  # Entries are a megabyte at most, and only this process reads.
        return list(islice(self._stored.log_rows(start, end), min(limit, 256)))
