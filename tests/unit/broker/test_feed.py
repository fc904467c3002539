"""Feed: no end of a task is lost, wherever and whenever a watcher goes on."""

from __future__ import annotations

import asyncio
import copy
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.broker.feed import cursor, events
from codeq_cluster.broker.feed.cursor import (
    CursorExpired,
    CursorInvalid,
    OtherHistory,
    Position,
    check_of,
)
from codeq_cluster.broker.feed.events import Event, EventFilter, EventKind, events_of
from codeq_cluster.broker.feed.feed import LOOK_MAX, Feed, Reader
from codeq_cluster.broker.feed.ring import RING_ENTRIES_MAX, Ring
from codeq_cluster.broker.ports import LogEntry
from codeq_cluster.codec import entries, keyspace
from codeq_cluster.core.operations import Cancel, Operation
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import State
from codeq_cluster.errors import NoLeader
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard, shards_of, submit

ALL = EventFilter(tenant="acme")
ENDS = {EventKind.COMPLETED, EventKind.CANCELLED}


def quoted(text: str) -> bool:
    """Return whether a text has a character that a query would quote."""
    return not text.replace("-", "").replace("_", "").isalnum()


@dataclass
class Cluster:
    """A leader of two shards, and a node that follows it when it is told to.

    Attributes:
        told: What a watcher has seen.
        after: Its cursor.
    """

    leads: list[Shard] = field(default_factory=list)
    follows: list[Shard] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    after: str = ""
    failures: int = 0

    def __post_init__(self) -> None:
        for nodes in (self.leads, self.follows):
            clock = TestClock()
            nodes += [make_shard(MemoryShard(), clock, number=n, shards=2) for n in range(2)]
        for shard in self.leads:
            shard.log.lead()
        self.feeds = [self._feed(self.leads), self._feed(self.follows)]

    def _feed(self, shards: Sequence[Shard]) -> Feed:
        # Both nodes ask the one that leads how far its log goes.
        leaders = shards_of(*self.leads)
        seen = shards_of(*shards)
        seen.read = leaders.read  # type: ignore[method-assign]
        return Feed(seen, failed=self._failed)

    def _failed(self) -> None:
        self.failures += 1

    def follow(self) -> None:
        """Apply on the other node what the leader has applied."""
        for leader, follower in zip(self.leads, self.follows, strict=True):
            for _, term, payload in leader.log.applied[len(follower.log.applied) :]:
                follower.log._apply(term, payload)

    def install(self, shard: int) -> None:
        """Give the other node the leader's state as a snapshot: its log begins after it."""
        leader, follower = self.leads[shard], self.follows[shard]
        vars(follower.store.state).update(copy.deepcopy(vars(leader.store.state)))
        follower.log.applied = [*leader.log.applied]
        follower.log.trim(follower.engine.applied_index + 1)
        follower.engine.reload()

    async def operate(self, shard: int, *operations: Operation) -> None:
        """Carry out operations in one entry."""
        leads = self.leads[shard]
        leads.log.held = True
        waiting = asyncio.gather(*(leads.engine.operate([each]) for each in operations))
        await asyncio.sleep(0)
        leads.log.release()
        await waiting

    async def reader(self, node: int, after: str) -> Reader:
        """Return a reader on one of the nodes."""
        loop = asyncio.get_running_loop()
        return await self.feeds[node].reader(ALL, after, deadline=loop.time() + 10)

    def stop(self) -> None:
        """Stop both nodes."""
        for shard in (*self.leads, *self.follows):
            shard.engine.stop()


# What happens: on a shard some tasks change within one entry, the other node follows, or the
# watcher opens a stream on a node, reads, keeps what it got of it, and perhaps goes on elsewhere.
changes = st.tuples(
    st.just("change"), st.integers(0, 1), st.lists(st.sampled_from("ncsxt"), min_size=1, max_size=5)
)
reads = st.tuples(st.just("read"), st.integers(0, 1), st.integers(0, 9))
moves = st.tuples(st.sampled_from(["open", "follow"]), st.integers(0, 1), st.just(0))
steps = st.lists(st.one_of(changes, reads, moves), max_size=25)


@given(steps)
def test_no_end_is_lost_whatever_happens_between(taken: Sequence[tuple[str, int, object]]) -> None:
    """Each task that has ended was told as ended; each look has the order of the logs."""
    asyncio.run(_story(taken))


async def _story(taken: Sequence[tuple[str, int, object]]) -> None:
    cluster = Cluster()
    made = 0
    with cluster.feeds[0].watched():
        cluster.after = (await cluster.reader(0, "")).cursor
    with ExitStack() as watching:
        readers: dict[int, Reader] = {}
        for what, number, detail in taken:
            if what == "follow":
                cluster.follow()
            elif what == "change":
                assert isinstance(detail, list)
                made += await _change(cluster, number, detail, made)
            else:
                assert isinstance(detail, int)
                node = number
                if node == 1:
                    cluster.follow()
                if node not in readers:
                    # Moves to the other node: the one before has been killed.
                    readers.clear()
                    watching.pop_all().close()
                    watching.enter_context(cluster.feeds[node].watched())
                    readers[node] = await cluster.reader(node, cluster.after)
                if what == "open":
                    continue
                found = await readers[node].next(0)
                for shard in range(2):
                    indexes = [each.index for each in found if each.shard == shard]
                    assert sorted(indexes) == indexes
                if detail and detail < len(found):
                    # The connection breaks within a batch: its cursor was not seen.
                    cluster.told += found[:detail]
                    readers.clear()
                else:
                    cluster.told += found
                    cluster.after = readers[node].cursor
        cluster.follow()
        last = await cluster.reader(1, cluster.after)
        while found := await last.next(0):
            cluster.told += found
    told = {event.task_id for event in cluster.told if event.kind in ENDS}
    ended = {
        change.after.id
        for shard in cluster.leads
        for change in shard.seen.changes
        if change.after is not None and change.after.state.terminal
    }
    cluster.stop()

    assert ended == told
    assert 0 == cluster.failures


async def _change(cluster: Cluster, shard: int, what: Sequence[str], made: int) -> int:
    """Change tasks of a shard within one entry; return how many were created."""
    operations: list[Operation] = []
    new = 0
    for n, each in enumerate(what):
        target = f"{shard}-{(made + n) % max(1, made)}"
        if each == "n":
            operations.append(create(f"{shard}-{made + new}"))
            new += 1
        elif each == "c":
            operations.append(claim(f"c-{made}-{n}"))
        elif each == "s":
            operations.append(submit(target))
        elif each == "x":
            operations.append(Cancel(request=f"x-{made}-{n}", id=target, tenant="acme"))
        else:
            operations.append(ChangeTags(id=target, tenant="acme", put=(("n", str(made + n)),)))
    await cluster.operate(shard, *operations)
    return new


@given(st.lists(st.builds(Position, st.integers(0, 2**53), st.integers(0, 2**32 - 1)), min_size=1))
def test_a_cursor_is_read_as_it_was_written(positions: list[Position]) -> None:
    """And needs no quotes in a query."""
    text = cursor.encode(positions)

    assert positions == cursor.decode(text, shards=len(positions))
    assert not quoted(text)
    with pytest.raises(OtherHistory):
        cursor.decode(text, shards=len(positions) + 1)


@given(st.one_of(st.text(), st.text("AZaz09-_"), st.binary().map(lambda raw: raw.hex())))
def test_a_text_that_is_no_cursor_is_refused(text: str) -> None:
    """Whatever it is, and however long."""
    with pytest.raises((CursorInvalid, OtherHistory)):
        cursor.decode(text * 99, shards=7)


@pytest.mark.parametrize("watched", [False, True])
async def test_what_happens_in_an_entry_is_one_event_a_task(*, watched: bool) -> None:
    """A state within the entry is merged with the last one, from memory as from the log."""
    cluster = Cluster()
    with ExitStack() as stack:
        after = (await cluster.reader(0, "")).cursor
        if watched:
            stack.enter_context(cluster.feeds[0].watched())
        await cluster.operate(0, create("a"), create("b", command="other"), claim("c1"))
        await cluster.operate(0, Cancel(request="x", id="b", tenant="acme"), submit("a"))
        found = await (await cluster.reader(0, after)).next(0)
    cluster.stop()

    assert [
        ("a", EventKind.CLAIMED),
        ("b", EventKind.READY),
        ("a", EventKind.COMPLETED),
        ("b", EventKind.CANCELLED),
    ] == [(each.task_id, each.kind) for each in sorted(found, key=lambda e: (e.index, e.task_id))]


async def test_a_reader_waits_for_an_entry_and_no_longer_than_asked() -> None:
    """It is told once the entries of a moment have gathered."""
    cluster = Cluster()
    with cluster.feeds[0].watched():
        reader = await cluster.reader(0, "")
        nothing = await reader.next(0)
        waiting = asyncio.ensure_future(reader.next(60))
        await asyncio.sleep(0)
        await cluster.operate(1, create("a"))
        async with asyncio.timeout(20):
            found = await waiting
    cluster.stop()

    assert [] == nothing
    assert ["a"] == [each.task_id for each in found]


async def test_a_filter_that_fits_little_leaves_the_loop_to_others() -> None:
    """However many entries are in memory, a watcher compares some of them on a turn of the loop."""
    cluster = Cluster()
    entries_max = 3 * LOOK_MAX // 4
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with cluster.feeds[0].watched():
        reader = await cluster.feeds[0].reader(
            EventFilter(tenant="acme", task_id="last"), "", deadline=math.inf
        )
        for n in range(entries_max):
            await cluster.operate(0, *(create(f"{n}-{each}") for each in "abc"))
        await cluster.operate(0, create("last"))
        await asyncio.sleep(0)
        beside = asyncio.ensure_future(others())
        found = await reader.next(60)
        beside.cancel()
    cluster.stop()

    assert ["last"] == [event.task_id for event in found]
    assert 4 * entries_max // LOOK_MAX <= turns


async def test_a_node_that_is_behind_waits_for_what_another_has_shown() -> None:
    """It tells nothing twice and skips nothing; it says so if it does not get there."""
    cluster = Cluster()
    with cluster.feeds[0].watched():
        ahead = await cluster.reader(0, "")
        await cluster.operate(0, create("a"))
        seen = await ahead.next(0)
    with cluster.feeds[1].watched():
        loop = asyncio.get_running_loop()
        with pytest.raises(NoLeader, match="ask another node"):
            await cluster.feeds[1].reader(ALL, ahead.cursor, deadline=loop.time() + 0.01)
        waiting = asyncio.ensure_future(cluster.reader(1, ahead.cursor))
        await asyncio.sleep(0)
        cluster.follow()
        await cluster.operate(0, create("b"))
        cluster.follow()
        async with asyncio.timeout(20):
            found = await (await waiting).next(0)
    cluster.stop()

    assert ["a"] == [each.task_id for each in seen]
    assert ["b"] == [each.task_id for each in found]


async def test_what_the_log_has_forgotten_is_asked_of_others_and_else_expired() -> None:
    """The other node's entries are told as the own ones would be."""
    cluster = Cluster()
    after = (await cluster.reader(0, "")).cursor
    await cluster.operate(0, create("a"))
    await cluster.operate(0, claim("c"), submit("a"))
    kept = [*cluster.leads[0].log.applied]
    cluster.leads[0].log.trim(len(kept) + 1)

    async def elsewhere(
        shard: int, position: Position, bytes_max: int
    ) -> Sequence[LogEntry] | None:
        found = [entry for entry in kept if entry[0] > position.index]
        return found if shard == 0 else None

    with pytest.raises(CursorExpired):
        await cluster.reader(0, after)
    cluster.feeds[0] = Feed(shards_of(*cluster.leads), failed=cluster._failed, elsewhere=elsewhere)
    found = await (await cluster.reader(0, after)).next(0)
    cluster.stop()

    assert [EventKind.READY, EventKind.COMPLETED] == [each.kind for each in found]


async def test_a_watcher_that_resumes_waits_neither_for_others_nor_for_ever() -> None:
    """Its cursor is checked by one entry of a shard, while others wait for a peer that is slow."""
    cluster = Cluster()
    old = (await cluster.reader(0, "")).cursor
    for n in range(20):
        await cluster.operate(0, create(f"a-{n}"))
        await cluster.operate(1, create(f"b-{n}"))
    logs = [shard.log for shard in cluster.leads]
    logs[0].trim(10)
    new = (await cluster.reader(0, "")).cursor
    asked = asyncio.Event()

    async def silent(shard: int, position: Position, bytes_max: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    feed = cluster.feeds[0] = Feed(
        shards_of(*cluster.leads), failed=cluster._failed, elsewhere=silent
    )
    loop = asyncio.get_running_loop()
    waiting = asyncio.ensure_future(feed.reader(ALL, old, deadline=loop.time() + 1000))
    await asked.wait()
    before = [log.read for log in logs]
    async with asyncio.timeout(20):
        reader = await cluster.reader(0, new)
    read = [log.read - already for log, already in zip(logs, before, strict=True)]
    with pytest.raises(NoLeader, match="ask another node"):
        await feed.reader(ALL, old, deadline=loop.time() + 0.01)
    still_waiting = not waiting.done()
    waiting.cancel()
    cluster.stop()

    assert new == reader.cursor
    assert [1, 1] == read
    assert still_waiting


async def test_a_watcher_is_told_what_a_snapshot_has_brought_before_the_next_entry_comes() -> None:
    """The entries that the node never applied come from a peer; a quiet shard has no other ones."""
    cluster = Cluster()

    async def elsewhere(
        shard: int, position: Position, bytes_max: int
    ) -> Sequence[LogEntry] | None:
        return cluster.feeds[0].logged(shard, position, bytes_max)

    cluster.feeds[1] = Feed(
        shards_of(*cluster.follows), failed=cluster._failed, elsewhere=elsewhere
    )
    with cluster.feeds[1].watched():
        reader = await cluster.reader(1, "")
        await cluster.operate(0, create("a"))
        cluster.follow()
        applied = await reader.next(0)
        await cluster.operate(0, create("b"))
        cluster.install(0)
        installed = await reader.next(0)
        await cluster.operate(0, create("c"))
        cluster.follow()
        followed = await reader.next(0)
    cluster.stop()

    assert [["a"], ["b"], ["c"]] == [
        [event.task_id for event in found] for found in (applied, installed, followed)
    ]


async def test_another_entry_at_the_same_place_is_another_history() -> None:
    """Also if it is in memory, or if the log is longer."""
    cluster, other = Cluster(), Cluster()
    for each in (cluster, other):
        await each.operate(0, create("a" if each is cluster else "b"))
    foreign = (await other.reader(0, "")).cursor
    with cluster.feeds[0].watched():
        await cluster.operate(0, create("c"))
        with pytest.raises(OtherHistory):
            await cluster.reader(0, foreign)
    cluster.stop()
    other.stop()


async def test_a_fenced_entry_is_no_event() -> None:
    """What another term decided has no effect, in memory and in the log."""
    cluster = Cluster()
    after = (await cluster.reader(0, "")).cursor
    shard = cluster.leads[0]
    with cluster.feeds[0].watched():
        shard.log.held = True
        waiting = asyncio.ensure_future(shard.engine.operate([create("a")]))
        await asyncio.sleep(0)
        shard.log.take()
        shard.log.depose()
        shard.log.commit(term=9)
        found = [await (await cluster.reader(0, after)).next(0)]
    found.append(await (await cluster.reader(0, after)).next(0))
    await asyncio.gather(waiting, return_exceptions=True)
    cluster.stop()

    assert 1 == shard.engine.fenced
    assert [[], []] == found


async def test_a_deleted_task_is_told_by_its_id_and_queue() -> None:
    """Nothing else of it is left; who asks for tags does not see it."""
    task = keyspace.task("a")
    place = keyspace.inprog("render", "acme", task_id="a")
    entry = entries.Entry(1, 1, 7, 1, {task: None, place: None})
    [event] = events_of(entry, shard=2, index=5, failed=pytest.fail)
    tagged = EventFilter(tenant="acme", tags=frozenset({("env", "prod")}))

    assert EventKind.DELETED is event.kind
    assert ("a", "acme", "render", 7) == (event.task_id, event.tenant, event.queue, event.at_ms)
    assert ALL.fits(event)
    assert not tagged.fits(event)


def test_a_task_that_cannot_be_read_is_counted_and_left_out() -> None:
    """The entry's other tasks are told."""
    failed: list[int] = []
    rows: dict[bytes, bytes | None] = {keyspace.task("a"): b"\x09"}
    entry = entries.Entry(1, 1, 7, 1, rows)

    assert () == events_of(entry, shard=0, index=5, failed=lambda: failed.append(1))
    assert [1] == failed


def test_a_ring_is_bounded_and_has_no_gap() -> None:
    """It forgets the oldest entries, and all of them after a gap."""
    ring = Ring(0, changed=lambda: None, failed=lambda: pytest.fail("it failed"))
    for index in range(1, 3 * RING_ENTRIES_MAX):
        ring.tap(index, 1, b"x", None)
    newest = 3 * RING_ENTRIES_MAX - 1
    kept = next(n for n in range(newest) if ring.after(n) is not None)
    found = ring.after(newest - 1)
    assert found is not None

    assert newest - RING_ENTRIES_MAX <= kept < newest
    assert [(Position(newest, check_of(1, b"x")), ())] == [tuple(each) for each in found]
    ring.tap(newest + 9, 1, None, None)
    assert ring.after(newest) is None
    assert [newest + 9] == [each.at.index for each in ring.after(newest + 8) or ()]
    for index in range(newest + 10, newest + 20):
        ring.tap(index, 1, b"x" * 2**20, None)
    assert ring.after(newest + 10) is None


def test_states_and_kinds_are_told_apart() -> None:
    """Every state has a kind."""
    assert set(State) == set(events._KIND_OF)
