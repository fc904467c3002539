"""The stores under test: on RocksDB and in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.rocks import RocksShard, new_cache
from codeq_cluster.testing.memory_store import MemoryShard

# Small, so that tests reach the disk's files and not only the memtable.
SETTINGS = StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**16)


def open_rocks(path: Path) -> RocksShard:
    """Open a shard's directory."""
    return RocksShard(path, settings=SETTINGS, cache=new_cache(SETTINGS))


@pytest.fixture(params=["rocks", "memory"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RocksShard | MemoryShard]:
    """One fresh store of each kind."""
    made = open_rocks(tmp_path / "shard-0") if request.param == "rocks" else MemoryShard()
    yield made
    made.close()
