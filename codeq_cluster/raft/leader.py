"""Leader: a replica's turns while it leads, and the transfer of its leadership."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from codeq_cluster.raft.changes import Changes
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.guard import Memory
from codeq_cluster.raft.handover import Handover
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.messages import Answer, Message, TimeoutNow
from codeq_cluster.raft.outbox import Outbox
from codeq_cluster.raft.ports import EntrySource, StateMachine
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.voters import Voters
from codeq_cluster.settings import RaftSettings

_log = logging.getLogger(__name__)

# While a snapshot is on its way, the log after it is kept, up to this multiple of its bounds.
# Without a bound, one slow transfer could fill the disk.
_HELD_LOGS_MAX = 16
_HOLD_S = 60.0
# The next entry tells the followers the commit index at no cost, so the leader waits this long for
# one. A follower on whose node a caller waits is told at once.
_ANNOUNCE_S = 0.02
# A leader that finds no majority for its state steps down after this many election timeouts:
# another node may reach other voters.
_DOUBTED_ELECTIONS = 3


class Leader:
    """The leadership of one replica, during the terms in which it leads.

    Args:
        node_id: This node.
        shard: Number of the shard, for the log.
        connected: The peers to which the link works; the set changes over time.
        now: Monotonic seconds.
        again: Called when another turn should follow this one.
    """

    def __init__(
        self,
        *,
        node_id: str,
        shard: int,
        voters: Voters,
        engine: SafeSyncObj,
        journal: Journal,
        machine: StateMachine,
        source: EntrySource,
        outbox: Outbox,
        read_index: ReadIndex,
        changes: Changes,
        divergence: Divergence,
        memory: Memory,
        counters: Counter[str],
        connected: AbstractSet[str],
        settings: RaftSettings,
        rules: SafetySwitches,
        now: Callable[[], float],
        again: Callable[[], None],
    ) -> None:
        self._node_id = node_id
        self._shard = shard
        self._voters = voters
        self._engine = engine
        self._journal = journal
        self._machine = machine
        self._source = source
        self._outbox = outbox
        self._read_index = read_index
        self._changes = changes
        self._divergence = divergence
        self._memory = memory
        self._counters = counters
        self._connected = connected
        self._settings = settings
        self._rules = rules
        self._now = now
        self._again = again
        self._handover = Handover()
        self._term = 0
        self._told: dict[str, int] = {}
        self._held_until = float("-inf")
        self._doubts_until: float | None = None
        self._announce_at: float | None = None

    @property
    def ready(self) -> bool:
        """Return whether this node leads and has applied all that earlier leaders committed."""
        return self._engine.leads() and self._term == self._engine.term()

    @property
    def due(self) -> float:
        """Return when the next turn is due at the latest, in monotonic seconds."""
        decided_by = float("inf") if self._doubts_until is None else self._doubts_until
        announce = float("inf") if self._announce_at is None else self._announce_at
        return min(self._engine.heartbeat_due(), self._handover.deadline, decided_by, announce)

    def turn(self, applied: int) -> None:
        """Send the followers what they lack, answer proven reads, then transfer, promote and trim.

        Args:
            applied: Index of the last entry in the state.
        """
        engine, term = self._engine, self._engine.term()
        ready = engine.ready_index()
        settled = not self._divergence.open
        if self._term != term and ready is not None and applied >= ready and settled:
            self._term = term
            self._source.lead(term)
            # The source may be asked from now on; without another turn, nobody would.
            self._again()
        engine.replicate()
        self._announce()
        if settled:
            self._read_index.release(applied)
        if self._read_index.wanted and self._term == term:
            self._again()
        self._hand_over(applied)
        self._let_vote(applied)
        if settled:
            # While states are in doubt, the next leader needs the log to prove which state is
            # right.
            self._forget(self._machine.stored_index)

    def _announce(self) -> None:
        """Tell the followers the commit index, unless entries that carry it follow soon.

        Callers on a follower's node wait until it applies: they should not wait for a heartbeat.
        """
        untold = self._untold
        if not untold:
            self._announce_at = None
            return
        now = self._now()
        if self._announce_at is None:
            self._announce_at = now + _ANNOUNCE_S
        if now >= self._announce_at:
            self._announce_at = None
        else:
            untold = [peer for peer in untold if self._memory.awaited.get(peer)]
        if untold:
            self._engine.announce(untold)

    @property
    def _untold(self) -> list[str]:
        """Return the followers that were sent all entries, but not the newest commit index.

        The others learn it with their next entries, or when they can be reached again.
        """
        engine, told, last = self._engine, self._told, self._journal.last
        commit = engine.commit_index()
        return [
            peer
            for peer in self._voters.peers
            if told.get(peer, 0) < commit
            and peer in self._connected
            and engine.next_index(peer) > last
        ]

    def told(self, peer: str, commit: int) -> None:
        """Note that a follower is being sent this commit index."""
        self._told[peer] = commit

    def begin_round(self) -> None:
        """Start the quorum round that reads wait for, if any do."""
        if self._read_index.wanted and self.ready:
            self._read_index.start(index=self._engine.commit_index(), node_id=self._node_id)
            self._engine.heartbeat_now()

    def end(self) -> None:
        """Answer everyone who waits for something of this leadership: it is over."""
        self._handover.end()
        self._read_index.fail()
        self._changes.fail()

    def can_wait(self, peer: str, message: Message) -> bool:
        """Return whether a message can wait for the turn of the next heartbeat.

        A follower's answer can wait if it commits nothing new and nobody waits for anything else
        that it proves. Half of all answers do, and those to heartbeats. A follower that lacks
        entries gets the next ones after its answer, so its answers never wait.
        """
        return (
            isinstance(message, Answer)
            and message.success
            and self._engine.leads()
            and message.term == self._engine.term()
            and (message.next - 1 <= self._engine.commit_index() or not self._rules.commit_at_once)
            and not (message.awaited and self._announce_at is not None)
            and peer in self._voters.peers
            and self._engine.next_index(peer) > self._journal.last
            and self._quiet
        )

    @property
    def _quiet(self) -> bool:
        """Return whether nothing is under way that an answer could decide."""
        return (
            not self._read_index.open
            and not self._changes.under_way
            and not self._divergence.open
            and not self._voters.learners
            and self._handover.peer is None
            and (self._voters.preferred or self._node_id) == self._node_id
        )

    def is_full(self, applied: int) -> bool:
        """Return whether so many entries are on their way that the source must wait."""
        return self._journal.last - applied >= self._settings.entries_in_flight_max

    def may_propose(self, applied: int) -> bool:
        """Return whether the source may be asked for an entry."""
        return (
            self._term == self._engine.term()
            and self._handover.peer is None
            and not self._divergence.open
            and not self.is_full(applied)
        )

    # Leadership transfer.

    def heirs(self) -> set[str]:
        """Return the voters to which leadership can be transferred."""
        return set(self._connected).intersection(self._voters.voters) - {self._node_id}

    def successor(self, peers: Sequence[str] | None = None) -> str | None:
        """Return the best next leader among these voters, or None.

        Voters that answered lately come first, then those that hold most of the log. A voter must
        be connected.

        Args:
            peers: The candidates; None for all voters not known to differ in state.
        """
        if peers is None:
            peers = [peer for peer in self.heirs() if peer not in self._divergence.differing]
        engine = self._engine
        lately = self._now() - self._settings.election_ms / 1000
        return max(
            sorted(self.heirs() & set(peers)),
            key=lambda peer: (engine.answered_since(peer, lately), engine.match_index(peer)),
            default=None,
        )

    def transfer(self, peer: str | None) -> bool:
        """Begin a leadership transfer; False when this node does not lead or cannot ask that peer.

        True also while a transfer to that peer is under way, or, with None, to any peer.

        Args:
            peer: The next leader, if it could lead within moments. None chooses the connected voter
                that holds most of the log, however far behind it is.
        """
        if not self._engine.leads():
            return False
        if self._handover.peer is not None:
            return peer in (None, self._handover.peer)
        if peer is None:
            peer = self.successor()
        elif not self._able(peer):
            return False
        if peer not in self.heirs():
            return False
        self._handover.begin(peer, self._now())
        return True

    def _able(self, peer: str) -> bool:
        """Return whether a voter could lead within moments, as far as is known."""
        engine = self._engine
        # Under load a peer is always a few entries behind; the transfer waits for these.
        tolerated = 2 * self._settings.entries_in_flight_max
        return (
            peer in self.heirs()
            and peer not in self._divergence.differing
            # A paused peer, for lack of disk space for instance, is connected but does not answer.
            and engine.answered_since(peer, self._now() - self._settings.election_ms / 1000)
            and engine.match_index(peer) + tolerated >= engine.commit_index()
        )

    def _hand_over(self, applied: int) -> None:
        engine, handover, now = self._engine, self._handover, self._now()
        if handover.peer is not None and not self._voters.votes(handover.peer):
            handover.end()  # The peer was removed, or lost its data, during the transfer.
        if handover.peer is None:
            preferred = self._voters.preferred or self._node_id
            due = handover.preferred_due(preferred, caught_up=self._able(preferred), now=now)
            if preferred != self._node_id and due:
                handover.begin(preferred, now)
        if handover.peer is None:
            return
        if now >= handover.deadline:
            self._counters["handover_failed"] += 1
            handover.end()
            self._again()
        elif (
            not handover.asked
            # Every proposal is answered first, so the transfer makes no outcome unknown.
            and applied == self._journal.last
            and engine.match_index(handover.peer) == self._journal.last
        ):
            handover.asked = True
            self._outbox.send(handover.peer, TimeoutNow(term=engine.term()))

    def give_up_in_doubt(self) -> None:
        """Step down when a majority has another state, or has been silent for too long.

        Until then this leader accepts and answers nothing, and its heartbeats ask the others. The
        next leader gets the rest of the log first, because it could not be elected without it.
        """
        engine, now = self._engine, self._now()
        if not (engine.leads() and self._divergence.open):
            self._doubts_until = None
            return
        if self._doubts_until is None:
            self._doubts_until = now + _DOUBTED_ELECTIONS * self._settings.election_ms / 1000
            engine.heartbeat_now()
        peer = self.successor(self._divergence.differing)
        able = peer is not None and engine.match_index(peer) == self._journal.last
        if (self._divergence.lost and able) or now >= self._doubts_until:
            _log.error(
                "giving up leadership: no majority has my state",
                extra={"shard": self._shard, "peers": list(self._divergence.differing)},
            )
            if peer is not None:
                self._outbox.send(peer, TimeoutNow(term=engine.term()))
            engine.step_down()
            self._doubts_until = None

    # Members.

    def may_change(self, applied: int) -> bool:
        """Return whether a change of membership may begin now."""
        if not self.ready or self._handover.peer is not None:
            return False
        open_change = self._changes.under_way or self._voters.index > applied
        return not (open_change and self._rules.one_change_at_a_time)

    def _let_vote(self, applied: int) -> None:
        """Promote a learner that has caught up to a voter."""
        if not self._voters.learners or not self.may_change(applied):
            return
        engine = self._engine
        # Under load a learner is always a few entries behind.
        wanted = engine.commit_index() - 2 * self._settings.entries_in_flight_max
        since = self._now() - self._settings.election_ms / 1000
        for peer in self._voters.learners:
            caught_up = engine.match_index(peer) >= max(wanted, 1)
            if peer in self._connected and caught_up and engine.answered_since(peer, since):
                self._changes.begin(self._voters.with_voter(peer), lambda _done: None)
                self._again()
                return

    def out_of_reach(self, peer: str) -> bool:
        """Return whether a peer said lately that it needs a snapshot before it can go on."""
        # The peer repeats it in its answer to every heartbeat, so an old report is void.
        lately = self._now() - self._settings.election_ms / 1000
        return self._memory.out_of_reach.get(peer, lately) > lately

    # The log's length.

    def hold(self) -> None:
        """Keep more of the log for a minute: a snapshot is on its way to a peer."""
        if self._rules.hold_for_snapshots:
            self._held_until = self._now() + _HOLD_S

    def _forget(self, stored: int) -> None:
        """Trim what every member holds, but for a reserve that slow readers of the log may need.

        A log beyond its bounds is trimmed regardless; a member that lacks the trimmed entries gets
        a snapshot.

        Args:
            stored: The last entry that a restart would find in the state without the log.
        """
        engine, journal, settings = self._engine, self._journal, self._settings
        peers = self._voters.peers
        floor = min((engine.match_index(peer) for peer in peers), default=stored)
        entries_max, bytes_max = settings.log_entries_max, settings.log_bytes_max
        if self._now() < self._held_until:
            entries_max, bytes_max = entries_max * _HELD_LOGS_MAX, bytes_max * _HELD_LOGS_MAX
        if journal.log_bytes > bytes_max or len(journal) > entries_max:
            # Trimmed down to half the bounds, so that not every entry causes a trim.
            within = journal.first_within(bytes_max // 2, entries_max // 2, upto=stored)
            floor = max(floor, within)
        else:
            floor -= settings.keep_entries
        floor = min(floor, stored)
        journal.trim(floor)
        # Followers may forget what is trimmed here; they learn it with a later message.
        self._memory.floor = max(floor, journal.first)
