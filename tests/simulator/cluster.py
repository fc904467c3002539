"""Simulated cluster: real groups on virtual time, network and disk, watched at every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from random import Random

from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.codec.membership import Member, Membership, incarnation_of
from codeq_cluster.errors import MembershipRefused
from codeq_cluster.membership import plan
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.journal_rows import FIRST_INDEX
from codeq_cluster.raft.messages import Beat as BeatMessage
from codeq_cluster.raft.ports import Beat, Events, Ports
from codeq_cluster.raft.replica import ReplicaId
from codeq_cluster.raft.rest import Rest
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.settings import Durability, RaftSettings
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.syncers import ThreadSyncer
from codeq_cluster.wire.messages import pack, unpack
from tests.simulator.clock import SimClock, SimTimers
from tests.simulator.database import SimDatabase
from tests.simulator.disk import SimDisk, SimExecutor
from tests.simulator.invariants import InvariantViolated, ReplicaWatch
from tests.simulator.machine import SimMachine, SimSource
from tests.simulator.network import SimNetwork

SHARD = 0
_BEAT = BeatMessage.__struct_config__.tag
SEGMENT_BYTES = 2**14  # Small enough that a run fills several.
SPILL_S = 0.25  # Often, so that a crash comes between many spills.


@dataclass(slots=True, kw_only=True)
class SimNode:
    """One life of one node.

    Attributes:
        fatal: Why the replica stopped itself, or None.
    """

    id: str
    group: RaftGroup
    rest: Rest
    machine: SimMachine
    source: SimSource
    timers: SimTimers
    executor: SimExecutor
    syncs: SimExecutor
    storage: NodeStorage
    database: SimDatabase
    fatal: BaseException | None = None
    reseeding: bool = False


@dataclass(frozen=True, slots=True)
class _Taken:
    """A snapshot in transfer."""

    index: int
    term: int
    members: bytes
    rows: list[tuple[bytes, bytes]]


class SimCluster:
    """Nodes, their disks and the network between them.

    Attributes:
        ids: Every node that ever was part of it.
        history: Index -> (term, payload) as first applied anywhere.
        acknowledged: Values acknowledged to their clients.
        flush_s: Draws the seconds a disk write takes.
        snapshot_s: Draws the seconds of half of a snapshot's transfer.
        outage_s: Draws the seconds until a node whose disk refused a write tries again.
        outages: Writes refused so far.
        snapshot_leaves: Draws whether the leader serves the snapshot it is asked for.
        reseeded: Nodes whose corrupted state was replaced by a snapshot so far.
        snapshot_arrives: Draws whether a fetched snapshot is intact.
        at_exchange: Called with the node right before its disk is swapped, and right after.
        snapshots: Installed so far.
        changes: Membership changes committed so far.
        nodes: The nodes that are up.
        expect_fatal: The scenario expects a replica to stop itself.
        levels: The newest formats each node's release knows; missing nodes run this release.
        data: The number of each node's data: a wiped node gets a new one.
        bootstrap: The members that a node with an empty log knows.
        rests: A group that has nothing to do rests, as in a real node.
    """

    def __init__(
        self,
        node_ids: str | tuple[str, ...] = "ABC",
        *,
        random: Random,
        settings: RaftSettings | None = None,
        rules: SafetySwitches = ALL_RULES,
        preferred: str | None = None,
        level: int = LEVEL,
        rests: bool = False,
    ) -> None:
        self.random = random
        self.rests = rests
        self.ids = tuple(node_ids)
        self.settings = settings or RaftSettings()
        self.rules = rules
        # The voters in order of preference as leader.
        first = self.ids.index(preferred or self.ids[0])
        self.data = {node_id: number for number, node_id in enumerate(self.ids, 1)}
        self.bootstrap = Membership(
            members=tuple(
                Member(id=node_id, data=self.data[node_id], level=LEVEL)
                for node_id in self.ids[first:] + self.ids[:first]
            ),
            level=level,
        )
        self.clock = SimClock()
        self.network = SimNetwork(self.clock, random)
        self.network.observers.append(self._watch_message)
        self.disks = {node_id: SimDisk() for node_id in self.ids}
        self.nodes: dict[str, SimNode] = {}
        self.history: dict[int, tuple[int, bytes | None]] = {}
        self.acknowledged: dict[bytes, int] = {}
        self.flush_s: Callable[[], float] = lambda: 0.001
        self.snapshot_s: Callable[[], float] = lambda: 0.01
        self.outage_s: Callable[[], float] = lambda: 1.0
        self.outages = 0
        self.snapshot_leaves: Callable[[str], bool] = lambda _leader: True
        self.reseeded = 0
        self.snapshot_arrives: Callable[[], bool] = lambda: True
        self.at_exchange: Callable[[str], None] = lambda _node_id: None
        self.snapshots = 0
        self.changes = 0
        self.expect_fatal = False
        self.levels: dict[str, int] = {}
        self._opened = dict.fromkeys(self.ids, 0)
        self._indexes: dict[bytes, int] = {}
        self._watch = ReplicaWatch(SHARD)

    # Life and death.

    def start(self, *node_ids: str) -> None:
        """Start nodes that are down; all of them without arguments. Links come up at once."""
        for node_id in node_ids or self.ids:
            self._start(node_id)

    def _start(self, node_id: str) -> None:
        assert node_id not in self.nodes, f"{node_id} is up"
        self._opened[node_id] += 1
        member = self.bootstrap.of(node_id)
        is_first = member is not None and member.data == self.data[node_id]
        timers = SimTimers(self.clock)
        disk = self.disks[node_id]
        disk.full = False  # On a full one it would not start.
        executor = SimExecutor(timers, self._draw_flush)
        syncs = SimExecutor(timers, self._draw_flush)
        durable = self.settings.durability is Durability.FSYNC
        source = SimSource(self._acknowledge)
        database = SimDatabase(disk, self.random)
        storage = NodeStorage(
            [database],
            disk,
            executor=executor,
            syncer=ThreadSyncer(syncs) if durable else None,
            timers=timers,
            on_synced=lambda _seconds, _shard: None,
            on_failed=lambda _shard, error: self._database_failed(node_id, error),
            segment_bytes=SEGMENT_BYTES,
            spill_s=SPILL_S,
        )
        storage.start()
        [shard] = storage.shards
        machine = SimMachine(shard, database, partial(self._watch_apply, node_id, source))
        incarnation = incarnation_of(self.data[node_id], self._opened[node_id])
        link, beat = _SimLink(node_id, self.network), Beat()
        groups: list[RaftGroup] = []
        rest = Rest(
            groups,
            incarnation=incarnation,
            period_s=self.settings.heartbeat_ms / 1000,
            link=link,
            timers=timers,
            beat=beat,
        )
        group = RaftGroup(
            ReplicaId(
                shard=SHARD,
                node_id=node_id,
                incarnation=incarnation,
                level=self._level(node_id),
            ),
            bootstrap=self.bootstrap if is_first else Membership(),
            ports=Ports(
                store=shard.log,
                writer=shard.log,
                machine=machine,
                source=source,
                link=link,
                timers=timers,
                random=Random(self.random.random()),
                beat=beat,
                rest=rest if self.rests else None,
            ),
            events=Events(
                on_fatal=partial(self._fatal, node_id),
                on_behind=partial(self._behind, node_id),
                on_diverged=partial(self._diverged, node_id),
                on_storage_failed=partial(self._storage_failed, node_id),
            ),
            settings=self.settings,
            rules=self.rules,
        )
        groups.append(group)
        node = SimNode(
            id=node_id,
            group=group,
            rest=rest,
            machine=machine,
            source=source,
            timers=timers,
            executor=executor,
            syncs=syncs,
            storage=storage,
            database=database,
        )
        group.start()
        self.nodes[node_id] = node
        self._watch.began(node_id, group)
        self.network.receivers[node_id] = partial(self._receive, node)
        for peer in self.ids:
            if peer in self.nodes and peer != node_id:
                self._link_up(node_id, peer)

    def _draw_flush(self) -> float:
        return self.flush_s()

    def crash(self, node_id: str, *, refused: bool = True) -> None:
        """Kill a node: its disk keeps what was synced and perhaps a bit more.

        Args:
            node_id: The node.
            refused: Its peers notice at once, as with a killed process; otherwise not at all.
        """
        node = self.nodes.pop(node_id)
        node.group.stop()
        node.timers.kill()
        node.executor.crash(self.random)
        node.syncs.crash(self.random)
        node.storage.kill()
        self.disks[node_id].lose_power(self.random)
        self.network.receivers.pop(node_id, None)
        for peer in self.ids:
            if peer != node_id:
                self.network.reset(node_id, peer)
                if refused and peer in self.nodes:
                    self.nodes[peer].group.peer_down(node_id, refused=True)

    def reconnect(self, one: str, other: str) -> None:
        """Break and restore the connection between two nodes."""
        self.network.reset(one, other)
        if one in self.nodes and other in self.nodes:
            for node_id, peer in ((one, other), (other, one)):
                self.nodes[node_id].group.peer_down(peer, refused=False)
            self._link_up(one, other)

    def _link_up(self, one: str, other: str) -> None:
        for node_id, peer in ((one, other), (other, one)):
            if self.nodes[node_id].fatal is None:
                self.nodes[node_id].group.peer_up(peer)

    def _fatal(self, node_id: str, error: BaseException) -> None:
        self.nodes[node_id].fatal = error
        self.network.receivers.pop(node_id, None)
        if isinstance(error, InvariantViolated):
            raise error
        if not self.expect_fatal:
            raise InvariantViolated(f"{node_id} stopped itself: {error}") from error

    # Full disks: the node's work around its groups, except for the check of free space.

    def _database_failed(self, node_id: str, error: BaseException) -> None:
        group = self.nodes[node_id].group
        if group.running:
            group.pause(lambda _failed: self._storage_failed(node_id, error))

    def _storage_failed(self, node_id: str, _error: BaseException) -> None:
        node = self.nodes[node_id]
        self.outages += 1
        node.timers.call_later(self.outage_s(), partial(self._reopen, node))

    def _reopen(self, node: SimNode) -> None:
        self.disks[node.id].full = False
        shard = node.storage.shards[SHARD]
        shard.withdraw()
        shard.reopen()
        node.machine.load()
        node.group.resume()
        # As after a start: the commit index must be learned again.
        self._watch.began(node.id, node.group)
        self.check()

    # Snapshots: the nodes' work around their groups, in the smallest form that can fail.

    def _diverged(self, node_id: str, _index: int) -> None:
        self._behind(node_id)

    def _behind(self, node_id: str) -> None:
        node = self.nodes[node_id]
        if not node.reseeding:
            node.reseeding = True
            node.timers.call_later(self.snapshot_s(), partial(self._fetch, node))

    def _fetch(self, node: SimNode) -> None:
        leader = self.nodes.get(node.group.status().leader or "")
        if (
            leader is None
            or (leader.id, node.id) in self.network.cut
            or not leader.group.serves_snapshots
            or not self.snapshot_leaves(leader.id)
        ):
            node.reseeding = False
            return
        leader.group.hold()
        taken = self.taken_from(leader)
        node.timers.call_later(self.snapshot_s(), partial(self.install, node, taken))

    def taken_from(self, node: SimNode) -> _Taken:
        """Make a snapshot of a node's current state."""
        index, log = node.machine.stored_index, self._log(node.id)
        term = log.term_at(index)
        assert term is not None, "the last stored entry is in the log"
        return _Taken(index, term, log.members_row(index), node.database.state_rows())

    def install(self, node: SimNode, taken: _Taken) -> None:
        """Let a fetched snapshot arrive, which the node installs if it still wants one."""
        node.reseeding = False
        wanted = node.group.running and not node.group.status().is_leader
        if (
            wanted
            and self.snapshot_arrives()
            and node.group.wants_snapshot(taken.index, taken.term)
        ):
            node.group.pause(partial(self._exchange, node, taken))

    def _exchange(self, node: SimNode, taken: _Taken, error: BaseException | None) -> None:
        if error is not None:
            self._storage_failed(node.id, error)
            return
        held = self._log(node.id).term_at(taken.index) == taken.term
        reseeded = node.machine.corrupted
        puts, _ = node.group.rows_after_snapshot(taken.index, taken.term, taken.members)
        self.at_exchange(node.id)
        if self.nodes.get(node.id) is not node:
            return
        node.database.incoming = taken.rows
        node.storage.shards[SHARD].replace(puts, index=taken.index)
        if not held:
            # Its entries beyond the snapshot belonged to another history, so no acknowledgement
            # counts on them.
            self._watch.took_over(node.id, taken.index, taken.term)
        self.at_exchange(node.id)
        if self.nodes.get(node.id) is not node:
            return
        node.machine.load()
        node.group.resume()
        self.snapshots += 1
        if reseeded:
            self.reseeded += 1
            # As after a start, from a state that may be older than the wrong one.
            self._watch.began(node.id, node.group)
        else:
            self._watch.holds(node.id, node.group)
        self._check_state(node)
        self.check()

    # Time.

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.clock.run_until(self.clock.now + seconds)

    def run_until(self, condition: Callable[[], bool], *, seconds: float = 30.0) -> float:
        """Let time pass until the condition holds; return the seconds it took.

        Raises:
            InvariantViolated: The condition does not hold within `seconds`.
        """
        start = self.clock.now
        while not condition():
            if self.clock.now - start > seconds:
                raise InvariantViolated(f"not within {seconds} s")
            self.run(0.005)
        return self.clock.now - start

    # Questions of tests.

    def leader(self) -> str | None:
        """Return the ready leader of the newest term, or None."""
        ready = [
            (status.term, node.id)
            for node in self.nodes.values()
            if node.fatal is None and (status := node.group.status()).ready
        ]
        return max(ready)[1] if ready else None

    def elect(self, node_id: str | None = None) -> str:
        """Let time pass until the node (or any) leads and its peers know; return its id."""

        def settled() -> bool:
            leader = self.leader()
            return leader is not None and node_id in (None, leader)

        self.run_until(settled)
        leader = self.leader()
        assert leader is not None
        return leader

    def propose(self, value: bytes) -> bool:
        """Give a value to every node that believes it leads; False if none does."""
        proposed = False
        for node in list(self.nodes.values()):
            if node.fatal is None and node.source.propose(value):
                node.group.wake()
                proposed = True
                break
        return proposed

    def cut(self, *groups: str) -> None:
        """Cut every link between nodes of different groups; nodes notice only by silence."""
        self.network.cut = {
            (one, other)
            for group in groups
            for one in group
            for other in self.ids
            if other not in group
        }

    def heal(self) -> None:
        """Restore every link."""
        self.network.cut = set()

    def values(self, node_id: str) -> list[bytes]:
        """Return the values in the node's state machine."""
        return self.nodes[node_id].machine.values

    def replace_disk(self, node_id: str) -> None:
        """Give a node that is down an empty disk: none of its promises binds it any more."""
        self.disks[node_id] = SimDisk()
        self._watch.replaced(node_id)
        self.data[node_id] = max(self.data.values()) + 1

    # Members.

    def add(self, node_id: str) -> None:
        """Create a node with an empty disk that no cluster has admitted; it is down."""
        self.ids = (*self.ids, node_id)
        self.disks[node_id] = SimDisk()
        self._opened[node_id] = 0
        self.data[node_id] = max(self.data.values()) + 1

    def expect(self, node_id: str) -> bool:
        """Ask the leader to add a node; False if that is impossible now."""
        return self._change(lambda was: plan.expect(was, node_id, link=node_id, http=node_id))

    def dismiss(self, node_id: str) -> bool:
        """Ask the leader to remove a node; False if that is impossible now."""
        leader = self.leader()
        if leader in (None, node_id):
            return False
        return self._change(lambda was: plan.dismiss(was, node_id, answers=self._is_up))

    def knock(self, node_id: str) -> bool:
        """Make a node whose data is not admitted register itself with the leader."""
        who = plan.JoiningNode(
            id=node_id,
            data=self.data[node_id],
            link=node_id,
            http=node_id,
            level=self._level(node_id),
        )
        leader = self.leader()
        if leader is None or not {(leader, node_id), (node_id, leader)}.isdisjoint(
            self.network.cut
        ):
            return False
        return self._change(
            lambda was: plan.let_in(
                was, who, lives=lambda _node_id, _data: False, answers=self._is_up
            )
        )

    def _is_up(self, member: Member) -> bool:
        return member.id in self.nodes and member.data == self.data[member.id]

    def use(self, level: int) -> bool:
        """Ask the leader to enable formats of a version; False if that is impossible now."""
        return self._change(lambda was: plan.raised(was, level))

    def _level(self, node_id: str) -> int:
        return self.levels.get(node_id, LEVEL)

    def is_let_in(self, node_id: str) -> bool:
        """Return whether a node knows that it is a member with its current data."""
        member = self.nodes[node_id].group.membership.of(node_id)
        return member is not None and member.data == self.data[node_id]

    def is_waiting(self, node_id: str) -> bool:
        """Return whether a member is not yet a voter with its current data."""
        member = self.members().of(node_id)
        return member is not None and (not member.voter or member.data != self.data[node_id])

    def members(self) -> Membership:
        """Return the group's members as its leader has them; none without a leader."""
        leader = self.leader()
        return self.nodes[leader].group.membership if leader is not None else Membership()

    def is_changing(self) -> bool:
        """Return whether a membership change is in progress; until then the old majority counts."""
        leader = self.leader()
        return leader is not None and self.nodes[leader].group.changing

    def _change(self, change: Callable[[Membership], Membership]) -> bool:
        leader = self.leader()
        if leader is None:
            return False
        group = self.nodes[leader].group
        try:
            wanted = change(group.membership)
            return wanted != group.membership and group.change(wanted, self._changed)
        except (MembershipRefused, ValueError):
            return False

    def _changed(self, committed: bool) -> None:
        self.changes += committed

    # Checks.

    def _receive(self, node: SimNode, sender: str, message: Mapping[str, object]) -> None:
        receive = node.rest.receive if message.get("t") == _BEAT else node.group.receive
        receive(sender, pack(message))

    def _acknowledge(self, value: bytes, index: int) -> None:
        self.acknowledged[value] = index

    def _watch_apply(
        self, node_id: str, source: SimSource, index: int, term: int, payload: bytes | None
    ) -> None:
        self._watch.applied(node_id, index, term, payload)
        self.history.setdefault(index, (term, payload))
        if payload is not None and self._indexes.setdefault(payload, index) != index:
            raise InvariantViolated(f"{payload!r} is entry {self._indexes[payload]} and {index}")
        source.applied(index, term, payload)

    def _watch_message(self, sender: str, receiver: str, message: Mapping[str, object]) -> None:
        self._watch.sent(sender, receiver, message, self.nodes[sender].group)

    def _check_state(self, node: SimNode) -> None:
        """Check that an installed snapshot equals the state made by the entries up to there."""
        upto = node.machine.applied_index
        entries = [self.history.get(index) for index in range(FIRST_INDEX + 1, upto + 1)]
        made = [entry[1] for entry in entries if entry is not None and entry[1] is not None]
        if None in entries or node.machine.values != made:
            raise InvariantViolated(f"{node.id} installed a state that is no entry {upto}'s")

    def check(self) -> None:
        """Check every node; raises InvariantBroken."""
        running = {node.id: node.group for node in self.nodes.values() if node.fatal is None}
        self._watch.look(running)

    def check_converged(self) -> None:
        """Compare all nodes after all faults are healed.

        Raises:
            InvariantViolated: A state differs, or an acknowledged value is missing.
        """
        # A removed node no longer receives entries.
        voters = [self.nodes[node_id] for node_id in self.members().voters]
        longest = max((node.machine.values for node in voters), key=len)
        for node in voters:
            if node.machine.values != longest:
                raise InvariantViolated(
                    f"{node.id} ends with {len(node.machine.values)} values of {len(longest)}"
                )
        lost = self.acknowledged.keys() - set(longest)
        if lost:
            raise InvariantViolated(f"{len(lost)} acknowledged values are lost: {min(lost)!r}")

    def _log(self, node_id: str) -> Journal:
        return self.nodes[node_id].group._replica.journal


class _SimLink:
    """One node's end of the network."""

    def __init__(self, node_id: str, network: SimNetwork) -> None:
        self._node_id = node_id
        self._network = network

    def send(self, peer: str, message: bytes) -> bool:
        # Decoded on its way, so that observers and scenarios can read it.
        return self._network.send(self._node_id, peer, unpack(message))
