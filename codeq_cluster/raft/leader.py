"""Leader: a replica's turns while it leads."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.codec import membership as codec
from codeq_cluster.raft.announcer import CommitAnnouncer
from codeq_cluster.raft.changes import Changes
from codeq_cluster.raft.doubted_leader import DoubtedLeader
from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.following import Following
from codeq_cluster.raft.leadership_transfer import LeadershipTransfer
from codeq_cluster.raft.log_trimmer import LogTrimmer
from codeq_cluster.raft.messages import Answer, Message
from codeq_cluster.raft.ports import EntrySource
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Replica


class Leader:
    """The leadership of one replica, during the terms in which it leads.

    The source is asked for entries only after every entry of earlier terms is applied, and while
    neither a transfer nor a doubt about this replica's state is open.

    Args:
        replica: The replica that leads.
        source: Where entries come from.
        read_index: The reads that wait for proof of this leadership.
        changes: The membership change under way.
        followers: The notes of the followers' answers.
        following: Takes the index up to which followers may trim their logs.
        again: Called when another turn should follow this one.

    Attributes:
        announcer: Announces commits.
        transfer: Transfers leadership.
        trimmer: Trims the log.
        doubted: Ends a leadership that no majority agrees with.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        source: EntrySource,
        read_index: ReadIndex,
        changes: Changes,
        followers: Followers,
        following: Following,
        again: Callable[[], None],
    ) -> None:
        self._context = replica.context
        self._node_id = replica.context.node_id
        self._voters = replica.voters
        self._links = replica.links
        self._journal = replica.journal
        self._engine = replica.engine
        self._machine = replica.machine
        self._applier = replica.applier
        self._divergence = replica.divergence
        self._source = source
        self._read_index = read_index
        self._changes = changes
        self._followers = followers
        self._again = again
        self.announcer = CommitAnnouncer(replica, followers)
        self.transfer = LeadershipTransfer(replica, again)
        self.trimmer = LogTrimmer(replica, following)
        self.doubted = DoubtedLeader(replica, self.transfer)
        self._handover = self.transfer.handover
        self._term = 0

    @property
    def ready(self) -> bool:
        """Return whether this node leads and has applied all that earlier leaders committed."""
        return self._engine.leads() and self._term == self._engine.term()

    @property
    def due(self) -> float:
        """Return when the next turn is due at the latest, in monotonic seconds."""
        return min(
            self._engine.heartbeat_due(),
            self._handover.deadline,
            self.doubted.deadline,
            self.announcer.due,
        )

    def turn(self) -> None:
        """Send the followers what they lack, answer proven reads, then transfer, promote, trim."""
        engine, term, applied = self._engine, self._engine.term(), self._applier.index
        ready = engine.ready_index()
        settled = not self._divergence.open
        if self._term != term and ready is not None and applied >= ready and settled:
            self._term = term
            self._source.lead(term)
            # The source may be asked from now on; without another turn, nobody would.
            self._again()
        engine.replicate()
        self.announcer.announce()
        if settled:
            self._read_index.release(applied)
        if self._read_index.wanted and self._term == term:
            self._again()
        self.transfer.proceed()
        self._promote()
        if settled:
            # While states are in doubt, the next leader needs the log to prove which state is
            # right.
            self.trimmer.trim(self._machine.stored_index)

    def begin_round(self) -> None:
        """Start the quorum round that reads wait for, if any do."""
        if self._read_index.wanted and self.ready:
            self._read_index.start(index=self._engine.commit_index(), node_id=self._node_id)
            self._engine.heartbeat_now()

    def end(self) -> None:
        """Answer everyone who waits for something of this leadership: it is over."""
        self.transfer.end()
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
            and (
                message.next - 1 <= self._engine.commit_index()
                or not self._context.rules.commit_at_once
            )
            and not (message.awaited and self.announcer.due < float("inf"))
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

    # Proposals.

    def is_full(self) -> bool:
        """Return whether so many entries are on their way that the source must wait."""
        in_flight = self._journal.last - self._applier.index
        return in_flight >= self._context.settings.entries_in_flight_max

    def take(self) -> bytes | None:
        """Return the source's next entry, or None while this leader may propose none."""
        if (
            self._term != self._engine.term()
            or self._handover.peer is not None
            or self._divergence.open
            or self.is_full()
        ):
            return None
        payload = self._source.take()
        assert payload is None or len(payload) <= self._context.settings.entry_bytes_max
        return payload

    def take_members(self) -> bytes | None:
        """Return the encoded membership to propose, or None."""
        membership = self._changes.take(self._journal.last + 1)
        return None if membership is None else codec.encode(membership)

    def out_of_reach(self, peer: str) -> bool:
        """Return whether a peer said lately that it needs a snapshot before it can go on."""
        # The peer repeats it in its answer to every heartbeat, so an old report is void.
        lately = self._context.now() - self._context.election_s
        return self._followers.out_of_reach(peer, since=lately)

    # Members.

    def may_change(self) -> bool:
        """Return whether a change of membership may begin now."""
        if not self.ready or self._handover.peer is not None:
            return False
        open_change = self._changes.under_way or self._voters.index > self._applier.index
        return not (open_change and self._context.rules.one_change_at_a_time)

    def _promote(self) -> None:
        """Promote a learner that has caught up to a voter."""
        if not self._voters.learners or not self.may_change():
            return
        engine, settings = self._engine, self._context.settings
        # Under load a learner is always a few entries behind.
        wanted = engine.commit_index() - 2 * settings.entries_in_flight_max
        since = self._context.now() - self._context.election_s
        for peer in self._voters.learners:
            caught_up = engine.match_index(peer) >= max(wanted, 1)
            connected = peer in self._links.connected
            if connected and caught_up and engine.answered_since(peer, since):
                self._changes.begin(self._voters.with_voter(peer), lambda _done: None)
                self._again()
                return
