"""Snapshots over real links: fetched once, continued, or started over."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random

import msgspec
import pytest

from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.errors import LinkLost, NotLeader, OutcomeUnknown, ReleaseTooOld, StorageFailed
from codeq_cluster.snapshots import fetcher as fetching
from codeq_cluster.snapshots import manifest as manifests
from codeq_cluster.snapshots import room as rooms
from codeq_cluster.snapshots import server as serving
from codeq_cluster.snapshots.fetcher import SnapshotFetcher
from codeq_cluster.snapshots.manifest import File, SnapshotManifest
from codeq_cluster.snapshots.ports import READ, TAKE
from codeq_cluster.snapshots.room import Room
from codeq_cluster.snapshots.server import SnapshotServer

from .conftest import DEADLINE_S, Node, Nodes, Wire, eventually, joined

CHUNK = 1000
FILES = {"CURRENT": b"now", "empty.log": b"", "000001.sst": Random(1).randbytes(12_345)}
SIZE = sum(map(len, FILES.values()))
# The number of chunks: one for each file, and twelve more for the largest.
CHUNKS = 15
RESERVE = 500


@dataclass
class Received:
    """A received snapshot: its files, chunk after chunk."""

    manifest: SnapshotManifest
    shelf: Shelf
    files: dict[str, bytes] = field(default_factory=dict)
    dropped: bool = False
    stopped: threading.Event = field(default_factory=threading.Event)
    reading: bool = False

    def write(self, file: int, offset: int, crc: int, chunk: bytes) -> None:
        """Store the next chunk."""
        name = self.manifest.files[file].name
        if zlib.crc32(chunk) != crc:
            raise ValueError("a damaged chunk")
        if offset != len(self.files.get(name, b"")):
            raise ValueError("a chunk out of order")
        self.files[name] = self.files.get(name, b"") + chunk

    def verify(self) -> None:
        """Compare with the leaders' snapshots."""
        self.reading = True
        self.shelf.verifying.set()
        give_up_at = time.monotonic() + DEADLINE_S
        while not self.shelf.may_end.wait(0.001):
            assert time.monotonic() < give_up_at, "read for too long"
            if self.stopped.is_set():
                self.reading = False
                raise StorageFailed("stopped")
        self.reading = False
        if self.shelf.damaged:
            self.shelf.damaged = False
            raise StorageFailed("damaged")

    def stop(self) -> None:
        """End the reading."""
        self.stopped.set()

    def drop(self) -> None:
        """Drop the snapshot once no reader uses it."""
        assert not self.reading
        self.dropped = True


@dataclass
class Shelf:
    """The snapshots of one shard of one node, in memory.

    Attributes:
        reads: How often each chunk was read, by (snapshot, file, offset).
        stop_at: Offset in the last file at which a read waits until the test lets it go on.
    """

    node_id: str
    taken: int = 0
    dropped: list[str] = field(default_factory=list)
    reads: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    received: list[Received] = field(default_factory=list)
    stop_at: int | None = None
    stopped: threading.Event = field(default_factory=threading.Event)
    may_go_on: threading.Event = field(default_factory=threading.Event)
    taking: threading.Event = field(default_factory=threading.Event)
    may_take: threading.Event = field(default_factory=threading.Event)
    dropping: threading.Event = field(default_factory=threading.Event)
    may_drop: threading.Event = field(default_factory=threading.Event)
    verifying: threading.Event = field(default_factory=threading.Event)
    may_end: threading.Event = field(default_factory=threading.Event)
    damaged: bool = False
    lies: int = 0
    full: bool = False

    def __post_init__(self) -> None:
        """Delay nothing unless a test asks for it."""
        self.may_take.set()
        self.may_drop.set()
        self.may_end.set()

    def take(self) -> SnapshotManifest:
        """Make a snapshot."""
        self.taking.set()
        self.may_take.wait(DEADLINE_S)
        if self.full:
            raise StorageFailed("no space left")
        self.taken += 1
        return SnapshotManifest(
            id=f"{self.node_id}-{self.taken}",
            shard=0,
            index=100 * self.taken,
            term=1,
            digest=bytes(16),
            files=tuple(File(name, len(data)) for name, data in FILES.items()),
            members=b"",
        )

    def read(self, snapshot: SnapshotManifest, file: int, offset: int) -> tuple[int, bytes]:
        """Read one chunk."""
        self.reads[snapshot.id, file, offset] += 1
        if file == 2 and offset == self.stop_at:
            self.stop_at = None
            self.stopped.set()
            self.may_go_on.wait(DEADLINE_S)
        chunk = FILES[snapshot.files[file].name][offset : offset + CHUNK]
        crc = zlib.crc32(chunk)
        if self.lies:
            self.lies -= 1
            crc ^= 1
        return crc, chunk

    def drop(self, snapshot: SnapshotManifest) -> None:
        """Delete a snapshot."""
        self.dropping.set()
        self.may_drop.wait(DEADLINE_S)
        self.dropped.append(snapshot.id)

    def begin(self, manifest: SnapshotManifest) -> Received:
        """Begin to receive a snapshot."""
        self.received.append(Received(manifest, self))
        return self.received[-1]


@dataclass
class Replica:
    """A replica of the shard; the test sets its leader and its need."""

    leader: str | None = "n1"
    log_first: int = 50
    at: int = 10
    held: int = 0
    installed: list[int] = field(default_factory=list)
    broken: bool = False
    serves_snapshots: bool = True
    wanted_from: int = 0
    level: int = LEVEL

    def hold(self) -> None:
        """Count how often the log was held."""
        self.held += 1

    def reaches(self, index: int) -> bool:
        """Return whether the log goes back to an index."""
        return self.log_first <= index

    def wants(self, index: int, term: int) -> bool:
        """Return whether the snapshot is ahead."""
        return index > self.at and term == 1

    async def exchange(self, index: int, term: int, members: bytes) -> bool:
        """Replace the state by a received snapshot."""
        if self.broken:
            raise StorageFailed("the disk refused")
        if not self.wants(index, term):
            return False
        self.at = index
        self.installed.append(index)
        return True


@dataclass
class Calls:
    """A node's link that records its calls."""

    node: Node
    asked: list[tuple[str, str, object, float]] = field(default_factory=list)

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Ask over the link."""
        self.asked.append((peer, method, body, timeout_s))
        return await self.node.running.call(peer, method, body, timeout_s=timeout_s, topic=topic)


class Member:
    """A node that serves and fetches snapshots of one shard."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.shelf = Shelf(node.id)
        self.replica = Replica()
        self.calls = Calls(node)
        self.took: list[int] = []
        self.failures: list[BaseException] = []
        self.rests: list[float] = []
        self.needed = False
        self.free_bytes = 2**40
        self.disk_answers = True
        self.out_of_room = False
        self.server = SnapshotServer(
            stores=[self.shelf],
            replicas=[self.replica],
            on_taken=lambda shard, _seconds: self.took.append(shard),
        )
        self.fetcher = self.paced(2**40)
        node.serve = self.server.serve

    @property
    def room(self) -> Room:
        """Return the test's free space."""
        return Room(
            free_bytes=self._free_bytes,
            reserve_bytes=RESERVE,
            is_out=lambda _shard: self.out_of_room,
        )

    def _free_bytes(self) -> int:
        if not self.disk_answers:
            raise OSError("no answer")
        return self.free_bytes

    def paced(self, bytes_per_s: int) -> SnapshotFetcher:
        """Return a fetcher with this pace, whose pauses take no time."""

        async def rest(seconds: float) -> None:
            self.rests.append(seconds)

        return SnapshotFetcher(
            stores=[self.shelf],
            replicas=[self.replica],
            calls=self.calls,
            room=self.room,
            bytes_per_s=bytes_per_s,
            hurries=lambda _shard: self.needed,
            on_installed=lambda shard, _seconds: self.took.append(shard),
            on_failed=lambda _shard, error: self.failures.append(error),
            rest=rest,
        )

    def reads(self) -> list[tuple[int, int]]:
        """Return file and offset of every chunk this node asked for, in order."""
        asked = [body for _, method, body, _ in self.calls.asked if method == READ]
        return [
            (file, offset)
            for _, _, file, offset in msgspec.convert(asked, list[tuple[int, str, int, int]])
        ]


async def members(nodes: Nodes, *ids: str) -> list[Member]:
    """Return nodes, of which the first leads the shard."""
    made = [Member(node) for node in nodes.make(*ids)]
    for each in made:
        await each.node.start()
    await joined(*(each.node for each in made))
    return made


@pytest.fixture
async def pair(nodes: Nodes) -> AsyncIterator[tuple[Member, Member]]:
    """Return a leader, and a follower that has fallen behind."""
    leader, follower = await members(nodes, "n1", "n2")
    yield leader, follower
    leader.shelf.may_go_on.set()
    follower.shelf.may_end.set()


async def test_a_snapshot_is_fetched_and_installed(pair: tuple[Member, Member]) -> None:
    """Each chunk is asked for once; both sides report the duration of their part."""
    leader, follower = pair

    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed
    assert FILES == follower.shelf.received[0].files
    assert CHUNKS == len(follower.reads()) == len({*follower.reads()})
    assert {1} == {*leader.shelf.reads.values()}
    assert ([0], [0]) == (leader.took, follower.took)
    assert leader.replica.held >= CHUNKS
    assert not follower.shelf.received[0].dropped


async def test_a_suspect_state_is_served_to_nobody(pair: tuple[Member, Member]) -> None:
    """The asking node gets the answer of a node that does not lead, and asks again."""
    leader, follower = pair
    leader.replica.serves_snapshots = False

    await follower.fetcher.fetch(0)
    assert [] == follower.replica.installed
    assert 0 == leader.shelf.taken
    leader.replica.serves_snapshots = True
    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed


async def test_a_snapshot_that_is_too_old_for_the_fetching_node_is_replaced(
    pair: tuple[Member, Member],
) -> None:
    """The fetching node's log begins after its index, so it could not continue from there."""
    leader, follower = pair
    await follower.fetcher.fetch(0)
    follower.replica.at = 10

    follower.replica.wanted_from = 100
    await follower.fetcher.fetch(0)
    assert 1 == leader.shelf.taken
    follower.replica.at = 10
    follower.replica.wanted_from = 101
    await follower.fetcher.fetch(0)

    assert 2 == leader.shelf.taken
    assert [[0, 100], [0, 101]] == [
        body for _, method, body, _ in follower.calls.asked if method == TAKE and body != [0, 0]
    ]


async def test_a_snapshot_of_a_replaced_state_is_no_longer_served(
    pair: tuple[Member, Member],
) -> None:
    """A leader whose own state has been replaced makes a new one."""
    leader, follower = pair
    await follower.fetcher.fetch(0)
    follower.replica.at = 10

    leader.server.forget(0)
    leader.server.forget(0)
    await follower.fetcher.fetch(0)

    assert 2 == leader.shelf.taken
    assert 2 == len(follower.replica.installed)


async def test_a_broken_link_costs_one_chunk(nodes: Nodes) -> None:
    """After the break it continues where it was: no received byte is asked for again."""
    leader_node, follower_node = nodes.make("n1", "n2")
    async with Wire(leader_node.port) as there, Wire(follower_node.port) as back:
        follower_node.peers["n1"] = f"127.0.0.1:{there.port}"
        leader_node.peers["n2"] = f"127.0.0.1:{back.port}"
        leader, follower = Member(leader_node), Member(follower_node)
        for node in (leader_node, follower_node):
            await node.start()
        await joined(leader_node, follower_node)
        leader.shelf.stop_at = 5 * CHUNK
        fetch = asyncio.create_task(follower.fetcher.fetch(0))
        await eventually(leader.shelf.stopped.is_set)

        there.cut()
        back.cut()
        await eventually(lambda: ("down", "n1", "lost") in follower_node.events)
        leader.shelf.may_go_on.set()
        await fetch

        assert [100] == follower.replica.installed
        assert FILES == follower.shelf.received[0].files
        repeated = {place: n for place, n in leader.shelf.reads.items() if n > 1}
        assert {("n1-1", 2, 5 * CHUNK)} == repeated.keys()
        assert sorted(follower.reads()) == follower.reads()
        assert 1 == leader.shelf.taken
        for node in (leader_node, follower_node):
            await node.stop()


async def test_a_leader_that_dies_is_not_waited_for(nodes: Nodes) -> None:
    """Once another node leads, the fetch is given up, and the next one is from there."""
    first, second, follower = await members(nodes, "n1", "n2", "n3")
    first.shelf.stop_at = 5 * CHUNK
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(first.shelf.stopped.is_set)
    for each in (second, follower):
        each.replica.leader = "n2"

    first.shelf.may_go_on.set()
    await first.node.stop()
    async with asyncio.timeout(DEADLINE_S):
        await fetch
    assert [] == follower.replica.installed
    assert follower.shelf.received[0].dropped
    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed
    assert "n2-1" == follower.shelf.received[1].manifest.id
    assert FILES == follower.shelf.received[1].files


async def test_a_deposed_leader_that_lives_serves_to_the_end(pair: tuple[Member, Member]) -> None:
    """Its snapshot is committed, whichever node leads now."""
    leader, follower = pair
    leader.shelf.stop_at = 5 * CHUNK
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(leader.shelf.stopped.is_set)

    for each in pair:
        each.replica.leader = "n2"
    leader.shelf.may_go_on.set()
    await fetch

    assert [100] == follower.replica.installed


async def test_a_fetch_of_a_deleted_snapshot_starts_over(nodes: Nodes) -> None:
    """After the log has moved on and another one was made, the old one is of no use."""
    leader, follower, other = await members(nodes, "n1", "n2", "n3")
    leader.shelf.stop_at = 5 * CHUNK
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(leader.shelf.stopped.is_set)
    leader.replica.log_first = 150
    await other.fetcher.fetch(0)
    assert [200] == other.replica.installed

    leader.shelf.may_go_on.set()
    await fetch
    assert [] == follower.replica.installed
    assert follower.shelf.received[0].dropped
    await follower.fetcher.fetch(0)

    assert [200] == follower.replica.installed
    assert ["n1-1"] == leader.shelf.dropped
    assert FILES == follower.shelf.received[1].files


async def test_followers_share_one_snapshot(nodes: Nodes) -> None:
    """No follower needs another one while the log reaches back to it."""
    leader, *followers = await members(nodes, "n1", "n2", "n3", "n4")

    await asyncio.gather(*(each.fetcher.fetch(0) for each in followers))

    assert 1 == leader.shelf.taken
    assert [[100]] * 3 == [each.replica.installed for each in followers]


async def test_one_fetch_at_a_time(pair: tuple[Member, Member]) -> None:
    """The leader repeatedly reports that a node is behind."""
    leader, follower = pair

    await asyncio.gather(*(follower.fetcher.fetch(0) for _ in range(5)))

    assert [100] == follower.replica.installed
    assert CHUNKS == leader.shelf.reads.total()


async def test_a_node_that_does_not_lead_serves_nothing(pair: tuple[Member, Member]) -> None:
    """The refusal names the leader, if the node knows one."""
    leader, follower = pair
    leader.replica.serves_snapshots = False
    for hint in ("n2", None):
        leader.replica.leader = hint

        with pytest.raises(NotLeader) as refused:
            await follower.node.running.call("n1", TAKE, [0, 0], timeout_s=5)

        assert hint == refused.value.hint
    await follower.fetcher.fetch(0)
    assert 0 == leader.shelf.taken
    assert [] == follower.shelf.received


async def test_a_leader_just_elected_serves_what_it_has(pair: tuple[Member, Member]) -> None:
    """If its majority needs the followers that are behind, it must serve them to be confirmed."""
    leader, follower = pair
    leader.replica.leader = None

    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed


async def test_a_node_that_knows_no_leader_fetches_nothing(pair: tuple[Member, Member]) -> None:
    """A node that does not need the offered snapshot fetches none of it."""
    _, follower = pair
    follower.replica.leader = None
    await follower.fetcher.fetch(0)
    assert [] == follower.calls.asked

    follower.replica.leader, follower.replica.at = "n1", 100
    await follower.fetcher.fetch(0)

    assert [] == follower.reads()
    assert [] == follower.shelf.received


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (TAKE, [-1, 0]),
        (TAKE, [1, 0]),
        (TAKE, ["0", 0]),
        (TAKE, 0),
        (TAKE, None),
        (READ, 0),
        (READ, [0, "n1-1", 0]),
        (READ, [1, "n1-1", 0, 0]),
        (READ, [-1, "n1-1", 0, 0]),
        (READ, [0, 1, 0, 0]),
    ],
)
async def test_a_question_that_makes_no_sense_is_refused(
    pair: tuple[Member, Member], method: str, body: object
) -> None:
    """A request for a missing shard, or in another form, is refused."""
    _, follower = pair

    with pytest.raises(OutcomeUnknown):
        await follower.node.running.call("n1", method, body, timeout_s=5)


async def test_a_read_of_an_unknown_snapshot_returns_nothing(
    pair: tuple[Member, Member],
) -> None:
    """A snapshot that never existed has no bytes."""
    _, follower = pair

    assert await follower.node.running.call("n1", READ, [0, "never", 0, 0], timeout_s=5) is None


async def test_the_pace_is_kept(pair: tuple[Member, Member]) -> None:
    """After each chunk but a file's last, the fetcher pauses for the rest of the bytes' time."""
    _, follower = pair

    await follower.paced(1).fetch(0)

    rests = CHUNKS - len(FILES)
    assert rests == len(follower.rests)
    assert all(0.9 * CHUNK < seconds <= CHUNK for seconds in follower.rests)


async def test_no_pace_keeps_a_shard_waiting_for_its_majority(pair: tuple[Member, Member]) -> None:
    """Without a majority there are no writes that a fast fetch could disturb."""
    _, follower = pair
    follower.needed = True

    await follower.paced(1).fetch(0)

    assert not follower.rests
    assert [0] == follower.took


async def test_every_wait_has_an_end(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call has a time limit, and a leader that cannot be reached is given up."""
    leader, follower = pair
    monkeypatch.setattr(fetching, "_STALLED_S_MAX", 0.0)
    leader.shelf.stop_at = 5 * CHUNK
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(leader.shelf.stopped.is_set)

    leader.shelf.may_go_on.set()
    await leader.node.stop()
    await fetch

    assert [] == follower.replica.installed
    assert follower.shelf.received[0].dropped
    assert [] == follower.failures
    assert all(0 < timeout_s <= 60 for *_, timeout_s in follower.calls.asked)


async def test_damage_in_transfer_restarts_the_fetch(pair: tuple[Member, Member]) -> None:
    """A chunk with a wrong checksum, or a state that cannot be read: neither is installed."""
    leader, follower = pair
    leader.shelf.lies = 1
    await follower.fetcher.fetch(0)
    follower.shelf.damaged = True
    await follower.fetcher.fetch(0)
    assert [True, True] == [each.dropped for each in follower.shelf.received]
    assert [] == follower.replica.installed
    assert [] == follower.failures

    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed


async def test_a_leader_whose_disk_is_full_is_asked_again(pair: tuple[Member, Member]) -> None:
    """Such a leader serves no snapshot, and continues to lead."""
    leader, follower = pair
    leader.shelf.full = True
    await follower.fetcher.fetch(0)
    assert [] == follower.shelf.received

    leader.shelf.full = False
    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed


async def test_what_there_is_no_room_for_is_not_fetched(
    pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture
) -> None:
    """The leader is asked and the operator informed once; the disk is checked ever less often."""
    leader, follower = pair
    follower.free_bytes = SIZE + RESERVE - 1

    for _ in range(10):
        await follower.fetcher.fetch(0)

    assert [] == follower.reads()
    assert [True] == [each.dropped for each in follower.shelf.received]
    assert [TAKE] == [method for _, method, *_ in follower.calls.asked]
    assert [0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60] == follower.rests
    [told] = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert "no room for a snapshot" == told.message
    assert {
        "shard": 0,
        "bytes": SIZE,
        "needed_bytes": SIZE + RESERVE,
        "free_bytes": SIZE + RESERVE - 1,
    }.items() <= told.__dict__.items()
    follower.free_bytes += 1
    await follower.fetcher.fetch(0)
    assert [100] == follower.replica.installed
    follower.replica.at, follower.free_bytes = 10, 0
    follower.rests.clear()
    await follower.fetcher.fetch(0)
    assert [0.25] == follower.rests
    assert 1 == leader.shelf.taken


async def test_how_much_room_is_needed_is_asked_again(
    pair: tuple[Member, Member], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state may have shrunk since, and the operator may have missed the first line."""
    _, follower = pair
    monkeypatch.setattr(rooms, "_ASK_S", 0.0)
    follower.free_bytes = 0

    for _ in range(3):
        await follower.fetcher.fetch(0)

    assert [TAKE] * 3 == [method for _, method, *_ in follower.calls.asked]
    assert 3 == sum(each.message == "no room for a snapshot" for each in caplog.records)


async def test_two_snapshots_do_not_count_on_the_same_room() -> None:
    """Another shard's missing bytes count as taken; received ones are no longer free."""
    lent, behind = [Shelf("a"), Shelf("b")], [Replica(), Replica()]
    server = SnapshotServer(
        stores=lent, replicas=[Replica(), Replica()], on_taken=lambda _shard, _seconds: None
    )

    class Direct:
        async def call(
            self,
            peer: str,
            method: str,
            body: object,
            *,
            timeout_s: float,
            topic: int | None = None,
        ) -> object:
            return await server.serve(peer, method, body, timeout_s)

    come = len(FILES["CURRENT"]) + 4 * CHUNK
    free_bytes = RESERVE + SIZE - come + SIZE - 1
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    fetcher = SnapshotFetcher(
        stores=[Shelf("c"), Shelf("d")],
        replicas=behind,
        calls=Direct(),
        room=Room(
            free_bytes=lambda: free_bytes, reserve_bytes=RESERVE, is_out=lambda _shard: False
        ),
        bytes_per_s=1,
        hurries=lambda _shard: True,
        on_installed=lambda _shard, _seconds: None,
        on_failed=lambda _shard, _error: None,
        rest=rest,
    )
    lent[0].stop_at = 4 * CHUNK
    first = asyncio.create_task(fetcher.fetch(0))
    await eventually(lent[0].stopped.is_set)

    await fetcher.fetch(1)
    assert ([0.25], []) == (rests, behind[1].installed)
    free_bytes += 1
    await fetcher.fetch(1)
    assert [100] == behind[1].installed
    lent[0].may_go_on.set()
    await first

    assert [100] == behind[0].installed


async def test_a_fetch_ends_when_its_shard_is_out_for_want_of_room(
    pair: tuple[Member, Member],
) -> None:
    """The fetch does not fill the disk further, whatever has filled it."""
    leader, follower = pair
    leader.shelf.stop_at = 5 * CHUNK
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(leader.shelf.stopped.is_set)

    follower.out_of_room = True
    leader.shelf.may_go_on.set()
    await fetch

    assert (2, 5 * CHUNK) == follower.reads()[-1]
    [received] = follower.shelf.received
    assert received.dropped
    assert 5 * CHUNK == len(received.files["000001.sst"])
    assert [] == follower.replica.installed


async def test_a_disk_that_cannot_be_asked_for_room_is_asked_again(
    pair: tuple[Member, Member],
) -> None:
    """Nothing is fetched onto it meanwhile."""
    _, follower = pair
    follower.disk_answers = False
    await follower.fetcher.fetch(0)
    follower.disk_answers = True
    assert [] == follower.reads()
    assert follower.shelf.received[0].dropped

    await follower.fetcher.fetch(0)

    assert [100] == follower.replica.installed


async def test_what_leads_forward_no_more_is_dropped(pair: tuple[Member, Member]) -> None:
    """During the fetch, the replica may have caught up by itself."""
    _, follower = pair
    follower.shelf.may_end.clear()
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(follower.shelf.verifying.is_set)

    follower.replica.at = 500
    follower.shelf.may_end.set()
    await fetch

    assert [] == follower.replica.installed
    assert follower.shelf.received[0].dropped
    assert [] == follower.took


async def test_an_exchange_that_fails_stops_the_node(pair: tuple[Member, Member]) -> None:
    """The next start settles what the disk holds."""
    _, follower = pair
    follower.replica.broken = True

    await follower.fetcher.fetch(0)

    assert ["the disk refused"] == [str(error) for error in follower.failures]
    assert not follower.shelf.received[0].dropped


async def test_the_log_is_held_while_a_snapshot_is_read_through(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a large state takes longer than a leader keeps an unused snapshot."""
    leader, follower = pair
    monkeypatch.setattr(fetching, "_KEEP_S", 0.01)
    follower.shelf.may_end.clear()
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(follower.shelf.verifying.is_set)
    held = leader.replica.held

    await eventually(lambda: leader.replica.held >= held + 3)
    # The read must go on even if the leader dies meanwhile.
    await leader.node.stop()
    follower.shelf.may_end.set()
    await fetch

    assert [100] == follower.replica.installed


async def test_a_stop_does_not_wait_for_a_snapshot_to_be_read_through(
    pair: tuple[Member, Member],
) -> None:
    """No thread remains that the process would have to wait for."""
    _, follower = pair
    follower.shelf.may_end.clear()
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(follower.shelf.verifying.is_set)

    fetch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetch

    [received] = follower.shelf.received
    assert not received.reading
    assert received.dropped
    assert [] == follower.replica.installed


async def test_a_snapshot_is_not_read_on_when_its_shard_is_out_for_want_of_room(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading on would keep the snapshot, and the snapshot takes the room."""
    _, follower = pair
    monkeypatch.setattr(fetching, "_KEEP_S", 0.01)
    follower.shelf.may_end.clear()
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(follower.shelf.verifying.is_set)

    follower.out_of_room = True
    await fetch

    assert not follower.shelf.may_end.is_set()
    assert follower.shelf.received[0].dropped
    assert [] == follower.replica.installed


async def test_an_unread_snapshot_is_deleted(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot takes disk space while it exists."""
    leader, follower = pair
    monkeypatch.setattr(serving, "_UNREAD_S_MAX", 0.04)
    said = await follower.node.running.call("n1", TAKE, [0, 0], timeout_s=5)
    manifest = manifests.decode(said)
    watch = asyncio.create_task(leader.server.watch())

    await eventually(lambda: leader.shelf.dropped == [manifest.id])

    place = [0, manifest.id, 0, 0]
    assert await follower.node.running.call("n1", READ, place, timeout_s=5) is None
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_a_snapshot_of_a_state_that_is_swapped_meanwhile_is_not_served() -> None:
    """The thread that makes it reads a state that has been replaced by the time it ends."""
    shelf, replica = Shelf("a"), Replica()
    server = SnapshotServer(
        stores=[shelf], replicas=[replica], on_taken=lambda _shard, _seconds: None
    )
    shelf.may_take.clear()
    taking = asyncio.create_task(server.serve("n2", TAKE, [0, 0], 5.0))
    await eventually(shelf.taking.is_set)

    server.forget(0)
    shelf.may_take.set()

    with pytest.raises(NotLeader):
        await taking
    assert ["a-1"] == shelf.dropped
    again = await server.serve("n2", TAKE, [0, 0], 5.0)
    assert "a-2" == manifests.decode(again).id


@pytest.mark.parametrize(
    ("forgotten", "dropped"),
    [(True, ["b-1"]), (False, ["b-1", "b-2"])],
    ids=["forgotten", "followed by another"],
)
async def test_what_becomes_of_one_while_another_is_deleted_is_seen(
    monkeypatch: pytest.MonkeyPatch, *, forgotten: bool, dropped: list[str]
) -> None:
    """Every snapshot is deleted once, and the watch continues."""
    monkeypatch.setattr(serving, "_UNREAD_S_MAX", 0.04)
    slow, other = Shelf("a"), Shelf("b")
    replicas = [Replica(), Replica()]
    server = SnapshotServer(
        stores=[slow, other], replicas=replicas, on_taken=lambda _shard, _seconds: None
    )
    for shard in (0, 1):
        await server.serve("n2", TAKE, [shard, 0], 5.0)
    slow.may_drop.clear()
    watch = asyncio.create_task(server.watch())
    await eventually(slow.dropping.is_set)

    if forgotten:
        server.forget(1)
    else:
        replicas[1].log_first = 150
        await server.serve("n2", TAKE, [1, 0], 5.0)
    slow.may_drop.set()
    await eventually(lambda: dropped[-1] in other.dropped or watch.done())
    replicas[0].log_first = 150
    await server.serve("n2", TAKE, [0, 0], 5.0)
    await eventually(lambda: "a-2" in slow.dropped or watch.done())

    assert not watch.done()
    assert (["a-1", "a-2"], dropped) == (slow.dropped, other.dropped)
    watch.cancel()
    await asyncio.gather(watch, return_exceptions=True)


async def test_a_repeated_request_keeps_a_snapshot(
    pair: tuple[Member, Member], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot that is offered again counts as read."""
    leader, follower = pair
    call = follower.node.running.call
    first = manifests.decode(await call("n1", TAKE, [0, 0], timeout_s=5))
    read_at = leader.server._served[0].read_at
    monkeypatch.setattr(serving, "_UNREAD_S_MAX", 0.0)

    again = manifests.decode(await call("n1", TAKE, [0, 0], timeout_s=5))

    assert first == again
    assert leader.server._served[0].read_at > read_at


async def test_a_snapshot_made_too_late_is_served_to_a_repeated_request(
    pair: tuple[Member, Member],
) -> None:
    """A disk may be slower than peers wait; its finished snapshot is served, not made again."""
    leader, follower = pair
    call = follower.node.running.call
    leader.shelf.may_take.clear()
    with pytest.raises(LinkLost):
        await call("n1", TAKE, [0, 0], timeout_s=0.2)
    await eventually(leader.shelf.taking.is_set)
    leader.shelf.may_take.set()

    manifest = manifests.decode(await call("n1", TAKE, [0, 0], timeout_s=5))

    assert ("n1-1", 1) == (manifest.id, leader.shelf.taken)


async def test_a_stop_in_the_middle_leaves_nothing(pair: tuple[Member, Member]) -> None:
    """A node that ends during a fetch drops the received part."""
    leader, follower = pair
    leader.shelf.stop_at = 5 * CHUNK
    fetch = asyncio.create_task(follower.fetcher.fetch(0))
    await eventually(leader.shelf.stopped.is_set)

    fetch.cancel()
    leader.shelf.may_go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await fetch
    assert follower.shelf.received[0].dropped


async def test_a_snapshot_of_a_later_release_is_refused_before_it_is_fetched(
    pair: tuple[Member, Member],
) -> None:
    """The node is told to stop; not a byte of it has come."""
    leader, follower = pair
    leader.replica.level = LEVEL + 1
    await follower.fetcher.fetch(0)

    assert [ReleaseTooOld] == [type(error) for error in follower.failures]
    assert not follower.reads()
    assert not follower.replica.installed
