"""Damage: what is wrong with a stopped node's directory, found by reading all of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from codeq_cluster.backup.looking import mirrored
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.raft.journal import Journal
from codeq_cluster.storage.directory import Identity, held_directory, read_identity
from codeq_cluster.storage.rocks import StoredShard

_ALL = (b"", b"\xff" * 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """A directory as it was found.

    Attributes:
        identity: Whose it is; None when that cannot be read.
        damages: What is wrong, a line each, naming the file or the shard.
        risks: Why it may be the only copy of something, a line each.
    """

    identity: Identity | None
    damages: tuple[str, ...]
    risks: tuple[str, ...]


@contextmanager
def examined(path: Path) -> Iterator[Examined]:
    """Read all of a stopped node's directory; it is held until the end of the block.

    Raises:
        DataDirectoryRefused: It is in use, or is no data directory.
    """
    with held_directory(path):
        identity: Identity | None = None
        damages: list[str] = []
        try:
            identity = read_identity(path)
        except DataDirectoryRefused as error:
            damages.append(str(error))
        if identity is not None:
            with TemporaryDirectory(prefix="codeq-repair-") as aside:
                for shard in range(identity.shards):
                    damages += _damages(path.absolute(), shard, Path(aside))
        yield Examined(identity=identity, damages=tuple(damages), risks=_risks(identity))


def _risks(identity: Identity | None) -> tuple[str, ...]:
    if identity is None:
        return ("it cannot be read whether this node has peers that hold the same",)
    others = len(identity.peers)
    if others == 0:
        return ("this node has met no peers: nobody else holds what it holds",)
    if others == 1:
        peer = next(iter(identity.peers))
        return (f"its one peer {peer} is no majority of two, and a majority takes a node in",)
    return ()


def _damages(path: Path, shard: int, aside: Path) -> list[str]:
    try:
        if not (path / f"shard-{shard}").is_dir():
            return [f"shard-{shard} is missing"]
        with StoredShard(mirrored(path, shard, aside)) as stored:
            for _ in stored.rows(*_ALL):
                pass
            Journal(_Log(stored), cache_bytes_max=0).load(applied=stored.index)
    except (StorageFailed, DataDirectoryRefused) as error:
        return [f"shard-{shard}: {' '.join(str(error).split())}"]
    return []


class _Log:
    """The rows of a log that nobody writes."""

    def __init__(self, stored: StoredShard) -> None:
        self._stored = stored

    def get(self, key: bytes) -> bytes | None:
        return self._stored.log_get(key)

    def scan(
        self, start: bytes, end: bytes, *, limit: int, bytes_max: int
    ) -> list[tuple[bytes, bytes]]:
        del bytes_max  # Entries are a megabyte at most, and one process reads alone.
        return list(islice(self._stored.log_rows(start, end), min(limit, 256)))

    def last(self, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        raise AssertionError(f"nobody asks for the last row of {start!r} to {end!r}")

    def write(self, *_: object, **__: object) -> None:
        raise AssertionError("a log that is only looked at is not written")
