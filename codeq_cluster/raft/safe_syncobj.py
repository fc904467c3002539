"""SafeSyncObj: PySyncObj, with the parts replaced that cannot be made safe from outside.

The library keeps terms and votes, decides elections and commits, and changes a follower's log. This
package applies and sends entries, reads the log, and decides when an election starts.
No other module knows the library's private names.
"""

# mypy: disable-error-code="no-untyped-call"
# The library has no annotations.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol, Self

from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport

from codeq_cluster.raft.journal import Entry, Journal
from codeq_cluster.raft.library import configuration
from codeq_cluster.raft.messages import ENTRIES_MAX, MEMBERS, PAYLOAD
from codeq_cluster.raft.voters import Voters
from codeq_cluster.settings import RaftSettings

_FOLLOWER = 0
_CANDIDATE = 1
_LEADER = 2
# The library starts an election when its deadline has passed; this package sets that deadline.
_NEVER_S = 1e12
_AT_ONCE_S = -1.0
# The window of unacknowledged messages per peer: enough to fill a slow link, few enough to resend.
_WINDOW_MESSAGES = 64
_WINDOW_BATCHES = 2


class SendAppend(Protocol):
    """Sends entries to a follower: see `AppendSender.send`."""

    def __call__(
        self, peer: str, *, prev: int, prev_term: int, entries: Sequence[Entry], quiet: bool
    ) -> None:
        """Send the entries after `prev`; none for a heartbeat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The parts of a group that the library calls.

    Attributes:
        send: Sends a peer one of the library's own messages: a vote, a vote request, an answer.
        append: Sends a follower entries, or a heartbeat.
        apply: Applies a bounded number of entries up to a commit index; returns the applied index.
        take: Returns the next payload to propose, or None.
        take_members: Returns the next membership to propose, encoded, or None.
    """

    send: Callable[[str, Mapping[str, object]], None]
    append: SendAppend
    apply: Callable[[int], int]
    take: Callable[[], bytes | None]
    take_members: Callable[[], bytes | None]


class SafeSyncObj(SyncObj):
    """One member's Raft state."""

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLog: Journal
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__otherNodes: set[Node]
    _SyncObj__readonlyNodes: set[Node]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__noopIDx: int | None
    _SyncObj__onMessageReceived: Callable[[Node, Mapping[str, object]], None]
    _SyncObj__setCurrentTerm: Callable[[int, str | None], None]
    _SyncObj__setState: Callable[[int], None]

    def __init__(
        self,
        *,
        node_id: str,
        voters: Voters,
        journal: Journal,
        applied: int,
        settings: RaftSettings,
        now: Callable[[], float],
    ) -> None:
        """Read term, vote and commit index from the journal; `attach` must follow.

        Args:
            node_id: This node.
            voters: The membership in force.
            journal: The log, loaded.
            applied: Index of the last entry in the state.
            settings: Times and sizes.
            now: Returns monotonic seconds.
        """
        self._host: Host
        self._carrier = _Carrier()
        self._journal = journal
        self._settings = settings
        self._now = now
        self._voters = voters
        self._peers: dict[str, _Member] = {}
        self._data: dict[str, int] = {}
        self._windows: dict[str, _Window] = {}
        # Nodes that are not members: this node reads their messages, and sends them only answers.
        self._strangers: dict[str, _Member] = {}
        super().__init__(
            _Member(node_id),
            [],
            configuration(settings),
            nodeClass=_Member,
            transport=self._carrier,
        )
        # The library made an empty log in memory; this is the real one.
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.term
        self._SyncObj__votedForNodeId = journal.voted_for
        self._SyncObj__raftCommitIndex = journal.getRaftCommitIndex()
        self._SyncObj__raftLastApplied = applied
        self._poller = _NoPoller()
        self.adopt_members()

    def attach(self, host: Host) -> None:
        """Connect the library to its group; it calls nothing of the group before that."""
        self._host = host
        self._carrier.carry = host.send

    # Questions that the group asks.

    def term(self) -> int:
        """Return the current term."""
        return self._SyncObj__raftCurrentTerm

    def leads(self) -> bool:
        """Return whether this node is leader of the current term."""
        return self._SyncObj__raftState == _LEADER

    def role(self) -> tuple[int, bool, str | None]:
        """Return `term`, `leads` and `leader`."""
        leader = self._SyncObj__raftLeader
        return (
            self._SyncObj__raftCurrentTerm,
            self._SyncObj__raftState == _LEADER,
            None if leader is None else leader.id,
        )

    def is_candidate(self) -> bool:
        """Return whether this node is a candidate in the current term."""
        return self._SyncObj__raftState == _CANDIDATE

    def leader(self) -> str | None:
        """Return the id of the current term's leader, or None while it is unknown."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.id

    def commit_index(self) -> int:
        """Return the highest index known to be committed."""
        return self._SyncObj__raftCommitIndex

    def ready_index(self) -> int | None:
        """Return the index of this leader's first entry of its term; None when it does not lead."""
        return self._SyncObj__noopIDx if self._SyncObj__raftState == _LEADER else None

    def match_index(self, peer: str) -> int:
        """Return the last entry the peer is known to hold; 0 unless this node leads."""
        if self._SyncObj__raftState != _LEADER:
            return 0
        return self._SyncObj__raftMatchIndex[self._peers[peer]]

    def next_index(self, peer: str) -> int:
        """Return the entry this leader sends the peer next."""
        return self._SyncObj__raftNextIndex[self._peers[peer]]

    def connected(self, peer: str) -> bool:
        """Return whether there is a connection to the peer."""
        return self._peers[peer] in self._SyncObj__connectedNodes

    def answered_since(self, peer: str, instant: float) -> bool:
        """Return whether the peer has answered this leader after `instant`."""
        return self._SyncObj__lastResponseTime[self._peers[peer]] > instant

    def heartbeat_due(self) -> float:
        """Return when this leader's next heartbeat is due."""
        return self._SyncObj__newAppendEntriesTime

    # Events that the group reports.

    def connect(self, peer: str) -> None:
        """Note a connection."""
        self._SyncObj__connectedNodes.add(self._node(peer))

    def disconnect(self, peer: str) -> None:
        """Note a connection's end."""
        self._SyncObj__connectedNodes.discard(self._node(peer))
        self._strangers.pop(peer, None)

    def adopt_members(self) -> None:
        """Follow the present membership.

        A peer that is new, or on other data than before, counts as one that holds no entry and has
        just answered.
        """
        voters = self._voters
        before, self._data = self._data, voters.data
        kept = {peer for peer in before if before[peer] == self._data.get(peer)}
        self._peers = {peer: self._node(peer) for peer in voters.peers}
        for peer in voters.peers:
            self._strangers.pop(peer, None)
        self._windows = {
            peer: self._windows[peer] if peer in kept else _Window() for peer in self._peers
        }
        nodes: set[Node] = set(self._peers.values())
        self._SyncObj__otherNodes = {node for node in nodes if voters.votes(node.id)}
        self._SyncObj__readonlyNodes = nodes - self._SyncObj__otherNodes
        known = self._SyncObj__raftMatchIndex.keys()
        for node in {node for node in known if node.id not in kept}:
            del self._SyncObj__raftMatchIndex[node]
            del self._SyncObj__raftNextIndex[node]
            del self._SyncObj__lastResponseTime[node]
        for node in nodes - known:
            self._SyncObj__raftMatchIndex[node] = 0
            self._SyncObj__raftNextIndex[node] = self._journal.last + 1
            self._SyncObj__lastResponseTime[node] = self._now()

    def _node(self, peer: str) -> _Member:
        known = self._peers.get(peer) or self._strangers.get(peer)
        return known or self._strangers.setdefault(peer, _Member(peer))

    def deliver(self, peer: str, message: Mapping[str, object]) -> None:
        """Hand one checked message to the library."""
        self._SyncObj__onMessageReceived(self._node(peer), message)

    def beat(self, peer: str, *, term: int, commit: int) -> None:
        """Note that the peer leads `term` and `commit` is committed, without touching the log."""
        self.deliver(peer, {"type": "append_entries", "term": term, "commit_index": commit})

    def acknowledge(self, peer: str, *, upto: int, keep_next: bool) -> None:
        """Note that the follower holds everything up to `upto`.

        Args:
            peer: The follower.
            upto: Index of its last matching entry.
            keep_next: False lets the library resend entries that are already on their way.
        """
        before = self.next_index(peer)
        self._answered(peer, next_index=upto + 1, success=True)
        if keep_next:
            self._SyncObj__raftNextIndex[self._peers[peer]] = max(before, upto + 1)
        self._windows[peer].acknowledged(self.match_index(peer))

    def rewind(self, peer: str, next_index: int) -> bool:
        """Go back to `next_index`, but never behind what the follower is known to hold.

        A heartbeat first asks the follower whether it holds the entry before `next_index`. Entries
        follow only after it confirms that, so a follower whose entries are gone costs no more than
        the heartbeat.

        Returns:
            False when the follower has refused the same question before: the entries it needs are
            gone.
        """
        self.alive(peer)
        node, window = self._peers[peer], self._windows[peer]
        start = max(next_index, self.match_index(peer) + 1, self._journal.first + 1)
        again = window.probing and start == self._SyncObj__raftNextIndex[node]
        self._SyncObj__raftNextIndex[node] = start
        window.probe()
        if not again:
            self._send(peer, start, ())
        return not again

    def alive(self, peer: str) -> None:
        """Note that the follower answered, although it holds nothing new."""
        self._answered(peer, next_index=self.next_index(peer), success=False)

    def _answered(self, peer: str, *, next_index: int, success: bool) -> None:
        self.deliver(
            peer,
            {
                "type": "next_node_idx",
                "next_node_idx": next_index,
                "reset": False,
                "success": success,
            },
        )

    def adopt(self, term: int) -> None:
        """Enter a newer term as a follower; its leader is not known yet."""
        self._SyncObj__setCurrentTerm(term, None)
        self.step_down()

    def step_down(self) -> None:
        """Stop leading or campaigning; the term stays."""
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    def tick(self, *, campaign: bool) -> None:
        """Let the library do its due work: elect, commit, apply entries, take proposals, send.

        Args:
            campaign: Start an election in a new term; only with a connection, or alone.
        """
        if campaign:
            # Entries sent in an earlier leadership may be gone from the log. No follower would
            # acknowledge them, and they would fill the windows for ever.
            self._windows = {peer: _Window() for peer in self._peers}
        deadline = _AT_ONCE_S if campaign else self._now() + _NEVER_S
        self._SyncObj__raftElectionDeadline = deadline
        leads = self._SyncObj__raftState == _LEADER
        if leads and self._now() >= self._SyncObj__newAppendEntriesTime:
            self._SyncObj__newAppendEntriesTime = _AT_ONCE_S
        self.doTick(0)

    def heartbeat_now(self) -> None:
        """Make the heartbeat due with the next tick."""
        self._SyncObj__newAppendEntriesTime = _AT_ONCE_S

    def announce(self, peers: Sequence[str]) -> None:
        """Send the commit index to those connected followers that were sent every entry."""
        for peer in peers:
            node = self._peers[peer]
            start = self._SyncObj__raftNextIndex[node]
            if start > self._journal.last and node in self._SyncObj__connectedNodes:
                self._send(peer, start, (), quiet=True)

    def replicate(self) -> None:
        """Send every connected follower the entries it lacks, as far as its window allows."""
        last = self._journal.last
        for peer, node in self._peers.items():
            if self._SyncObj__raftNextIndex[node] <= last and node in self._SyncObj__connectedNodes:
                self._send_entries(peer, node)

    # Overrides of unsafe parts of the library.

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 - the library's name
        """Send entries and heartbeats: windowed, without snapshots and without a busy loop."""
        self._SyncObj__newAppendEntriesTime = self._now() + self._settings.heartbeat_ms / 1000
        for peer, node in self._peers.items():
            if node in self._SyncObj__connectedNodes and not self._send_entries(peer, node):
                self._send(peer, self._next(node), ())

    def _send_entries(self, peer: str, node: Node) -> bool:
        """Send entries up to the window's end; return whether any were sent."""
        window = self._windows[peer]
        bytes_max = self._settings.append_bytes_max
        sent = False
        start = self._next(node)
        while start <= self._journal.last and window.open(_WINDOW_BATCHES * bytes_max):
            entries = self._journal.read(start, count=ENTRIES_MAX, bytes_max=bytes_max)
            self._send(peer, start, entries)
            start = entries[-1][1] + 1
            window.sent(start - 1, sum(len(entry[0]) for entry in entries))
            self._SyncObj__raftNextIndex[node] = start
            sent = True
        return sent

    def _next(self, node: Node) -> int:
        """Return the entry to send the follower next, one that still exists."""
        start = max(self._SyncObj__raftNextIndex[node], self._journal.first + 1)
        self._SyncObj__raftNextIndex[node] = start
        return start

    def _send(
        self, peer: str, start: int, entries: Sequence[Entry], *, quiet: bool = False
    ) -> None:
        prev_term = self._journal.term_at(start - 1)
        assert prev_term is not None, f"there is no entry {start - 1}"
        self._host.append(peer, prev=start - 1, prev_term=prev_term, entries=entries, quiet=quiet)

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802 - the library's name
        """Apply through the group; an exception stops the node instead of retrying for ever."""
        if self._SyncObj__raftCommitIndex > self._SyncObj__raftLastApplied:
            self._SyncObj__raftLastApplied = self._host.apply(self._SyncObj__raftCommitIndex)
        return False

    def _checkCommandsToApply(self) -> None:  # noqa: N802 - the library's name
        """Append the group's proposals; only here is it certain that this node leads."""
        if self._SyncObj__raftState != _LEADER:
            return
        if (members := self._host.take_members()) is not None:
            self._add(MEMBERS + members)
        while True:
            payload = self._host.take()
            if payload is None:
                return
            self._add(PAYLOAD + payload)

    def _add(self, command: bytes) -> None:
        self._journal.add(command, self._journal.last + 1, self._SyncObj__raftCurrentTerm)

    def _SyncObj__getEntries(  # noqa: N802 - the library's name
        self,
        fromIDx: int,  # noqa: N803 - the library's name
        count: int | None = None,
        maxSizeBytes: int | None = None,  # noqa: N803 - the library's name
    ) -> list[Entry]:
        """Return a bounded part of the log.

        Without a count, the library wants one entry and whether more follow. That must not depend
        on how much fits into one read.
        """
        if count is None:
            entries = self._journal.read(fromIDx, count=1, bytes_max=0)
            if entries and fromIDx < self._journal.last:
                entries.append(self._journal[-1])
            return entries
        bytes_max = self._settings.append_bytes_max if maxSizeBytes is None else maxSizeBytes
        return self._journal.read(fromIDx, count=count, bytes_max=bytes_max)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802 - the library's name
        """Keep the library from starting an election on its own."""
        return _NEVER_S

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802 - the library's name
        """Leave the log alone: the group trims it."""

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802 - the library's name
        raise AssertionError(f"the library applies {len(command)} bytes by itself")

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803 - the library's name
        raise AssertionError(f"the library loads a dump (clear journal: {clearJournal})")


class _Member(int, Node):  # type: ignore[misc, unused-ignore]
    """A node that is also an integer, hashed from its id, because the library looks nodes up often.

    The integer is the same in every process, so a set of nodes has the same order in all of them.
    """

    def __new__(cls, id: str) -> Self:  # noqa: A002 - the library's name
        return super().__new__(cls, int.from_bytes(blake2b(id.encode(), digest_size=7).digest()))

    def __init__(self, id: str) -> None:  # noqa: A002 - the library's name
        Node.__init__(self, id)

    __repr__ = Node.__repr__


class _Window:
    """The unacknowledged messages to one follower.

    Attributes:
        probing: Whether the follower must acknowledge a message before it is sent entries.
    """

    def __init__(self) -> None:
        self._sent: deque[tuple[int, int]] = deque()
        self._bytes = 0
        self.probing = False

    def open(self, bytes_max: int) -> bool:
        """Return whether another message with entries may be sent."""
        return not self.probing and self._bytes < bytes_max and len(self._sent) < _WINDOW_MESSAGES

    def sent(self, last: int, size: int) -> None:
        """Note a message that ends with entry `last`."""
        self._sent.append((last, size))
        self._bytes += size

    def acknowledged(self, match: int) -> None:
        """Forget the messages whose entries the follower holds now."""
        self.probing = False
        while self._sent and self._sent[0][0] <= match:
            self._bytes -= self._sent.popleft()[1]

    def probe(self) -> None:
        """Forget all messages: their entries are sent again after the next acknowledgement."""
        self._sent.clear()
        self._bytes = 0
        self.probing = True


class _Carrier(Transport):  # type: ignore[misc, unused-ignore]
    """The library's transport, for sending only; `SafeSyncObj.deliver` hands in messages."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.carry: Callable[[str, Mapping[str, object]], None]

    ready = True  # In the library this is a property, read twice a tick.

    def send(self, node: Node, message: Mapping[str, object]) -> bool:
        self.carry(node.id, message)
        return True

    def destroy(self) -> None:
        pass


class _NoPoller:
    """A poller without sockets: `SafeSyncObj.deliver` hands in messages."""

    def poll(self, timeout: float) -> None:
        pass
