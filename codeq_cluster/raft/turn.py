"""Turn: one round of a group's work, from the messages that came in to the flush."""

from __future__ import annotations

from collections.abc import Callable

from codeq_cluster.raft import library
from codeq_cluster.raft.parts import LastingParts, StartedParts

# A bound on one turn: a group that catches up must not block the loop for others.
_MESSAGES_A_TURN = 256


class Turn:
    """The turns of one start of a replica.

    A turn ends with one flush of the journal's changes, or without any. Until a flush is on disk,
    no message that promises it leaves and no other turn begins. An error of any kind ends the
    replica: it must not go on from the middle of a turn.

    Args:
        lasting: The parts that outlive the start.
        started: The parts that began with it.
        on_failed: Called with the error of a turn or a flush; no turn follows.
        on_idle: Called with the error of a flush, or None, when the group was paused meanwhile.
    """

    def __init__(
        self,
        lasting: LastingParts,
        started: StartedParts,
        *,
        on_failed: Callable[[BaseException], None],
        on_idle: Callable[[BaseException | None], None],
    ) -> None:
        replica = started.replica
        self._now = replica.context.now
        self._node_id = replica.context.node_id
        self._writer = lasting.ports.writer
        self._events = lasting.events
        self._initial_members = lasting.initial_members
        self._inbox = lasting.inbox
        self._elections = lasting.elections
        self._read_index = lasting.read_index
        self._changes = lasting.changes
        self._role = lasting.role
        self._schedule = lasting.schedule
        self._voters = replica.voters
        self._links = replica.links
        self._outbox = replica.outbox
        self._journal = replica.journal
        self._engine = replica.engine
        self._machine = replica.machine
        self._applier = replica.applier
        self._divergence = replica.divergence
        self._guard = started.guard
        self._leader = started.leader
        self._roster = started.roster
        self._pre_votes = started.pre_votes
        self._campaign = started.campaign
        self._following = started.following
        self._on_failed = on_failed
        self._on_idle = on_idle

    def take(self) -> None:
        """Take one turn."""
        now, engine, journal, links = self._now, self._engine, self._journal, self._links
        library.use_clock(now)
        if self._initial_members.wanted is not None:
            self._roster.bootstrap()
        for _ in range(min(len(self._inbox), _MESSAGES_A_TURN)):
            self._guard.handle(*self._inbox.get())
            self._roster.adopt()
        self._report()
        if links.refused and engine.leads() and not links.leave_a_majority(self._voters):
            engine.step_down()
        self._leader.doubted.give_up()
        self._role.note(engine, now)
        self._tick()
        self._roster.adopt()
        self._role.note(engine, now)
        self._changes.settle(self._applier.index)
        if engine.leads():
            self._leader.turn()
        else:
            self._read_index.fail()
            if not self._divergence.open:
                journal.trim(min(self._following.floor, self._machine.stored_index))
        if journal.trimmed:
            forgotten = journal.forget()
            self._writer.forget(forgotten.delete_ranges, forgotten.puts)
        if journal.promising:
            flush = journal.flush()
            self._schedule.flushing = True
            self._writer.write(flush.puts, flush.delete_ranges, self._flushed)
        else:
            self._outbox.release()
            self._next()

    def _report(self) -> None:
        """Call who can bring this replica a snapshot, if its leader says that it needs one."""
        if self._following.behind:
            self._following.behind = False
            self._events.on_behind()
        if self._divergence.wrong_at:
            self._events.on_diverged(self._divergence.wrong_at)

    def _tick(self) -> None:
        engine, campaign, now = self._engine, self._campaign, self._now()
        if not engine.leads() and now >= self._elections.deadline:
            self._pre_votes.ask(now)
        starts = campaign.wanted and not engine.leads()
        self._leader.begin_round()
        engine.tick(campaign=starts)
        if starts:
            self._elections.campaigned(now)
        campaign.wanted = campaign.transferred = False

    def _flushed(self, error: BaseException | None) -> None:
        self._schedule.flushing = False
        if not self._schedule.running:
            self._on_idle(error)
        elif error is not None:
            # Never retried: the content of the disk is unknown until it is read from scratch.
            self._on_failed(error)
        else:
            try:
                self._journal.flushed()
                self._outbox.release()
                self._next()
            except Exception as failure:  # noqa: BLE001 - whatever it is, this replica must not go on
                self._on_failed(failure)

    def _next(self) -> None:
        """Take another turn at once when there is work; otherwise sleep until something is due."""
        engine, journal, schedule = self._engine, self._journal, self._schedule
        committed = min(engine.commit_index(), journal.flushed_last)
        alone = self._voters.voters == (self._node_id,) and engine.leads()
        alone = alone and engine.commit_index() < journal.last
        if schedule.wanted or len(self._inbox) or self._applier.index < committed or alone:
            schedule.want()
        schedule.arm()
