"""SafeSyncObj: PySyncObj, with the parts replaced that cannot be made safe from outside.

The library keeps terms and votes, and decides elections. This package decides when an election
starts; it sends, compares, counts and applies entries, because the library does none of these
safely.
No other module knows the library's private names.
"""

# mypy: disable-error-code="no-untyped-call"
# The library has no annotations.

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj

from codeq_cluster.forwarded import forwarded
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.journal_rows import Entry
from codeq_cluster.raft.library import Carrier, Member, NoPoller, configuration, use_clock
from codeq_cluster.raft.members import Voters
from codeq_cluster.raft.messages import ENTRIES_MAX
from codeq_cluster.raft.ports import Beat
from codeq_cluster.settings import RaftSettings

_FOLLOWER = 0
_CANDIDATE = 1
_LEADER = 2
# The library starts an election when its deadline has passed; this package sets that deadline.
_NEVER_S = 1e12
_AT_ONCE_S = -1.0
_REST = float("inf")
# The window of unacknowledged messages per peer: enough to fill a slow link, few enough to resend.
_WINDOW_MESSAGES = 64
_WINDOW_BATCHES = 2


class SendAppend(Protocol):
    """Sends entries to a follower: see `AppendSender.send`."""

    def __call__(
        self, peer: str, start: int, entries: Sequence[Entry], *, quiet: bool = False
    ) -> None:
        """Send the entries from `start` on; none for a heartbeat."""


class SafeSyncObj(SyncObj):
    """One member's Raft state.

    Attributes:
        leads: This node is the leader of the current term.
        commit_index: The highest index known to be committed.
        heartbeat_due: When this leader's next heartbeat is due; infinite at rest.
        ready_index: Index of this leader's first entry of its term.
        leader_node: Stands for the leader; the same object for as long as it leads.
    """

    term: int = forwarded("_SyncObj__raftCurrentTerm")
    commit_index: int = forwarded("_SyncObj__raftCommitIndex")
    heartbeat_due: float = forwarded("_SyncObj__newAppendEntriesTime")
    ready_index: int = forwarded("_SyncObj__noopIDx")
    leader_node: object = forwarded("_SyncObj__raftLeader")

    _SyncObj__raftState: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__votedForNodeId: str | None
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLog: Journal
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__otherNodes: set[Node]
    _SyncObj__readonlyNodes: set[Node]
    _SyncObj__connectedNodes: set[Node]
    _SyncObj__lastResponseTime: dict[Node, float]
    _SyncObj__newAppendEntriesTime = 0.0
    _SyncObj__onMessageReceived: Callable[[Node, Mapping[str, object]], None]
    _SyncObj__setCurrentTerm: Callable[[int, str | None], None]

    def __init__(
        self,
        *,
        node_id: str,
        voters: Voters,
        journal: Journal,
        settings: RaftSettings,
        now: Callable[[], float],
        beat: Beat,
    ) -> None:
        """Read term, vote and commit index from the journal; `attach` must follow.

        Args:
            journal: The log, loaded.
            now: Returns monotonic seconds.
        """
        self.leads = False
        self._append: SendAppend
        self._carrier = Carrier()
        self._journal = journal
        self._settings = settings
        self._now = now
        self._beat = beat
        self._voters = voters
        self._peers: dict[str, Member] = {}
        self._data: dict[str, int] = {}
        self._windows: dict[str, _Window] = {}
        # Nodes that are not members: this node reads their messages, and sends them only answers.
        self._strangers: dict[str, Member] = {}
        options = configuration(settings)
        self._fallback_s: float = options.leaderFallbackTimeout
        super().__init__(
            Member(node_id),
            [],
            options,
            nodeClass=Member,
            transport=self._carrier,
        )
        # The library made an empty log in memory; this is the real one.
        self._SyncObj__raftLog = journal
        self._SyncObj__raftCurrentTerm = journal.term
        self._SyncObj__votedForNodeId = journal.voted_for
        self._SyncObj__raftCommitIndex = journal.getRaftCommitIndex()
        self._poller = NoPoller()
        self.adopt_members()

    def attach(
        self, *, send: Callable[[str, Mapping[str, object]], None], append: SendAppend
    ) -> None:
        """Connect the library to its group; it calls nothing of the group before that.

        Args:
            send: Sends a peer one of the library's own messages: a vote or a vote request.
            append: Sends a follower entries, or a heartbeat.
        """
        self._carrier.carry = send
        self._append = append

    # Questions that the group asks.

    @property
    def leader(self) -> str | None:
        """Return the id of the current term's leader, or None while it is unknown."""
        leader = self._SyncObj__raftLeader
        return None if leader is None else leader.id

    @property
    def campaigns(self) -> bool:
        """Return whether this node is a candidate in the current term."""
        return self._SyncObj__raftState == _CANDIDATE

    @property
    def least_match(self) -> int | None:
        """Return the last entry that every peer is known to hold; None without peers."""
        return min(self._SyncObj__raftMatchIndex.values(), default=None)

    def match_index(self, peer: str) -> int:
        """Return the last entry the peer is known to hold; 0 unless this node leads."""
        if not self.leads:
            return 0
        return self._SyncObj__raftMatchIndex[self._peers[peer]]

    def next_index(self, peer: str) -> int:
        """Return the entry this leader sends the peer next."""
        return self._SyncObj__raftNextIndex[self._peers[peer]]

    def answered_since(self, peer: str, instant: float) -> bool:
        """Return whether the peer has answered this leader after `instant`."""
        return self._SyncObj__lastResponseTime[self._peers[peer]] > instant

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

    def _node(self, peer: str) -> Member:
        known = self._peers.get(peer) or self._strangers.get(peer)
        return known or self._strangers.setdefault(peer, Member(peer))

    def deliver(self, peer: str, message: Mapping[str, object]) -> None:
        """Hand one checked vote or vote request to the library."""
        use_clock(self._now)
        self._SyncObj__onMessageReceived(self._node(peer), message)

    # Following.

    def follow(self, peer: str, term: int) -> None:
        """Follow the peer, which leads `term`; no lower than the current one."""
        self._SyncObj__raftLeader = self._peers.get(peer) or self._node(peer)
        if term > self._SyncObj__raftCurrentTerm:
            self._SyncObj__setCurrentTerm(term, None)
        self._SyncObj__raftState = _FOLLOWER
        self.leads = False

    def write(self, prev: int, commands: Sequence[bytes], terms: Sequence[int]) -> None:
        """End the log at `prev`, and append the leader's entries after it."""
        journal = self._journal
        if journal.last > prev:
            journal.deleteEntriesFrom(prev + 1 - journal.first)
        index = prev
        for command, term in zip(commands, terms, strict=True):
            index += 1
            journal.add(command, index, term)

    def commit(self, upto: int) -> None:
        """Count the entries up to an index as committed, as far as the log has them."""
        last = self._journal.last
        committed = self._SyncObj__raftCommitIndex
        # A log that was truncated below it no longer has what was committed.
        committed = max(min(committed, last), min(upto, last))
        self._SyncObj__raftCommitIndex = committed
        self._journal.setRaftCommitIndex(committed)

    # Leading.

    def acknowledge(self, peer: str, *, upto: int, keep_next: bool) -> None:
        """Note that the follower holds everything up to `upto`.

        Args:
            upto: Index of its last matching entry.
            keep_next: False resends entries that are already on their way.
        """
        node, window = self._peers[peer], self._windows[peer]
        match, after = self._SyncObj__raftMatchIndex, self._SyncObj__raftNextIndex
        if match[node] < upto:
            match[node] = upto
            if not keep_next:
                after[node] = upto + 1
        if keep_next and after[node] <= upto:
            after[node] = upto + 1
        self._SyncObj__lastResponseTime[node] = self._now()
        window.acknowledged(match[node])

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
            self._append(peer, start, ())
        return not again

    def alive(self, peer: str) -> None:
        """Note that the follower answered, although it holds nothing new."""
        self._SyncObj__lastResponseTime[self._peers[peer]] = self._now()

    def count(self, now: float) -> None:
        """Commit what a majority holds; stop leading if no majority has answered lately."""
        others = self._SyncObj__otherNodes
        # This many others make a majority together with this node.
        wanted = (len(others) + 1) // 2
        if wanted:
            match, heard = self._SyncObj__raftMatchIndex, self._SyncObj__lastResponseTime
            held = sorted(map(match.__getitem__, others))[-wanted]
            silent = sorted(map(heard.__getitem__, others))[-wanted] <= now - self._fallback_s
        else:
            held, silent = self._journal.last, False
        journal = self._journal
        # An entry of an earlier term is committed by the first of this term that follows it.
        if (
            held > self._SyncObj__raftCommitIndex
            and journal.term_at(held) == self._SyncObj__raftCurrentTerm
        ):
            self._SyncObj__raftCommitIndex = held
            journal.commit = max(journal.commit, held)
        if silent:
            self.step_down()

    def adopt(self, term: int) -> None:
        """Enter a newer term as a follower; its leader is not known yet."""
        self._SyncObj__setCurrentTerm(term, None)
        self.step_down()

    def step_down(self) -> None:
        """Stop leading or campaigning; the term stays."""
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    def campaign(self) -> None:
        """Start an election in a new term; only with a connection, or alone."""
        # Entries sent in an earlier leadership may be gone from the log. No follower would
        # acknowledge them, and they would fill the windows for ever.
        self._windows = {peer: _Window() for peer in self._peers}
        self._SyncObj__raftElectionDeadline = _AT_ONCE_S
        use_clock(self._now)
        self.doTick(0)

    @property
    def rests(self) -> bool:
        """Return whether this node leads and its heartbeats are left to `Rest`."""
        return self.leads and self._SyncObj__newAppendEntriesTime == _REST

    def rest(self) -> None:
        """Send no heartbeats until `rouse`."""
        self._SyncObj__newAppendEntriesTime = _REST

    def rouse(self) -> None:
        """Make a heartbeat due with those of the other groups."""
        self._SyncObj__newAppendEntriesTime = self._next_beat()

    def _next_beat(self) -> float:
        return self._beat.after(self._now(), self._settings.heartbeat_ms / 1000, self)

    def heartbeat_now(self) -> None:
        """Make the heartbeat due in this turn or the next."""
        self._SyncObj__newAppendEntriesTime = _AT_ONCE_S

    def announce(self, peers: Sequence[str]) -> None:
        """Send the commit index to those connected followers that were sent every entry."""
        for peer in peers:
            node = self._peers[peer]
            start = self._SyncObj__raftNextIndex[node]
            if start > self._journal.last and node in self._SyncObj__connectedNodes:
                self._append(peer, start, (), quiet=True)

    def replicate(self) -> None:
        """Send every connected follower the entries it lacks, as far as its window allows."""
        last = self._journal.last
        for peer, node in self._peers.items():
            if self._SyncObj__raftNextIndex[node] <= last and node in self._SyncObj__connectedNodes:
                self._send_entries(peer, node)

    def heartbeat(self) -> None:
        """Send every connected follower the entries it lacks, or else a heartbeat."""
        self._SyncObj__newAppendEntriesTime = self._next_beat()
        for peer, node in self._peers.items():
            if node in self._SyncObj__connectedNodes and not self._send_entries(peer, node):
                self._append(peer, self._next(node), ())

    def _send_entries(self, peer: str, node: Node) -> bool:
        """Send entries up to the window's end; return whether any were sent."""
        journal, window = self._journal, self._windows[peer]
        bytes_max = self._settings.append_bytes_max
        sent = False
        start = self._next(node)
        while start <= journal.last and window.open(_WINDOW_BATCHES * bytes_max):
            entries = journal.read(start, count=ENTRIES_MAX, bytes_max=bytes_max)
            self._append(peer, start, entries)
            start = entries[-1][1] + 1
            window.sent(entries)
            self._SyncObj__raftNextIndex[node] = start
            sent = True
        return sent

    def _next(self, node: Node) -> int:
        """Return the entry to send the follower next, one that still exists."""
        start = max(self._SyncObj__raftNextIndex[node], self._journal.first + 1)
        self._SyncObj__raftNextIndex[node] = start
        return start

    # Overrides of unsafe parts of the library.

    def _SyncObj__setState(self, state: int) -> None:  # noqa: N802 - the library's name
        self._SyncObj__raftState = state
        self.leads = state == _LEADER

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802 - the library's name
        """Send entries and heartbeats: windowed, without snapshots and without a busy loop."""
        self.heartbeat()

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802 - the library's name
        """Leave the state alone: the group applies entries."""
        return False

    def _SyncObj__getEntries(  # noqa: N802 - the library's name
        self,
        fromIDx: int,  # noqa: N803 - the library's name
        count: int,
    ) -> list[Entry]:
        """Return a part of the log: a leader that is elected alone counts its entries by it."""
        return self._journal.read(fromIDx, count=count, bytes_max=0)

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802 - the library's name
        """Keep the library from starting an election on its own."""
        return _NEVER_S

    def _SyncObj__tryLogCompaction(self) -> None:  # noqa: N802 - the library's name
        """Leave the log alone: the group trims it."""

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:  # noqa: N802 - the library's name
        raise AssertionError(f"the library applies {len(command)} bytes by itself")

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N802, N803 - the library's name
        raise AssertionError(f"the library loads a dump (clear journal: {clearJournal})")


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

    def sent(self, entries: Sequence[Entry]) -> None:
        """Note a message with these entries."""
        size = 0
        for entry in entries:
            size += len(entry[0])
        self._sent.append((entries[-1][1], size))
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
