"""Twins: RocksDB, memory and a shard give the same answers to the same calls.

The shard's rows are partly in its memory and partly in its RocksDB.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.fakes.memory_store import MemoryShard
from tests.fakes.spilled_shard import SpilledShard

from .conftest import WaitedShard, open_rocks

# Keys are few and short, so that calls hit the same keys and their prefixes. They sort after the
# row in which RocksDB's state keeps its index, and before the log's own row.
keys = st.sampled_from(
    [
        b"k",
        b"k\x00",
        b"k\x00\x00",
        b"k\xff",
        b"k\xff\xff",
        b"l",
        b"m",
        b"n",
        b"n\xff",
    ]
)
values = st.binary(max_size=40)


class Twins(RuleBasedStateMachine):
    """Drives all three stores with the same calls, reopens RocksDB, and spills the shard."""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self._path = Path(self._directory.name) / "shard-0"
        self.rocks = SpilledShard(open_rocks(self._path))
        self.memory = MemoryShard()
        under = open_rocks(Path(self._directory.name) / "shard-1")
        self.shard = WaitedShard(under, spilled=False)

    def teardown(self) -> None:
        """Close and delete those on disk."""
        self.rocks.close()
        self.shard.close()
        self._directory.cleanup()

    @rule(
        mutations=st.dictionaries(keys, st.none() | values, max_size=5),
        digest=st.binary(min_size=16, max_size=16),
    )
    def commit(self, mutations: dict[bytes, bytes | None], digest: bytes) -> None:
        """Apply one entry to all three."""
        index = self.memory.state.applied_index + 1
        for twin in (self.rocks, self.memory, self.shard):
            twin.state.commit(mutations, index=index, digest=digest)

    @rule(
        puts=st.lists(st.tuples(keys, values), max_size=5),
        ranges=st.lists(st.tuples(keys, keys).map(sorted), max_size=2),
        sync=st.booleans(),
    )
    def write(
        self, puts: list[tuple[bytes, bytes]], ranges: list[list[bytes]], *, sync: bool
    ) -> None:
        """Write to all three logs."""
        for twin in (self.rocks, self.memory, self.shard):
            twin.log.write(puts, delete_ranges=[(a, b) for a, b in ranges], sync=sync)

    @rule(start=keys, end=keys, limit=st.integers(0, 4), bytes_max=st.integers(1, 60))
    def look(self, start: bytes, end: bytes, limit: int, bytes_max: int) -> None:
        """Compare the answers of every kind of read."""
        rocks, memory = self.rocks, self.memory
        assert memory.state.scan(start, end, limit) == rocks.state.scan(start, end, limit)
        assert memory.state.get_many([start, end]) == rocks.state.get_many([start, end])
        assert memory.log.get(start) == rocks.log.get(start)
        assert memory.log.scan(start, end, limit=limit, bytes_max=bytes_max) == rocks.log.scan(
            start, end, limit=limit, bytes_max=bytes_max
        )

    @rule(start=keys, end=keys, limit=st.integers(1, 4), bytes_max=st.integers(1, 60))
    def look_at_the_shard(self, start: bytes, end: bytes, limit: int, bytes_max: int) -> None:
        """Compare the shard with the store in memory, across pages of the log."""
        shard, memory = self.shard, self.memory
        assert memory.state.scan(start, end, limit) == shard.state.scan(start, end, limit)
        assert memory.state.get_many([start, end]) == shard.state.get_many([start, end])
        assert memory.log.get(start) == shard.log.get(start)
        wanted = memory.log.scan(start, end, limit=1000, bytes_max=2**20)
        found: list[tuple[bytes, bytes]] = []
        while page := shard.log.scan(start, end, limit=limit, bytes_max=bytes_max):
            assert len(page) <= limit
            found += page
            start = page[-1][0] + b"\x00"
        assert wanted == found

    @rule()
    def spill(self) -> None:
        """Let the shard's rows reach its database."""
        self.shard.spill()

    @rule()
    def reopen(self) -> None:
        """Restart the store on disk."""
        self.rocks.close()
        self.rocks = SpilledShard(open_rocks(self._path))

    @invariant()
    def they_are_at_the_same_entry(self) -> None:
        """Index and digest agree after every call."""
        memory = self.memory.state
        for twin in (self.rocks.state, self.shard.state):
            assert (memory.applied_index, memory.digest) == (twin.applied_index, twin.digest)


Twins.TestCase.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
test_twins = Twins.TestCase
