"""Simulated brokers: a whole cluster on virtual time with its clients' network, always watched.

Engines, routing, guard and client library are real; time, network, disks and processes are
simulated. `invariants.py` checks the replicas at every step. The caller checks the answers that
clients get.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, TypeVar

from codeq_cluster.broker.service import Broker
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.codec.membership import Member, Membership, incarnation_of
from codeq_cluster.errors import CodeqError
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.rest import NODE
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import NodeSettings
from tests.simulator.broker import SimBroker, SimClocks
from tests.simulator.clock import SimClock
from tests.simulator.disk import SimDisk
from tests.simulator.invariants import Invariant, InvariantBroken, ShardWatch
from tests.simulator.loop import SimLoop, new_loop
from tests.simulator.network import SimNetwork
from tests.simulator.relays import RelayRows
from tests.simulator.schedules import ScheduleRows

_T = TypeVar("_T")

# A connection without traffic for this long is given up, and redialled as soon as possible.
SILENCE_S = 5.0
REDIAL_S = 0.3


class NotReached(Exception):
    """The node does not listen: the request was not sent."""


class AnswerLost(Exception):
    """The connection broke after the request was sent."""


class SimBrokers:
    """Nodes, their disks, the network between them, and the path of clients to them.

    Attributes:
        ids: All nodes.
        nodes: The nodes that are up.
        outside: The loop of everything that is not a node.
        flush_s: Draws the seconds a disk write takes.
        snapshot_s: Draws the seconds of half of a snapshot's transfer.
        outage_s: Draws the seconds until a replica whose disk refused a write tries again.
        client_s: Draws the seconds a request or an answer travels.
        isolated: Nodes that clients cannot reach.
        counters: How often each kind of event happened.
        relays: Of all shards, as their logs have them.
        schedules: The same way.
    """

    def __init__(
        self,
        node_ids: tuple[str, ...],
        *,
        random: Random,
        settings: NodeSettings,
        guard: SafetySwitches = ALL_RULES,
        level: int = LEVEL,
    ) -> None:
        self.ids = node_ids
        self.settings = settings
        self._guard = guard
        self.clock = SimClock()
        self.network = SimNetwork(self.clock, random)
        self.network.observers.append(self._hear)
        self.outside = new_loop(self.clock)
        self.nodes: dict[str, SimBroker] = {}
        self.flush_s: Callable[[], float] = lambda: 0.001
        self.snapshot_s: Callable[[], float] = lambda: 0.02
        self.outage_s: Callable[[], float] = lambda: 0.5
        self.client_s: Callable[[], float] = lambda: 0.0005
        self.isolated: set[str] = set()
        self.counters: Counter[str] = Counter()
        self.relays = RelayRows()
        self.schedules = ScheduleRows()
        self.watches = [
            ShardWatch(shard, settings.shards, self.relays, self.schedules)
            for shard in range(settings.shards)
        ]
        self.disks = {node_id: [SimDisk() for _ in range(settings.shards)] for node_id in node_ids}
        self._random = random
        self._clock_off_ms: Counter[str] = Counter()
        self._data = {node_id: number for number, node_id in enumerate(node_ids, 1)}
        self._bootstrap = Membership(
            members=tuple(
                Member(id=node_id, data=self._data[node_id], level=LEVEL) for node_id in node_ids
            ),
            level=level,
        )
        self._opened: Counter[str] = Counter()
        # By (smaller, larger) of two nodes.
        self._silent_since: dict[tuple[str, ...], float] = {}
        self._graves: list[SimLoop] = []
        # The requests that wait for an answer of each process, in order.
        self._clients: dict[SimLoop, dict[asyncio.Future[Any], None]] = {}
        self._serving: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}

    # Life and death.

    def start(self, node_id: str) -> None:
        """Start a node that is down; its links come up at once."""
        assert node_id not in self.nodes, f"{node_id} is up"
        self._opened[node_id] += 1
        loop = new_loop(self.clock)
        self._clients[loop] = {}
        clocks = SimClocks(loop)
        clocks.off_ms = self._clock_off_ms[node_id]

        def make() -> None:
            node = SimBroker(
                node_id,
                bootstrap=self._bootstrap,
                incarnation=incarnation_of(self._data[node_id], self._opened[node_id]),
                settings=self.settings,
                guard=self._guard,
                disks=self.disks[node_id],
                loop=loop,
                clocks=clocks,
                network=self.network,
                random=self._random,
                watches=self.watches,
                flush_s=self._draw_flush,
                on_fatal=partial(self._fatal, node_id),
                on_behind=partial(self._behind, node_id),
                on_storage_failed=partial(self._storage_failed, node_id),
                on_database_failed=partial(self._database_failed, node_id),
            )
            node.start()
            self.nodes[node_id] = node

        try:
            loop.enter(make)
        except BaseException:
            loop.kill()
            self._graves.append(loop)
            raise
        node = self.nodes[node_id]
        for shard in range(self.settings.shards):
            self._began(node, shard)
        self.network.receivers[node_id] = partial(loop.enter, node.link.received)
        for peer in self.ids:
            if peer != node_id and peer in self.nodes and not self._cut(node_id, peer):
                self._connect(node_id, peer)

    def _draw_flush(self) -> float:
        return self.flush_s()

    def crash(self, node_id: str, *, power: bool, refused: bool = True) -> None:
        """Kill a node.

        Args:
            node_id: The node.
            power: A power cut, which may lose unsynced writes; otherwise only the process dies.
            refused: Its peers notice at once, as with a killed process; otherwise by its silence.
        """
        node = self.nodes.pop(node_id)
        if node.loop.failures:
            raise node.loop.failures[0]
        node.loop.kill()
        self._graves.append(node.loop)
        self.network.receivers.pop(node_id, None)
        node.executor.crash(self._random)
        node.syncs.crash(self._random)
        node.storage.kill()
        for disk in self.disks[node_id]:
            if power:
                disk.lose_power(self._random)
            else:
                disk.lose_process(self._random)
            disk.full = False
        for answer in self._clients.pop(node.loop):
            self._lose(answer)
        for peer in self.ids:
            if peer != node_id:
                self.network.reset(node_id, peer)
                if peer in self.nodes and refused:
                    self._disconnect(peer, node_id, refused=True)

    def pause(self, node_id: str, seconds: float) -> None:
        """Freeze a node's process."""
        self.nodes[node_id].loop.stand_still(self.clock.now + seconds)

    def move_clock(self, node_id: str, ms: int) -> None:
        """Set the offset of a node's wall clock from the others'."""
        self._clock_off_ms[node_id] = ms
        if node_id in self.nodes:
            self.nodes[node_id].clocks.off_ms = ms

    def close(self) -> None:
        """End everything and leave nothing behind."""
        for node in self.nodes.values():
            node.loop.kill()
            self._graves.append(node.loop)
        self.nodes.clear()
        self.network.receivers.clear()
        self.outside.kill()
        for loop in (*self._graves, self.outside):
            loop.bury()

    # Links.

    def cut(self, wires: set[tuple[str, str]]) -> None:
        """Cut exactly these directed links; connections that stay silent for long are given up."""
        self.network.cut = set(wires)
        pairs = {tuple(sorted(wire)) for wire in wires}
        self._silent_since = {pair: self._silent_since.get(pair, self.clock.now) for pair in pairs}

    def reconnect(self, one: str, other: str) -> None:
        """Break the connection of two nodes, which dial again soon."""
        self.network.reset(one, other)
        for node_id, peer in ((one, other), (other, one)):
            self._disconnect(node_id, peer, refused=False)

    def _look_after_links(self) -> None:
        for pair in self._pairs():
            one, other = pair
            up = other in self.nodes[one].link.up and one in self.nodes[other].link.up
            since = self._silent_since.get(tuple(sorted(pair)))
            if up and since is not None and self.clock.now - since > SILENCE_S:
                self.reconnect(one, other)
            elif not up and since is None and self._random.random() < 0.02 / REDIAL_S:
                self._connect(one, other)

    def _pairs(self) -> Iterator[tuple[str, str]]:
        for position, one in enumerate(self.ids):
            for other in self.ids[position + 1 :]:
                if one in self.nodes and other in self.nodes:
                    yield one, other

    def _cut(self, one: str, other: str) -> bool:
        return not {(one, other), (other, one)}.isdisjoint(self.network.cut)

    def _connect(self, one: str, other: str) -> None:
        # A new connection ends the remains of the one before.
        for node_id, peer in ((one, other), (other, one)):
            if peer in self.nodes[node_id].link.up:
                self._disconnect(node_id, peer, refused=False)
        for node_id, peer in ((one, other), (other, one)):
            node = self.nodes[node_id]
            if node.fatal is None:
                node.loop.enter(node.peer_up, peer)

    def _disconnect(self, node_id: str, peer: str, *, refused: bool) -> None:
        node = self.nodes[node_id]
        if peer in node.link.up and node.fatal is None:
            node.loop.enter(node.peer_down, peer, refused)

    # Clients.

    async def request(
        self, node_id: str, ask: Callable[[Broker], Awaitable[_T]], *, give_up_s: float
    ) -> _T:
        """Send a request to a node's broker from outside; called on the loop `outside`.

        Raises:
            NotReached: Nothing was sent.
            AnswerLost: It was sent, and the connection broke.
            TimeoutError: No answer came in time.
            Exception: The broker's own error.
        """
        await asyncio.sleep(self.client_s())
        node = self.nodes.get(node_id)
        if node is None or node.fatal is not None:
            raise NotReached(node_id)
        answer: asyncio.Future[_T] = self.outside.create_future()
        self._clients[node.loop][answer] = None
        if node_id not in self.isolated:
            # The connection is up, and the request travels.
            self.clock.at(
                self.clock.now + self.client_s(),
                partial(node.loop.enter, self._begin, node, ask, answer),
            )
        try:
            async with asyncio.timeout(give_up_s):
                return await answer
        finally:
            if node.loop in self._clients:
                self._clients[node.loop].pop(answer, None)
                serving = self._serving.pop(answer, None)
                if serving is not None and node_id not in self.isolated:
                    # The broker notices a client that hangs up, and drops its request.
                    node.loop.enter(serving.cancel)

    def _begin(
        self, node: SimBroker, ask: Callable[[Broker], Awaitable[_T]], answer: asyncio.Future[_T]
    ) -> None:
        async def serve() -> _T:
            return await ask(node.broker)

        if answer.done():
            return
        task = self._serving[answer] = node.loop.create_task(serve())
        task.add_done_callback(partial(self._served, node, answer))

    def _served(self, node: SimBroker, answer: asyncio.Future[_T], task: asyncio.Task[_T]) -> None:
        self._serving.pop(answer, None)
        if task.cancelled():
            return
        error = task.exception()  # An unread one counts as a failure of the loop.
        if node.id in self.isolated:
            return
        self.clock.at(
            self.clock.now + self.client_s(),
            partial(self.outside.enter, _settle, answer, task, error),
        )

    def _lose(self, answer: asyncio.Future[Any]) -> None:
        def lost() -> None:
            if not answer.done():
                answer.set_exception(AnswerLost())

        self.outside.enter(lost)

    # Disks.

    def _database_failed(self, node_id: str, shard: int, error: BaseException) -> None:
        group = self.nodes[node_id].groups[shard]
        if group.running:
            group.pause(lambda _failed: self._storage_failed(node_id, shard, error))

    def _storage_failed(self, node_id: str, shard: int, _error: BaseException) -> None:
        node = self.nodes[node_id]
        self.counters["outages"] += 1
        node.out.add(shard)
        node.loop.call_later(self.outage_s(), self._reopen, node, shard)

    def _reopen(self, node: SimBroker, shard: int) -> None:
        disk = self.disks[node.id][shard]
        if disk.full:
            node.loop.call_later(self.outage_s(), self._reopen, node, shard)
            return
        store = node.storage.shards[shard]
        store.withdraw()
        store.reopen()
        node.reload(shard)
        self._began(node, shard)

    # Snapshots: the nodes' work around their groups, in the smallest form that can fail.

    def _behind(self, node_id: str, shard: int) -> None:
        node = self.nodes[node_id]
        if shard not in node.fetching:
            node.fetching.add(shard)
            node.loop.call_later(self.snapshot_s(), self._fetch, node, shard)

    def _fetch(self, node: SimBroker, shard: int) -> None:
        leader = self.nodes.get(node.groups[shard].status().leader or "")
        if (
            leader is None
            or self._cut(leader.id, node.id)
            or not leader.groups[shard].serves_snapshots
        ):
            node.fetching.discard(shard)
            return
        group = leader.groups[shard]
        group.hold()
        index, log = leader.engines[shard].stored_index, _log(group)
        term = log.term_at(index)
        assert term is not None, "the last stored entry is in the log"
        taken = (index, term, log.members_row(index), leader.databases[shard].state_rows())
        node.loop.call_later(self.snapshot_s(), self._install, node, shard, taken)

    def _install(
        self,
        node: SimBroker,
        shard: int,
        taken: tuple[int, int, bytes, list[tuple[bytes, bytes]]],
    ) -> None:
        node.fetching.discard(shard)
        group = node.groups[shard]
        index, term, members, rows = taken
        wanted = group.running and not group.status().is_leader
        if not wanted or not group.wants_snapshot(index, term):
            return

        def exchange(error: BaseException | None) -> None:
            if error is not None:
                self._storage_failed(node.id, shard, error)
                return
            held = _log(group).term_at(index) == term
            puts, _ = group.rows_after_snapshot(index, term, members)
            node.databases[shard].incoming = rows
            node.storage.shards[shard].replace(puts, index=index)
            if not held:
                self.watches[shard].took_over(node.id, index, term)
            node.reload(shard)
            self.counters["snapshots"] += 1
            self._began(node, shard)

        group.pause(exchange)

    # Time.

    def run(self, seconds: float) -> None:
        """Let virtual time pass, and check everything."""
        self.clock.run_until(self.clock.now + seconds)
        self._look_after_links()
        self.look()

    def run_until(self, done: Callable[[], bool], *, seconds: float, step_s: float = 0.02) -> bool:
        """Let time pass until a condition holds; False if it does not within `seconds`."""
        end = self.clock.now + seconds
        while not done():
            if self.clock.now >= end:
                return False
            self.run(step_s)
        return True

    # Checks.

    def look(self) -> None:
        """Check all replicas, and uncaught errors.

        Raises:
            InvariantBroken: An invariant does not hold.
        """
        for shard, watch in enumerate(self.watches):
            watch.look(
                {
                    node_id: node.groups[shard]
                    for node_id, node in self.nodes.items()
                    if node.fatal is None
                }
            )
        for node in self.nodes.values():
            if node.loop.failures:
                raise node.loop.failures[0]

    def look_closely(self) -> None:
        """Compare all replicas row by row; too slow for every step.

        Raises:
            InvariantBroken: W8.
        """
        for shard, watch in enumerate(self.watches):
            watch.compare_rows(
                {
                    node.id: (
                        node.engines[shard].applied_index,
                        node.states[shard].scan(b"", b"\xff" * 8, 2**31),
                    )
                    for node in self.nodes.values()
                    if node.groups[shard].running
                }
            )

    def leader(self, shard: int) -> str | None:
        """Return the node that leads a shard, or None."""
        leading = [
            (node.groups[shard].status().term, node.id)
            for node in self.nodes.values()
            if node.engines[shard].leads
        ]
        return max(leading)[1] if leading else None

    def states(self, shard: int) -> dict[str, tuple[int, bytes]]:
        """Return (applied index, digest) of a shard's replicas."""
        return {
            node.id: (node.engines[shard].applied_index, node.engines[shard].digest)
            for node in self.nodes.values()
        }

    def converged(self) -> bool:
        """Return whether every shard has a leader and equal replicas."""
        return all(
            self.leader(shard) is not None and len(set(self.states(shard).values())) == 1
            for shard in range(self.settings.shards)
        )

    def check_converged(self) -> None:
        """Require all replicas to have the same state.

        Raises:
            InvariantBroken: W10.
        """
        for shard, watch in enumerate(self.watches):
            if self.leader(shard) is None:
                raise InvariantBroken(Invariant.W10, f"shard {shard} has no leader")
            watch.converged(self.states(shard))

    def _hear(self, sender: str, receiver: str, message: Mapping[str, object]) -> None:
        raft, shard = message.get("raft"), message.get("shard")
        if isinstance(raft, Mapping) and isinstance(shard, int) and sender in self.nodes:
            if shard == NODE:
                return  # A beat, which promises nothing.
            group = self.nodes[sender].groups[shard]
            self.watches[shard].sent(sender, receiver, raft, group)

    def _began(self, node: SimBroker, shard: int) -> None:
        watch, engine = self.watches[shard], node.engines[shard]
        watch.began(node.id, node.groups[shard])
        if engine.applied_index > 1:
            watch.stands(node.id, engine.applied_index, engine.digest)

    def _fatal(self, node_id: str, shard: int, error: BaseException) -> None:
        self.nodes[node_id].fatal = error
        if isinstance(error, InvariantBroken):
            raise error
        raise InvariantBroken(
            Invariant.W7 if "truncat" in str(error) else Invariant.W10,
            f"shard {shard}: {node_id} stopped itself: {error}",
        ) from error


def _settle(
    answer: asyncio.Future[_T], task: asyncio.Task[_T], error: BaseException | None
) -> None:
    if answer.done():
        return
    if error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(task.result())


def _log(group: RaftGroup) -> Journal:
    return group._replica.journal


@contextmanager
def drawn_names(random: Random) -> Iterator[None]:
    """Draw the ids of tasks and requests from a seed instead of the system, within the block."""
    drawn, os.urandom = os.urandom, random.randbytes
    try:
        yield
    finally:
        os.urandom = drawn


class _Bugs(logging.Handler):
    """Collects errors that are logged with a trace and that the product does not expect."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.met: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, CodeqError):
            self.met.append(error)


@contextmanager
def bugs_met() -> Iterator[list[BaseException]]:
    """Yield the records of bugs logged within the block; nothing else is logged."""
    logs = [logging.getLogger(name) for name in ("codeq_cluster", "pysyncobj")]
    bugs, propagates = _Bugs(), [log.propagate for log in logs]
    for log in logs:
        log.addHandler(bugs)
        log.propagate = False
    try:
        yield bugs.met
    finally:
        for log, before in zip(logs, propagates, strict=True):
            log.removeHandler(bugs)
            log.propagate = before
