"""The stores under test: memory, RocksDB without a node, and a node's shards.

A shard is over RocksDB or a simulated disk, with its rows in memory or spilled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import pytest

from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.segments import Row
from tests.fakes.memory_store import MemoryShard
from tests.fakes.spilled_shard import SpilledShard
from tests.unit.storage.sim_node import SimNode

# A small memtable, so that tests reach the files on disk.
SETTINGS = StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**16)
# After the first time the write-ahead log has a write; after the second the spiller has spilled it.
_WRITTEN_S, _SPILLED_S = 0.01, 1.0


class State(Protocol):
    """The state of any store."""

    @property
    def applied_index(self) -> int:
        """Return the index of the last entry."""

    @property
    def digest(self) -> bytes:
        """Return the hash over all entries."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return values."""

    def scan(self, start: bytes, end: bytes, limit: int) -> list[Row]:
        """Return rows."""

    def commit(self, mutations: Mapping[bytes, bytes | None], *, index: int, digest: bytes) -> None:
        """Take an entry."""


class Log(Protocol):
    """The log of any store."""

    def get(self, key: bytes) -> bytes | None:
        """Return a value."""

    def scan(self, start: bytes, end: bytes, *, limit: int, bytes_max: int) -> list[Row]:
        """Return rows."""

    def write(
        self,
        puts: Sequence[Row],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        sync: bool,
    ) -> None:
        """Write rows."""


class Store(Protocol):
    """Any store."""

    @property
    def state(self) -> State:
        """Return the committed state."""

    @property
    def log(self) -> Log:
        """Return the rows of the log."""

    def close(self) -> None:
        """Close it."""


class _WaitedLog:
    """A shard's log that waits for its writes; a write without a sync becomes a `forget`."""

    def __init__(self, node: SimNode, then_s: float) -> None:
        self._node = node
        self._then_s = then_s
        self.get = node.shard(0).log.get
        self.scan = node.shard(0).log.scan

    def write(
        self,
        puts: Sequence[Row],
        *,
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
        sync: bool,
    ) -> None:
        if not sync:
            self._node.shard(0).log.forget(delete_ranges, puts)
            self._node.run(self._then_s)
            return
        told: list[BaseException | None] = []
        self._node.shard(0).log.write(puts, delete_ranges, told.append)
        self._node.run(self._then_s)
        assert [None] == told


class _WaitedState:
    """A shard's state that lets time pass after each commit."""

    def __init__(self, node: SimNode, then_s: float) -> None:
        self._node = node
        self._then_s = then_s
        self._state = node.shard(0).state
        self.get = self._state.get
        self.get_many = self._state.get_many
        self.scan = self._state.scan

    @property
    def applied_index(self) -> int:
        return self._state.applied_index

    @property
    def digest(self) -> bytes:
        return self._state.digest

    def commit(self, mutations: Mapping[bytes, bytes | None], *, index: int, digest: bytes) -> None:
        self._state.commit(mutations, index=index, digest=digest)
        self._node.run(self._then_s)


class WaitedShard:
    """A shard with a clock of its own.

    Args:
        rocks: Its database; None for a simulated one.
        spilled: When a call returns, every row is in the database; otherwise none is.
    """

    def __init__(self, rocks: RocksShard | None, *, spilled: bool) -> None:
        node = SimNode(shards=1, open_databases=(lambda: [rocks]) if rocks is not None else None)
        node.start()
        self._node = node
        then_s = _SPILLED_S if spilled else _WRITTEN_S
        self.log = _WaitedLog(node, then_s)
        self.state = _WaitedState(node, then_s)

    def spill(self) -> None:
        """Let everything reach the database."""
        self._node.run(_SPILLED_S)
        assert 0 == self._node.shard(0).size

    def close(self) -> None:
        """Close the database."""
        self._node.shard(0).close()


def open_rocks(path: Path) -> RocksShard:
    """Open a shard's directory."""
    return RocksShard(path, settings=SETTINGS, cache=new_cache(SETTINGS))


def _made(kind: str, path: Path) -> Store:
    match kind.split("-"):
        case ["rocks"]:
            return SpilledShard(open_rocks(path))
        case ["memory"]:
            return MemoryShard()
        case ["shard", "rocks", when]:
            return WaitedShard(open_rocks(path), spilled=when == "spilled")
        case _:
            return WaitedShard(None, spilled=kind.endswith("spilled"))


@pytest.fixture(
    params=[
        "rocks",
        "memory",
        "shard-rocks-buffered",
        "shard-rocks-spilled",
        "shard-simulated-buffered",
        "shard-simulated-spilled",
    ]
)
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """One fresh store of each kind."""
    made = _made(request.param, tmp_path / "shard-0")
    yield made
    made.close()
