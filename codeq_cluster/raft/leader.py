"""Leader: a replica's turns while it leads."""

from __future__ import annotations

from codeq_cluster.codec import levels
from codeq_cluster.codec import membership as codec
from codeq_cluster.raft.appends import CommitAnnouncer
from codeq_cluster.raft.leadership_transfer import DoubtedLeader, LeadershipTransfer
from codeq_cluster.raft.messages import MEMBERS, PAYLOAD, Answer
from codeq_cluster.raft.replica import Replica

# While a snapshot is on its way, the log after it is kept, up to this multiple of its bounds.
# Without a bound, one slow transfer could fill the disk.
_HELD_LOGS_MAX = 16
_HOLD_S = 60.0
_NEVER = float("inf")


class Leader:
    """The leadership of one replica, during the terms in which it leads.

    The source is asked for entries only after every entry of earlier terms is applied, and while
    neither a transfer nor a doubt about this replica's state is open.

    Attributes:
        doubted: Ends a leadership that no majority agrees with.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._again = replica.schedule.want_another
        self.announcer = CommitAnnouncer(replica)
        self.transfer = LeadershipTransfer(replica)
        self.trimmer = LogTrimmer(replica)
        self.doubted = DoubtedLeader(replica, self.transfer)
        self._term = 0
        # The log is trimmed after an entry was applied, and with every heartbeat.
        self._looked_at = (0, 0.0)
        # What the last heartbeat told the followers, and when.
        self._told: object = None
        self._told_at = 0.0

    @property
    def ready(self) -> bool:
        """Return whether this node leads and has applied all that earlier leaders committed."""
        engine = self._replica.engine
        return engine.leads and self._term == engine.term

    @property
    def due(self) -> float:
        """Return when the next turn is due at the latest, in monotonic seconds."""
        return min(
            self._replica.engine.heartbeat_due,
            self.transfer.deadline,
            self.doubted.deadline,
            self.announcer.due,
        )

    def turn(self) -> None:
        """Send the followers what they lack, answer proven reads, then transfer, promote, trim."""
        replica, engine, reads = self._replica, self._replica.engine, self._replica.read_index
        term, applied, divergence = engine.term, replica.applier.index, replica.divergence
        settled = not (divergence.differs and divergence.open)
        if self._term != term and settled and applied >= engine.ready_index:
            self._term = term
            replica.ports.source.lead(term)
            # The source may be asked from now on; without another turn, nobody would.
            self._again()
        if replica.voters.peers:
            engine.replicate()
            self.announcer.announce()
        if reads.open:
            if settled:
                reads.release(applied)
            if reads.wanted and self._term == term:
                self._again()
        if self.transfer.peer is not None or replica.voters.prefers_another:
            self.transfer.proceed()
        if replica.voters.learners:
            self._promote()
        looked_at = applied, engine.heartbeat_due
        if settled and looked_at != self._looked_at:
            # While states are in doubt, the next leader needs the log to prove which state is
            # right.
            self._looked_at = looked_at
            self.trimmer.trim()
        if engine.heartbeat_due == _NEVER and applied < replica.journal.last:
            self.rouse()

    def rest(self) -> bool:
        """Begin to rest instead of a heartbeat, if the last one told everybody everything.

        Then every peer has answered since, holds the whole log, has the same state and may trim
        what this log has trimmed. Nothing is under way, and no trim is due.
        """
        replica, engine, last = self._replica, self._replica.engine, self._replica.journal.last
        voters, rest = replica.voters, replica.ports.rest
        told, self._told = self._told, (engine.term, voters.index, last, replica.floor)
        told_at, self._told_at = self._told_at, replica.now()
        if not (
            rest is not None
            and told == self._told
            and self._term == engine.term
            and last == replica.applier.index == engine.commit_index
            and voters.membership.level >= levels.RESTS_FROM
            and not voters.learners
            and not voters.prefers_another
            and self.transfer.peer is None
            and not replica.changes.under_way
            and not replica.read_index.open
            and self.trimmer.done
            and all(
                engine.match_index(peer) == last
                and engine.answered_since(peer, told_at)
                and replica.divergence.agrees(peer, last)
                for peer in voters.peers
            )
        ):
            return False
        engine.rest()
        rest.enter(replica.shard)
        return True

    def rouse(self) -> None:
        """Send heartbeats again, at least one before the next rest."""
        self._told = None
        self._replica.engine.rouse()

    def begin_round(self) -> None:
        """Start the quorum round that reads wait for, if any do."""
        replica, engine = self._replica, self._replica.engine
        if replica.read_index.wanted and self.ready:
            replica.read_index.start(index=engine.commit_index, node_id=replica.node_id)
            engine.heartbeat_now()

    def end(self) -> None:
        """Answer everyone who waits for something of this leadership: it is over."""
        self.transfer.end()
        self._replica.read_index.fail()
        self._replica.changes.fail()

    def can_wait(self, peer: str, message: Answer) -> bool:
        """Return whether an answer can wait for the turn of the next heartbeat.

        A follower's answer can wait if it commits nothing new and nobody waits for anything else
        that it proves. Half of all answers do, and those to heartbeats. A follower that lacks
        entries gets the next ones after its answer, so its answers never wait.
        """
        replica, engine = self._replica, self._replica.engine
        return (
            message.success
            and engine.leads
            and message.term == engine.term
            and (message.next - 1 <= engine.commit_index or not replica.rules.commit_at_once)
            and not (message.awaited and self.announcer.due < _NEVER)
            and peer in replica.voters.peers
            and engine.next_index(peer) > replica.journal.last
            # Nothing is under way that an answer could decide.
            and not replica.read_index.open
            and not replica.changes.under_way
            and not (replica.divergence.differs and replica.divergence.open)
            and not replica.voters.learners
            and self.transfer.peer is None
            and not replica.voters.prefers_another
        )

    def out_of_reach(self, peer: str) -> bool:
        """Return whether a peer said lately that it needs a snapshot before it can go on."""
        # The peer repeats it in its answer to every heartbeat, so an old report is void.
        lately = self._replica.now() - self._replica.election_s
        return self._replica.followers.out_of_reach(peer, since=lately)

    def acknowledges(self, peer: str) -> bool | None:
        """Return whether a peer acknowledges entries at present; None while that is unknown.

        One that needs a snapshot does not, nor one that is silent because its replica is out.
        A leadership begins as if every peer had just answered: only what a peer has acknowledged
        since then proves that it does.
        """
        replica, engine = self._replica, self._replica.engine
        if not engine.leads:
            return None
        lately = replica.now() - replica.election_s
        if self.out_of_reach(peer) or not engine.answered_since(peer, lately):
            return False
        return True if engine.match_index(peer) > 0 else None

    # Proposals.

    def propose(self) -> None:
        """Append the membership that is wanted, and the source's entries while there is room.

        Only in the turn's tick, where it is certain that this node leads.
        """
        replica, journal, term = self._replica, self._replica.journal, self._replica.engine.term
        if (membership := replica.changes.wanted) is not None:
            replica.changes.proposed(journal.last + 1)
            journal.add(MEMBERS + codec.encode(membership), journal.last + 1, term)
        divergence = replica.divergence
        if (
            self._term != term
            or self.transfer.peer is not None
            or (divergence.differs and divergence.open)
        ):
            return
        in_flight_max = replica.settings.entries_in_flight_max
        while journal.last - replica.applier.index < in_flight_max:
            payload = replica.ports.source.take()
            if payload is None:
                return
            assert len(payload) <= replica.settings.entry_bytes_max
            journal.add(PAYLOAD + payload, journal.last + 1, term)

    # Members.

    def may_change(self) -> bool:
        """Return whether a change of membership may begin now."""
        if not self.ready or self.transfer.peer is not None:
            return False
        replica = self._replica
        open_change = replica.changes.under_way or replica.voters.index > replica.applier.index
        return not (open_change and replica.rules.one_change_at_a_time)

    def _promote(self) -> None:
        """Promote a learner that has caught up to a voter."""
        replica, engine, voters = self._replica, self._replica.engine, self._replica.voters
        if not self.may_change():
            return
        # Under load a learner is always a few entries behind.
        wanted = engine.commit_index - 2 * replica.settings.entries_in_flight_max
        since = replica.now() - replica.election_s
        for peer in voters.learners:
            caught_up = engine.match_index(peer) >= max(wanted, 1)
            connected = peer in replica.links.connected
            if connected and caught_up and engine.answered_since(peer, since):
                replica.changes.begin(voters.with_voter(peer), lambda _done: None)
                self._again()
                return


class LogTrimmer:
    """Removes the entries that nobody needs from a leader's log.

    An entry that the stored state lacks is never trimmed. Within its bounds the log keeps every
    entry that a member lacks; beyond them a member that lacks trimmed entries gets a snapshot.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._held_until = float("-inf")

    def hold(self) -> None:
        """Keep more of the log for a minute: a snapshot is on its way to a peer."""
        if self._replica.rules.hold_for_snapshots:
            self._held_until = self._replica.now() + _HOLD_S

    @property
    def done(self) -> bool:
        """Return whether no more will be trimmed while nothing is appended."""
        replica, journal, settings = self._replica, self._replica.journal, self._replica.settings
        kept = min(settings.log_entries_max, settings.keep_entries)
        return replica.now() >= self._held_until and (
            replica.machine.stored_index == journal.last
            or (journal.last < journal.first + kept and journal.log_bytes <= settings.log_bytes_max)
        )

    def trim(self) -> None:
        """Trim what every member holds, but for a reserve that slow readers of the log may need.

        A log beyond its bounds is trimmed regardless; a member that lacks the trimmed entries gets
        a snapshot.
        """
        replica, journal, settings = self._replica, self._replica.journal, self._replica.settings
        entries_max, bytes_max = settings.log_entries_max, settings.log_bytes_max
        if replica.now() < self._held_until:
            entries_max, bytes_max = entries_max * _HELD_LOGS_MAX, bytes_max * _HELD_LOGS_MAX
        entries = journal.last + 1 - journal.first
        exceeds = journal.log_bytes > bytes_max or entries > entries_max
        if not exceeds and entries <= settings.keep_entries:
            replica.floor = journal.first
            return
        # The last entry that a restart would find in the state without the log.
        stored = replica.machine.stored_index
        matched = replica.engine.least_match
        floor = stored if matched is None else matched
        if exceeds:
            # Trimmed down to half the bounds, so that not every entry causes a trim.
            within = journal.first_within(bytes_max // 2, entries_max // 2, upto=stored)
            floor = max(floor, within)
        else:
            floor -= settings.keep_entries
        floor = min(floor, stored)
        journal.trim(floor)
        # Followers may forget what is trimmed here; they learn it with a later message.
        replica.floor = max(floor, journal.first)
