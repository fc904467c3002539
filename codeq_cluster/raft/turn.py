"""Turn: one round of a group's work, from the messages that came in to the flush."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.raft.appends import AppendSender
from codeq_cluster.raft.guard import Guard
from codeq_cluster.raft.known_leader import KnownLeader
from codeq_cluster.raft.leader import Leader
from codeq_cluster.raft.replica import Replica

# A bound on one turn: a group that catches up must not block the loop for others.
_MESSAGES_A_TURN = 256
_NEVER = float("inf")


class Turn:
    """The turns of a replica, from one load of its log to the next.

    A turn ends with one flush of the journal's changes, or without any. Until a flush is on disk,
    no message that promises it leaves and no other turn begins. An error of any kind ends the
    replica: it must not go on from the middle of a turn.

    Args:
        replica: It has been loaded.
        on_failed: Called with the error of a turn or a flush; no turn follows.
        on_idle: Called with the error of a flush, or None, when the group was paused meanwhile.

    Attributes:
        leader: The replica's leadership, for the terms in which it leads.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        on_failed: Callable[[BaseException], None],
        on_idle: Callable[[BaseException | None], None],
    ) -> None:
        self._replica = replica
        self._guard = guard = Guard(replica)
        self.leader = Leader(replica)
        self._known_leader = KnownLeader(replica, self.leader)
        self._on_failed = on_failed
        self._on_idle = on_idle
        replica.engine.attach(send=guard.translate, append=AppendSender(replica).send)

    def take(self) -> None:
        """Take one turn."""
        replica, engine, divergence = self._replica, self._replica.engine, self._replica.divergence
        if engine.heartbeat_due == _NEVER:
            self.leader.rouse()
        if replica.wanted_members is not None:
            replica.bootstrap()
        waiting, memberships = replica.inbox.waiting, replica.journal.memberships
        hears = bool(waiting)
        for _ in range(min(len(waiting), _MESSAGES_A_TURN)):
            self._guard.handle(*replica.inbox.get())
            if memberships.newest is not replica.named_members:
                replica.follow_members()
        if (
            replica.behind
            or divergence.wrong_at
            or divergence.differs
            or replica.links.refused
            or self.leader.doubted.deadline < _NEVER
        ):
            self._face_trouble()
        if hears:
            self._known_leader.note()
        self._tick()
        if memberships.newest is not replica.named_members:
            replica.follow_members()
        if engine.leads:
            self.leader.turn()
        else:
            self._follow()
        if replica.journal.promising or replica.journal.trimmed_to is not None:
            self._write()
        else:
            self._next()

    def _face_trouble(self) -> None:
        """Report that this replica needs a snapshot; stop leading without a majority."""
        replica, engine, links = self._replica, self._replica.engine, self._replica.links
        if replica.behind:
            replica.behind = False
            replica.events.on_behind()
        if replica.divergence.wrong_at:
            replica.events.on_diverged(replica.divergence.wrong_at)
        if links.refused and engine.leads and not links.leave_a_majority(replica.voters):
            engine.step_down()
        self.leader.doubted.give_up()
        self._known_leader.note()

    def _tick(self) -> None:
        """Start an election that is due; else commit, apply and propose."""
        replica, engine, campaign = self._replica, self._replica.engine, self._replica.campaign
        now, leads = replica.now(), engine.leads
        if not leads and now >= replica.elections.deadline:
            self._known_leader.seek(now)
        starts = campaign.wanted and not leads
        if replica.read_index.open:
            self.leader.begin_round()
        if starts:
            engine.campaign()
            replica.elections.campaigned(now)
        if engine.leads:
            engine.count(now)
        if engine.commit_index > replica.applier.index:
            replica.applier.apply(engine.commit_index)
        if engine.leads:
            if now >= engine.heartbeat_due and not self.leader.rest():
                engine.heartbeat()
            self.leader.propose()
        campaign.wanted = campaign.transferred = False
        if starts or engine.leads is not leads:
            self._known_leader.note()
        if replica.changes.index is not None:
            replica.changes.settle(replica.applier.index)

    def _follow(self) -> None:
        """Trim what the leader says may go; a read needs a leader."""
        replica = self._replica
        if replica.read_index.open:
            replica.read_index.fail()
        divergence, journal = replica.divergence, replica.journal
        replica.trim_waits = False
        if replica.floor > journal.first and not (divergence.differs and divergence.open):
            stored = replica.machine.stored_index
            journal.trim(min(replica.floor, stored))
            replica.trim_waits = stored < replica.floor

    def _write(self) -> None:
        """Hand over what has to be on disk before promises leave, if anything has."""
        replica, journal, writer = self._replica, self._replica.journal, self._replica.ports.writer
        if journal.trimmed_to is not None:
            forgotten = journal.forget()
            writer.forget(forgotten.delete_ranges, forgotten.puts)
        if journal.promising:
            flush = journal.flush()
            replica.schedule.flushing = True
            writer.write(flush.puts, flush.delete_ranges, self._flushed)
        else:
            self._next()

    def _flushed(self, error: BaseException | None) -> None:
        replica = self._replica
        replica.schedule.flushing = False
        if not replica.schedule.running:
            self._on_idle(error)
        elif error is not None:
            # Never retried: the content of the disk is unknown until it is read from scratch.
            self._on_failed(error)
        else:
            try:
                replica.journal.flushed()
                self._next()
            except Exception as failure:  # noqa: BLE001 - whatever it is, this replica must not go on
                self._on_failed(failure)

    def _next(self) -> None:
        """Send what was promised; take another turn at once when there is work, or sleep."""
        replica, schedule = self._replica, self._replica.schedule
        engine, journal, applied = replica.engine, replica.journal, replica.applier.index
        if replica.outbox.held:
            replica.outbox.release()
        commit = engine.commit_index
        alone = commit < journal.last and engine.leads and len(replica.voters.voters) == 1
        if (
            schedule.wanted
            or replica.inbox.waiting
            or applied < min(commit, journal.flushed_last)
            or (alone and replica.voters.voters == (replica.node_id,))
        ):
            schedule.want()
        else:
            schedule.arm(self.leader.due if engine.leads else replica.elections.deadline)
