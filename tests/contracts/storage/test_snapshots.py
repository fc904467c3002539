"""Snapshots of a shard on its disk: taken, copied in chunks, verified, installed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest

from codeq_cluster.errors import StorageFailed
from codeq_cluster.raft.journal_rows import rows_after_snapshot, stored_place
from codeq_cluster.snapshots.checkpoint import CHUNK_BYTES_MAX, IncomingSnapshot, Snapshots
from codeq_cluster.snapshots.manifest import File, SnapshotManifest
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.swap import incoming_path, settle
from tests.fakes.spilled_shard import SpilledShard, put_log

from .conftest import open_rocks

TERM = 3


class Side:
    """One node's shard and its snapshots."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.path = root / "shard-0"
        self.shard = open_rocks(self.path)
        self.snapshots = Snapshots(
            root / "snapshots",
            shard=0,
            store=self.shard,
            incoming=incoming_path(self.path),
            log_at=stored_place,
        )

    def fill(self, first: int, last: int, *, text: str = "leader's", rows: int = 20) -> None:
        """Write and apply entries, each with a batch of incompressible rows."""
        noise, state = Random(first), SpilledShard(self.shard).state
        for index in range(first, last + 1):
            puts, _ = rows_after_snapshot(index, TERM, vote_term=TERM, voted_for=text[:6])
            put_log(self.shard, puts)
            mutations: dict[bytes, bytes | None] = {
                b"%s/%d/%d" % (text.encode(), index, row): noise.randbytes(500)
                for row in range(rows)
            }
            state.commit(mutations, index=index, digest=index.to_bytes(16, "big"))

    def rows(self) -> list[tuple[bytes, bytes]]:
        """Return all rows of the state."""
        return self.shard.state.scan(b"", b"\xff", 10**6)

    def log_rows(self) -> list[tuple[bytes, bytes]]:
        """Return all rows of the log."""
        return self.shard.log.scan(b"", b"\xff", limit=10**6, bytes_max=2**30)


@pytest.fixture
def leader(tmp_path: Path) -> Iterator[Side]:
    """Yield a shard with entries 2 to 40, in files and in memory."""
    side = Side(tmp_path / "leader")
    side.fill(2, 40)
    yield side
    side.shard.close()


@pytest.fixture
def follower(tmp_path: Path) -> Iterator[Side]:
    """Yield a shard with entries 2 to 10 of its own."""
    side = Side(tmp_path / "follower")
    side.fill(2, 10, text="follower's")
    yield side
    side.shard.close()


def carry(leader: Side, manifest: SnapshotManifest, incoming: IncomingSnapshot) -> None:
    """Copy every chunk."""
    for number, file in enumerate(manifest.files):
        offset = 0
        while True:
            crc, chunk = leader.snapshots.read(manifest, number, offset)
            incoming.write(number, offset, crc, chunk)
            offset += len(chunk)
            if offset >= file.size:
                break


def carried(leader: Side, follower: Side) -> tuple[SnapshotManifest, IncomingSnapshot]:
    manifest = leader.snapshots.take()
    incoming = follower.snapshots.begin(manifest)
    carry(leader, manifest, incoming)
    return manifest, incoming


def test_a_snapshot_names_what_it_holds(leader: Side) -> None:
    """Index, term and digest are the last applied entry's; small files are listed first."""
    manifest = leader.snapshots.take()

    assert (40, TERM, (40).to_bytes(16, "big")) == (manifest.index, manifest.term, manifest.digest)
    sizes = [file.size for file in manifest.files]
    assert sorted(sizes) == sizes
    assert manifest.size == sum(sizes) > CHUNK_BYTES_MAX
    assert any(file.name == "CURRENT" for file in manifest.files)


def test_a_snapshot_stays_what_it_was(leader: Side, follower: Side) -> None:
    """Later writes to the shard are not in it."""
    before = leader.rows()
    manifest = leader.snapshots.take()
    leader.fill(41, 60)

    incoming = follower.snapshots.begin(manifest)
    carry(leader, manifest, incoming)
    incoming.verify()
    follower.shard.replace(rows_after_snapshot(40, TERM, vote_term=9, voted_for="n1")[0], index=40)

    assert before == follower.rows()


def test_a_replica_goes_on_from_a_snapshot(leader: Side, follower: Side) -> None:
    """`state` and `log` stay the same objects; log and vote are this node's own."""
    state, log = follower.shard.state, follower.shard.log
    manifest, incoming = carried(leader, follower)
    incoming.verify()
    puts, _ = rows_after_snapshot(manifest.index, manifest.term, vote_term=7, voted_for="n2")

    follower.shard.replace(puts, index=40)

    assert follower.shard.state is state
    assert follower.shard.log is log
    assert (40, manifest.digest) == (state.applied_index, state.digest)
    assert leader.rows() == follower.rows()
    assert sorted([*puts, (b"wal", bytes(8))]) == follower.log_rows()
    follower.fill(41, 42)
    assert 42 == state.applied_index
    assert ["shard-0"] == [each.name for each in follower.root.iterdir()]
    follower.shard.close()
    settle(follower.path)
    again = open_rocks(follower.path)
    assert 42 == again.state.applied_index
    assert 500 == len(again.state.get(b"leader's/40/1") or b"")
    again.close()


def test_many_exchanges_leave_nothing_behind(leader: Side, follower: Side) -> None:
    """Neither files nor handles accumulate over a long life."""
    for turn in range(5):
        leader.fill(41 + turn, 41 + turn)
        manifest, incoming = carried(leader, follower)
        incoming.verify()
        puts, _ = rows_after_snapshot(manifest.index, TERM, vote_term=TERM, voted_for=None)
        follower.shard.replace(puts, index=manifest.index)
        leader.snapshots.drop(manifest)

        assert leader.rows() == follower.rows()
    assert [] == list((leader.root / "snapshots").iterdir())
    assert ["shard-0"] == [each.name for each in follower.root.iterdir()]


@pytest.mark.parametrize("name", [".sst", "MANIFEST", "CURRENT"])
def test_a_flipped_bit_is_found_before_it_counts(leader: Side, follower: Side, name: str) -> None:
    """The bit may be in the rows, in the table of contents, or in that table's name."""
    manifest, incoming = carried(leader, follower)
    largest = [file.name for file in manifest.files if name in file.name][-1]
    damaged = bytearray((incoming.path / largest).read_bytes())
    damaged[len(damaged) // 3] ^= 0x10
    (incoming.path / largest).write_bytes(damaged)

    with pytest.raises(StorageFailed):
        incoming.verify()
    assert 10 == follower.shard.state.applied_index


def test_reading_through_ends_when_it_is_stopped(leader: Side, follower: Side) -> None:
    """Reading a large state takes minutes, which a stopping node does not have."""
    _, incoming = carried(leader, follower)

    incoming.stop()

    with pytest.raises(StorageFailed, match="stopped before its end"):
        incoming.verify()
    assert 10 == follower.shard.state.applied_index


def test_another_state_than_was_announced_is_refused(leader: Side, follower: Side) -> None:
    """The copied state must be the manifest's, down to the digest."""
    manifest = leader.snapshots.take()
    for lie in ({"index": 39}, {"term": TERM + 1}, {"digest": bytes(16)}):
        wrong = msgspec.structs.replace(manifest, **lie)
        incoming = follower.snapshots.begin(wrong)
        carry(leader, manifest, incoming)

        with pytest.raises(StorageFailed, match="holds entry 40"):
            incoming.verify()


def test_a_snapshot_that_lacks_a_file_is_refused(leader: Side, follower: Side) -> None:
    """Every file is needed, whether it has rows or the table of contents."""
    manifest = leader.snapshots.take()
    needed = [
        file
        for file in manifest.files
        if file.name.startswith(("CURRENT", "MANIFEST")) or file.name.endswith(".sst")
    ]
    assert len(needed) >= 4
    for missing in needed:
        incoming = follower.snapshots.begin(manifest)
        carry(leader, manifest, incoming)
        (incoming.path / missing.name).unlink()

        with pytest.raises(StorageFailed):
            incoming.verify()


SMALL = SnapshotManifest(
    id="1",
    shard=0,
    index=2,
    term=1,
    digest=bytes(16),
    files=(File("a", 0), File("b", 6)),
    members=b"",
)


@pytest.mark.parametrize(
    ("offset", "chunk", "crc_off"),
    [
        (0, b"abc", 1),
        (3, b"def", 0),
        (0, b"abcdefg", 0),
        (0, b"", 0),
        (7, b"", 0),
    ],
    ids=["wrong checksum", "out of order", "too long", "empty", "beyond the end"],
)
def test_a_chunk_that_cannot_be_right_is_refused(
    follower: Side, offset: int, chunk: bytes, crc_off: int
) -> None:
    """The file stays as it was."""
    incoming = follower.snapshots.begin(SMALL)

    with pytest.raises(ValueError, match="chunk"):
        incoming.write(1, offset, zlib.crc32(chunk) + crc_off, chunk)

    assert not (incoming.path / "b").exists() or not (incoming.path / "b").stat().st_size


def test_a_chunk_is_taken_once(follower: Side) -> None:
    """A repeated chunk does not fit, and neither does one after a lost chunk."""
    incoming = follower.snapshots.begin(SMALL)
    incoming.write(0, 0, 0, b"")
    incoming.write(1, 0, zlib.crc32(b"abc"), b"abc")

    with pytest.raises(ValueError, match="a chunk at 0 of a file that ends at 3"):
        incoming.write(1, 0, zlib.crc32(b"abc"), b"abc")
    incoming.write(1, 3, zlib.crc32(b"def"), b"def")
    with pytest.raises(ValueError, match="does not fit"):
        incoming.write(1, 6, zlib.crc32(b"g"), b"g")

    assert b"" == (incoming.path / "a").read_bytes()
    assert b"abcdef" == (incoming.path / "b").read_bytes()


def test_a_fetch_that_starts_over_starts_empty(follower: Side) -> None:
    """Nothing of an earlier fetch gets into a later one."""
    incoming = follower.snapshots.begin(SMALL)
    incoming.write(1, 0, zlib.crc32(b"abc"), b"abc")

    again = follower.snapshots.begin(SMALL)
    assert [] == list(again.path.iterdir())
    again.drop()
    assert not again.path.exists()


def test_another_shards_manifest_is_refused(follower: Side) -> None:
    """A snapshot is installed only on its own shard."""
    with pytest.raises(ValueError, match="of shard 1"):
        follower.snapshots.begin(msgspec.structs.replace(SMALL, shard=1))


def test_only_places_in_the_manifest_can_be_read(leader: Side) -> None:
    """A file or an offset outside the manifest is refused."""
    manifest = leader.snapshots.take()
    last = len(manifest.files) - 1

    for file, offset in ((-1, 0), (last + 1, 0), (0, -1), (last, manifest.files[last].size + 1)):
        with pytest.raises(ValueError, match="has no byte"):
            leader.snapshots.read(manifest, file, offset)
    assert (0, b"") == leader.snapshots.read(manifest, last, manifest.files[last].size)


def test_no_more_is_read_than_was_announced(leader: Side) -> None:
    """A file that has grown since is sent in its announced size."""
    manifest = leader.snapshots.take()
    current = next(n for n, file in enumerate(manifest.files) if file.name == "CURRENT")
    with (leader.root / "snapshots" / manifest.id / "CURRENT").open("ab") as file:
        file.write(b"more")

    _, chunk = leader.snapshots.read(manifest, current, 0)

    assert len(chunk) == manifest.files[current].size


def test_a_snapshot_that_is_gone_cannot_be_read(leader: Side) -> None:
    """The reader must start over."""
    manifest = leader.snapshots.take()
    leader.snapshots.drop(manifest)

    with pytest.raises(StorageFailed, match="reading a snapshot"):
        leader.snapshots.read(manifest, 0, 0)


def test_a_snapshot_that_fails_leaves_nothing(leader: Side) -> None:
    """A snapshot fails without room for it, or when the state does not match the log."""
    put_log(leader.shard, [], delete_ranges=[(b"log/", b"log0")])
    with pytest.raises(StorageFailed, match="lacks the log entry 40"):
        leader.snapshots.take()
    assert [] == list((leader.root / "snapshots").iterdir())

    (leader.root / "snapshots").rmdir()
    (leader.root / "snapshots").write_bytes(b"in the way")
    with pytest.raises(StorageFailed, match="taking a snapshot"):
        leader.snapshots.take()


def test_a_start_deletes_the_snapshots_of_an_earlier_life(leader: Side) -> None:
    """Their hard links would keep dead files on the disk."""
    leader.snapshots.take()
    assert list((leader.root / "snapshots").iterdir())

    Snapshots(
        leader.root / "snapshots",
        shard=0,
        store=leader.shard,
        incoming=incoming_path(leader.path),
        log_at=stored_place,
    )

    assert not (leader.root / "snapshots").exists()


def test_no_place_to_receive_counts_as_a_failure_of_the_disk(follower: Side) -> None:
    """Something else in the directory's place must not end the fetching for good."""
    incoming_path(follower.path).write_bytes(b"in the way")

    with pytest.raises(StorageFailed, match="receiving a snapshot"):
        follower.snapshots.begin(SMALL)


def test_what_is_being_fetched_outlives_a_disk_that_refused_a_write(
    leader: Side, follower: Side
) -> None:
    """The store is reopened during the fetch, as after any refused write."""
    manifest, incoming = carried(leader, follower)
    follower.shard.reopen()
    incoming.verify()

    follower.shard.replace(
        rows_after_snapshot(40, TERM, vote_term=TERM, voted_for=None)[0], index=manifest.index
    )

    assert leader.rows() == follower.rows()


@pytest.mark.parametrize("gone", [True, False])
def test_nothing_takes_the_place_of_a_state_but_what_was_fetched(
    leader: Side, follower: Side, *, gone: bool
) -> None:
    """The prepared directory may have been deleted or replaced."""
    manifest, incoming = carried(leader, follower)
    puts, _ = rows_after_snapshot(40, TERM, vote_term=TERM, voted_for=None)
    before = follower.rows(), follower.log_rows()
    if gone:
        incoming.drop()
    index = manifest.index + (not gone)

    with pytest.raises(StorageFailed, match=r"exchanging|not with 41"):
        follower.shard.replace(puts, index=index)

    assert before == (follower.rows(), follower.log_rows())
    follower.fill(11, 12)
    assert 12 == follower.shard.state.applied_index


def test_a_replica_that_cannot_exchange_says_so(leader: Side, follower: Side) -> None:
    """The node must stop; its next start finds either the old state or the new one."""
    _, incoming = carried(leader, follower)
    incoming.verify()
    marker = follower.path.with_name("shard-0.ready")
    marker.mkdir()
    (marker / "in the way").touch()

    with pytest.raises(StorageFailed, match="exchanging"):
        follower.shard.replace(
            rows_after_snapshot(40, TERM, vote_term=TERM, voted_for=None)[0], index=40
        )
    (marker / "in the way").unlink()
    marker.rmdir()
    settle(follower.path)
    again: RocksShard = open_rocks(follower.path)
    assert again.state.applied_index in (10, 40)
    again.close()
