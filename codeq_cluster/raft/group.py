"""Group: one shard's replica of the Raft log, as the node around it uses it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from codeq_cluster.codec.membership import Membership
from codeq_cluster.errors import ReleaseTooOld, StorageFailed
from codeq_cluster.forwarded import forwarded
from codeq_cluster.raft import library
from codeq_cluster.raft.journal_rows import Rows, rows_after_snapshot, rows_from
from codeq_cluster.raft.leader import Leader
from codeq_cluster.raft.messages import PAYLOAD, Answer, TimeoutNow
from codeq_cluster.raft.ports import Events, Ports
from codeq_cluster.raft.replica import Replica, ReplicaId
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.raft.schedule import Schedule
from codeq_cluster.raft.status import GroupStatus, describe
from codeq_cluster.raft.turn import Turn
from codeq_cluster.settings import RaftSettings

_log = logging.getLogger(__name__)


class RaftGroup:
    """One member of one shard's group.

    Single-threaded: every method is called on the loop, and every port calls back on it. It takes
    turns between `start` and `stop`, but not between `pause` and `resume`: then its store may be
    exchanged, and every part that knows the log's content is made again.

    Attributes:
        running: The group takes turns: it has been started and is not paused.
        membership: The group's members, as far as this node's log says.
        peers: The other members.
        level: The newest format version that entries after this log's last one may use. A node that
            has the last entry also has the one that raised the version, so it knows it.
    """

    running: bool = forwarded("_schedule.running")
    membership: Membership = forwarded("_replica.voters.membership")
    peers: tuple[str, ...] = forwarded("_replica.voters.peers")
    level: int = forwarded("_replica.voters.membership.level")

    def __init__(
        self,
        identity: ReplicaId,
        *,
        bootstrap: Membership,
        ports: Ports,
        events: Events,
        settings: RaftSettings,
        rules: SafetySwitches = ALL_RULES,
    ) -> None:
        """Wire the group; nothing happens before `start`.

        Args:
            bootstrap: The members for as long as the log names none; empty for a node that waits
                for `bootstrap` or to be added by a leader.
            rules: Production keeps the default; tests show what a rule prevents.
        """
        self._schedule = Schedule(
            ports.timers, turn_s=settings.turn_ms / 1000, due=self._due, failed=self._fail
        )
        self._replica = Replica(
            identity,
            initial_members=bootstrap,
            ports=ports,
            events=events,
            settings=settings,
            rules=rules,
            schedule=self._schedule,
        )
        self._paused = False
        self._idle: Callable[[BaseException | None], None] | None = None
        self._leader: Leader

    # Life.

    def start(self) -> None:
        """Load and check the journal, start the timers; no leader is known yet.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
            ReleaseTooOld: The group uses formats that this node does not know.
            SafetyViolated: The library is not the one this release holds.
        """
        replica = self._replica
        library.verify()
        library.use_clock(replica.now)
        replica.load()
        turn = Turn(replica, on_failed=self._fail, on_idle=self._flush_ended)
        self._leader = turn.leader
        self._schedule.start(turn.take)
        self._paused = False
        replica.elections.start(replica.now())
        replica.events.on_members()
        self._schedule.want()

    def stop(self) -> None:
        """Stop for good: no callback follows, not even for a flush under way."""
        self._schedule.stop()
        self._idle = None

    def pause(self, idle: Callable[[BaseException | None], None]) -> None:
        """Take no more turns, so that the store can be exchanged under the group.

        `resume` follows.

        Args:
            idle: Called on the loop once no flush is under way, perhaps at once. It gets the error
                of that flush, or None. After an error the content of the disk is unknown.
        """
        if self._schedule.running:
            self._stand_back()
        if self._schedule.flushing:
            assert self._idle is None, "a group is paused once"
            self._idle = idle
        else:
            idle(None)

    def resume(self) -> None:
        """Continue with the content of the store, as after a start.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
        """
        self.start()

    def _stand_back(self) -> None:
        """Promise nothing any more; a leader asks its best peer to start an election at once."""
        replica = self._replica
        engine, outbox = replica.engine, replica.outbox
        if engine.leads:
            peer = self._leader.transfer.successor()
            if peer is not None:
                outbox.send(peer, TimeoutNow(term=engine.term))
        self.stop()
        self._paused = True
        self._leader.end()
        outbox.forget()
        replica.ports.source.follow(None)

    # Snapshots.

    def rows_after_snapshot(self, index: int, term: int, members: bytes) -> Rows:
        """Return the log's rows that belong beside a snapshot's state; the group must be paused.

        Term and vote stay; so does the log after the snapshot, if it is the snapshot's own.

        Args:
            index: Of the last entry in the snapshot's state.
            members: The row with the membership at that entry.
        """
        replica = self._replica
        assert not self._schedule.running, "the log may change"
        journal, rules = replica.journal, replica.rules
        vote: tuple[int, str | None] = (journal.term, journal.voted_for)
        if term > journal.term or not rules.keep_the_vote:
            # The snapshot's leader was elected in a newer term, in which this node has not voted.
            vote = (term, None)
        keep = rules.keep_the_suffix and journal.term_at(index) == term
        return rows_after_snapshot(
            index,
            term,
            vote_term=vote[0],
            voted_for=vote[1],
            kept=rows_from(replica.ports.store, index) if keep else (),
            members=members,
        )

    def wants_snapshot(self, index: int, term: int) -> bool:
        """Return whether a snapshot of that entry takes this replica forward.

        A replica with a diverged state takes any snapshot that its log continues.
        """
        replica, journal = self._replica, self._replica.journal
        if replica.divergence.wrong_at:
            return index >= journal.first
        if replica.rules.newer_snapshots_only and index <= journal.commit:
            return False
        return journal.term_at(index) != term

    @property
    def wanted_from(self) -> int:
        """Return the lowest entry a useful snapshot may end with: this log has what follows it."""
        replica = self._replica
        return replica.journal.first if replica.divergence.wrong_at else 0

    @property
    def serves_snapshots(self) -> bool:
        """Return whether this replica may serve snapshots to others."""
        replica = self._replica
        return self._schedule.running and replica.engine.leads and not replica.divergence.open

    def hold(self) -> None:
        """Keep more of the log for a minute: a snapshot is on its way to a peer."""
        self._leader.trimmer.hold()

    # Reading.

    @property
    def oldest_index(self) -> int:
        """Return the index of the oldest entry whose content is certainly this log's own.

        The first one kept may stand for a snapshot.
        """
        return self._replica.journal.first + 1

    def entries(
        self, start: int, *, upto: int, bytes_max: int
    ) -> list[tuple[int, int, bytes | None]]:
        """Return entries as `broker.ports.Log` says; none while the group is paused."""
        if not self._schedule.running or not self.oldest_index <= start <= upto:
            return []
        found = self._replica.journal.read(start, count=upto - start + 1, bytes_max=bytes_max)
        return [
            (index, term, command[1:] if command[:1] == PAYLOAD else None)
            for command, index, term in found
        ]

    # Work.

    def wake(self) -> None:
        """Note that the source has something; the next turn takes it.

        While the source has to wait, this schedules no turn: the one that ends the wait is due
        anyway.
        """
        schedule, replica = self._schedule, self._replica
        if schedule.running and (
            replica.journal.last - replica.applier.index >= replica.settings.entries_in_flight_max
        ):
            schedule.queued = True
        else:
            schedule.want()

    def receive(self, peer: str, message: bytes) -> None:
        """Queue a packed message of a peer; a malformed, late or excess message is dropped."""
        if not self._schedule.running:
            return
        heard = self._replica.inbox.put(peer, message)
        if heard is None or (isinstance(heard, Answer) and self._leader.can_wait(peer, heard)):
            return
        self._schedule.want()

    def peer_up(self, peer: str) -> None:
        """Note that the link to the peer works."""
        replica = self._replica
        replica.links.up(peer)
        replica.elections.link_up(peer, replica.now())
        if self._schedule.running:
            replica.engine.connect(peer)
            if replica.engine.leads:
                # Messages under way may be lost; the follower's next answer says where to continue.
                replica.engine.heartbeat_now()
                self._schedule.want()

    def peer_down(self, peer: str, *, refused: bool) -> None:
        """Note that the link to the peer broke.

        Args:
            refused: Dialling again was refused: its process is gone.
        """
        replica = self._replica
        replica.links.down(peer, refused=refused)
        replica.elections.link_down(peer, refused=refused, now=replica.now())
        if self._schedule.running:
            replica.engine.disconnect(peer)
            self._schedule.want()

    def barrier(self, done: Callable[[bool], None]) -> None:
        """Ask for a read index, as `broker.ports.Log` says; `done` is called once, in a turn."""
        if self._paused:
            done(False)
            return
        self._replica.read_index.ask(done)
        self._schedule.want()

    def transfer(self, peer: str | None) -> bool:
        """Begin a leadership transfer; False when this node does not lead or cannot ask the peer.

        True promises an attempt; half a second later this node leads again or another does.

        Args:
            peer: The next leader, if it could lead within moments. None chooses the connected voter
                that holds most of the log, however far behind it is.
        """
        leads = self._schedule.running and self._replica.engine.leads
        if not leads or not self._leader.transfer.begin(peer):
            return False
        self._schedule.want()
        return True

    # At rest, for `Rest`.

    @property
    def rests_in(self) -> int | None:
        """Return the term in which this node leads the group at rest; None when it does not."""
        engine = self._replica.engine
        return engine.term if self._schedule.running and engine.rests else None

    def answered(self, peer: str, incarnation: int) -> None:
        """Note that a peer has answered the beat for this group, which rests."""
        replica = self._replica
        if peer in replica.voters.peers and replica.voters.knows(peer, incarnation):
            replica.engine.alive(peer)

    def rest_under(self, leader: str, term: int) -> bool:
        """Follow a leader's beats instead of its heartbeats.

        False if it is not leader here, or a heartbeat has work for this replica.
        """
        replica, engine, divergence = self._replica, self._replica.engine, self._replica.divergence
        if (
            not self._schedule.running
            or (leader, term) != (engine.leader, engine.term)
            or replica.behind
            or replica.trim_waits
            or divergence.wrong_at
            or (divergence.differs and leader in divergence.differing)
        ):
            return False
        replica.elections.rest(leader, replica.now())
        return True

    def rouse(self) -> None:
        """Go on without beats: a leader sends a heartbeat at once, a follower expects them."""
        schedule, replica = self._schedule, self._replica
        if schedule.running and replica.engine.leads:
            self._leader.rouse()
            replica.engine.heartbeat_now()
            schedule.want()
        elif schedule.running:
            replica.elections.rouse()
            schedule.arm(replica.elections.deadline)

    # Members.

    def acknowledges(self, peer: str) -> bool | None:
        """Return whether another member acknowledges entries at present; None while unknown."""
        return self._leader.acknowledges(peer)

    @property
    def changing(self) -> bool:
        """Return whether the newest membership is, as far as is known here, still uncommitted."""
        replica = self._replica
        return replica.voters.index > replica.applier.index

    def bootstrap(self, membership: Membership) -> None:
        """Bootstrap the group with these members, unless it has members already."""
        self._replica.wanted_members = membership
        self._schedule.want()

    def change(self, membership: Membership, done: Callable[[bool], None]) -> bool:
        """Propose another membership; False, and no effect, when that is impossible now.

        Only a leader whose term has committed an entry can change the membership, one change at a
        time.

        Args:
            membership: At most one voter more or less than now; this node stays a voter.
            done: Called once: True when the change is committed, False when its outcome is unknown.

        Raises:
            ValueError: The membership differs in more than that.
        """
        changes = self._replica.changes
        changes.check(membership)
        if not self._schedule.running or not self._leader.may_change():
            return False
        changes.begin(membership, done)
        self._schedule.want()
        return True

    def status(self) -> GroupStatus:
        """Return the group's present state; `start` must have been called."""
        return describe(self._replica, running=self._schedule.running, ready=self._leader.ready)

    # Turns, and how they end.

    def _due(self) -> float:
        replica = self._replica
        if replica.engine.leads:
            return self._leader.due
        return replica.elections.deadline

    def _flush_ended(self, error: BaseException | None) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle(error)

    def _fail(self, error: BaseException) -> None:
        replica = self._replica
        shard, on_storage_failed = replica.shard, replica.events.on_storage_failed
        if isinstance(error, StorageFailed) and on_storage_failed is not None:
            _log.error("storage failed", extra={"shard": shard, "error": str(error)})
            self._stand_back()
            on_storage_failed(error)
            return
        # The text of this error says it all, so a traceback would only hide it.
        trace = None if isinstance(error, ReleaseTooOld) else error
        _log.critical("replica stops", extra={"shard": shard, "reason": str(error)}, exc_info=trace)
        self.stop()
        self._leader.end()
        replica.events.on_fatal(error)
