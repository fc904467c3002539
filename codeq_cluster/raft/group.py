"""Group: one shard's replica of the Raft log, driven in turns.

A turn delivers the messages that came in, lets the library do what is due, and hands the journal's
changes to one flush.
Until that flush is on disk, no message that promises it leaves and no other turn begins. Between
turns the group sleeps until a message, a wake-up or its next deadline.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from random import Random

from codeq_cluster.codec import levels
from codeq_cluster.codec.membership import Membership, data_of
from codeq_cluster.errors import ReleaseTooOld, StorageFailed
from codeq_cluster.raft import library, state_exchange
from codeq_cluster.raft.append_sender import AppendSender
from codeq_cluster.raft.applier import Applier
from codeq_cluster.raft.changes import Changes
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.elections import Campaign, Elections
from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.following import Following
from codeq_cluster.raft.guard import Guard
from codeq_cluster.raft.inbox import Inbox
from codeq_cluster.raft.journal import TRIM_ENTRIES, Journal, Rows
from codeq_cluster.raft.leader import Leader
from codeq_cluster.raft.links import Links
from codeq_cluster.raft.messages import TimeoutNow
from codeq_cluster.raft.outbox import Outbox
from codeq_cluster.raft.ports import EntrySource, Link, LogStore, LogWriter, StateMachine, Timers
from codeq_cluster.raft.pre_votes import PreVotes
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Context, Replica
from codeq_cluster.raft.role import Role
from codeq_cluster.raft.roster import Roster, check_level
from codeq_cluster.raft.safe_syncobj import Host, SafeSyncObj
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.raft.schedule import Schedule
from codeq_cluster.raft.state_digests import Digests
from codeq_cluster.raft.status import GroupStatus, PeerStatus
from codeq_cluster.raft.voters import Voters
from codeq_cluster.settings import RaftSettings

_log = logging.getLogger(__name__)

# A bound on one turn: a group that catches up must not block the loop for others.
_MESSAGES_A_TURN = 256
# Batches that may wait for a slow flush, over all peers.
_INBOX_BATCHES = 8


class RaftGroup:
    """One member of one shard's group.

    Single-threaded: every method is called on the loop, and every port calls back on it.
    """

    def __init__(
        self,
        *,
        shard: int,
        node_id: str,
        founding: Membership,
        incarnation: int,
        store: LogStore,
        machine: StateMachine,
        source: EntrySource,
        link: Link,
        timers: Timers,
        writer: LogWriter,
        random: Random,
        settings: RaftSettings,
        on_fatal: Callable[[BaseException], None],
        on_behind: Callable[[], None] = lambda: None,
        on_diverged: Callable[[int], None] = lambda _index: None,
        on_storage_failed: Callable[[BaseException], None] | None = None,
        on_members: Callable[[], None] = lambda: None,
        level: int = levels.LEVEL,
        rules: SafetySwitches = ALL_RULES,
    ) -> None:
        """Wire the group; nothing happens before `start`.

        Args:
            shard: Number of the shard, for logs and status.
            node_id: This node.
            founding: The members for as long as the log names none; empty for a node that waits
                for `found` or to be added by a leader.
            incarnation: Grows durably with each start on the same data; 1 to 2^64 - 1.
            store: Where the journal lives.
            machine: Applies the committed entries.
            source: Where entries come from while this node leads.
            link: To the peers.
            timers: Time and the loop.
            writer: Makes the journal's rows durable.
            random: For election timeouts.
            settings: Times and sizes.
            on_fatal: Called once when the replica must stop; no turn follows.
            on_behind: Called repeatedly while the leader no longer has the entries this node
                needs.
            on_diverged: Called repeatedly, with the first entry at which this replica's state
                differs from the majority's, until a snapshot has replaced the state.
            on_storage_failed: Called when the disk refused and the group has paused itself.
                `resume` may follow, on a store that was reopened. Without it, a failed disk is
                fatal.
            on_members: Called when `membership` has changed.
            level: The newest format version this node knows; it does not serve a group that
                uses a newer one.
            rules: Production keeps the default; tests show what a rule prevents.
        """
        self._shard = shard
        self._node_id = node_id
        self._founding = founding
        self._store = store
        self._machine = machine
        self._source = source
        self._timers = timers
        self._writer = writer
        self._settings = settings
        self._on_fatal = on_fatal
        self._on_behind = on_behind
        self._on_diverged = on_diverged
        self._on_storage_failed = on_storage_failed
        self._on_members = on_members
        self._level = level
        self._rules = rules
        self._context = Context(
            shard=shard,
            node_id=node_id,
            incarnation=incarnation,
            settings=settings,
            rules=rules,
            counters=Counter(),
            now=timers.now,
        )
        self._inbox = Inbox(
            bytes_max=_INBOX_BATCHES * settings.append_bytes_max,
            counters=self._context.counters,
            fresh_only=rules.fresh_only,
        )
        self._outbox = Outbox(
            link=link,
            incarnation=incarnation,
            counters=self._context.counters,
            hold_promises=rules.hold_promises,
        )
        self._journal = self._new_journal()
        self._links = Links()
        self._voters = Voters(node_id=node_id, shard=shard, own_data=data_of(incarnation))
        self._elections = Elections(
            node_id=node_id,
            voters=self._voters,
            election_ms=settings.election_ms,
            random=random,
        )
        self._read_index = ReadIndex(self._voters)
        self._changes = Changes(self._voters, node_id=node_id, rules=rules)
        self._role = Role(
            shard=shard, source=source, elections=self._elections, on_end=self._end_leadership
        )
        self._schedule = Schedule(
            timers, turn_s=settings.turn_ms / 1000, turn=self._turn, due=self._due
        )
        self._to_found: Membership | None = None
        self._paused = False
        self._idle: Callable[[BaseException | None], None] | None = None
        self._replica: Replica
        self._engine: SafeSyncObj
        self._applier: Applier
        self._guard: Guard
        self._leader: Leader
        self._roster: Roster
        self._pre_votes: PreVotes
        self._campaign: Campaign
        self._following: Following

    def start(self) -> None:
        """Load and check the journal, start the timers; no leader is known yet.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
            ReleaseTooOld: The group uses formats that this node does not know.
            SafetyViolated: The library is not the one this release holds.
        """
        library.verify()
        library.use_clock(self._timers.now)
        self._journal.load(
            applied=self._machine.applied_index,
            committed=self._machine.seen_index,
            founding=self._founding if self._founding.members else None,
        )
        check_level(self._journal.memberships.newest[1], shard=self._shard, known=self._level)
        self._voters.adopt(*self._journal.memberships.newest)
        self._make_parts()
        self._role.begin(self._engine.term())
        self._schedule.start()
        self._paused = False
        self._elections.start(self._timers.now())
        self._on_members()
        self._schedule.want()

    def _make_parts(self) -> None:
        """Make the parts that begin with the log as it has been loaded."""
        context, journal = self._context, self._journal
        divergence, digests = Divergence(self._voters, shard=self._shard), Digests()
        self._applier = Applier(
            shard=self._shard,
            journal=journal,
            machine=self._machine,
            digests=digests,
            divergence=divergence,
            rules=self._rules,
        )
        self._engine = SafeSyncObj(
            node_id=self._node_id,
            voters=self._voters,
            journal=journal,
            applied=self._applier.index,
            settings=self._settings,
            now=self._timers.now,
        )
        for peer in self._links.connected:
            self._engine.connect(peer)
        replica = self._replica = Replica(
            context=context,
            voters=self._voters,
            links=self._links,
            outbox=self._outbox,
            journal=journal,
            engine=self._engine,
            machine=self._machine,
            applier=self._applier,
            divergence=divergence,
        )
        self._campaign, self._following, followers = Campaign(), Following(), Followers()
        self._guard = Guard(
            replica,
            elections=self._elections,
            campaign=self._campaign,
            read_index=self._read_index,
            digests=digests,
            followers=followers,
            following=self._following,
        )
        self._leader = Leader(
            replica,
            source=self._source,
            read_index=self._read_index,
            changes=self._changes,
            followers=followers,
            following=self._following,
            again=self._schedule.want_another,
        )
        self._roster = Roster(
            replica,
            level=self._level,
            read_index=self._read_index,
            elections=self._elections,
            on_members=self._on_members,
        )
        self._pre_votes = PreVotes(
            replica, role=self._role, elections=self._elections, campaign=self._campaign
        )
        appends = AppendSender(
            replica, read_index=self._read_index, followers=followers, following=self._following
        )
        self._engine.attach(
            Host(
                send=self._guard.translate,
                append=appends.send,
                apply=self._applier.apply,
                take=self._leader.take,
                take_members=self._leader.take_members,
            )
        )

    def stop(self) -> None:
        """Stop for good: no callback follows, not even for a flush under way."""
        self._schedule.stop()
        self._idle = None

    @property
    def running(self) -> bool:
        """Return whether the group takes turns: it has been started and is not paused."""
        return self._schedule.running

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

    def _stand_back(self) -> None:
        """Promise nothing any more; a leader asks its best peer to start an election at once."""
        engine = self._engine
        if engine.leads():
            peer = self._leader.transfer.successor()
            if peer is not None:
                self._outbox.send(peer, TimeoutNow(term=engine.term()))
        self.stop()
        self._paused = True
        self._leader.end()
        self._outbox.forget()
        self._source.follow(None)

    def rows_after_snapshot(self, index: int, term: int, members: bytes) -> Rows:
        """Return the log's rows that belong beside a snapshot's state; the group must be paused.

        Args:
            index: Of the last entry in the snapshot's state.
            term: Of that entry.
            members: The row with the membership at that entry.
        """
        assert not self._schedule.running, "the log may change"
        return state_exchange.rows_beside(self._replica, self._store, index, term, members)

    def resume(self) -> None:
        """Continue with the content of the store, as after a start.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
        """
        self._journal = self._new_journal()
        self.start()

    def wants_snapshot(self, index: int, term: int) -> bool:
        """Return whether a snapshot of that entry takes this replica forward.

        A replica with a diverged state takes any snapshot that its log continues.
        """
        return state_exchange.wants(self._replica, index, term)

    @property
    def lends(self) -> bool:
        """Return whether this replica may serve snapshots to others."""
        return self._schedule.running and self._engine.leads() and not self._replica.divergence.open

    @property
    def wanted_from(self) -> int:
        """Return the lowest entry a useful snapshot may end with: this log has what follows it."""
        return state_exchange.wanted_from(self._replica)

    def hold(self) -> None:
        """Keep more of the log for a minute: a snapshot is on its way to a peer."""
        self._leader.trimmer.hold()

    def wake(self) -> None:
        """Note that the source has something; the next turn takes it.

        While the source has to wait, this schedules no turn: the one that ends the wait is due
        anyway.
        """
        schedule = self._schedule
        if schedule.running and self._leader.is_full():
            schedule.queued = True
        else:
            schedule.want()

    def receive(self, peer: str, message: bytes) -> None:
        """Queue a packed message of a peer; a malformed, late or excess message is dropped."""
        if not self._schedule.running:
            return
        heard = self._inbox.put(peer, message)
        if heard is not None and not self._leader.can_wait(peer, heard):
            self._schedule.want()

    def peer_up(self, peer: str) -> None:
        """Note that the link to the peer works."""
        self._links.up(peer)
        self._elections.link_up(peer, self._timers.now())
        if self._schedule.running:
            self._engine.connect(peer)
            if self._engine.leads():
                # Messages under way may be lost; the follower's next answer says where to continue.
                self._engine.heartbeat_now()
                self._schedule.want()

    def peer_down(self, peer: str, *, refused: bool) -> None:
        """Note that the link to the peer broke.

        Args:
            peer: The other end.
            refused: Dialling again was refused: its process is gone.
        """
        self._links.down(peer, refused=refused)
        self._elections.link_down(peer, refused=refused, now=self._timers.now())
        if self._schedule.running:
            self._engine.disconnect(peer)
            self._schedule.want()

    def barrier(self, done: Callable[[bool], None]) -> None:
        """Ask for a read index: proof that a read now misses nothing acknowledged before the call.

        Args:
            done: Called once, in a turn. True when a majority confirmed this leader after the call
                and everything committed at the call is applied; False when this node does not lead.
        """
        if self._paused:
            done(False)
            return
        self._read_index.ask(done)
        self._schedule.want()

    def transfer(self, peer: str | None) -> bool:
        """Begin a leadership transfer; False when this node does not lead or cannot ask the peer.

        True promises an attempt; half a second later this node leads again or another does.

        Args:
            peer: The next leader, if it could lead within moments. None chooses the connected voter
                that holds most of the log, however far behind it is.
        """
        leads = self._schedule.running and self._engine.leads()
        if not leads or not self._leader.transfer.begin(peer):
            return False
        self._schedule.want()
        return True

    @property
    def membership(self) -> Membership:
        """Return the group's members, as far as this node's log says."""
        return self._voters.membership

    @property
    def changing(self) -> bool:
        """Return whether the newest membership is, as far as is known here, still uncommitted."""
        return self._voters.index > self._applier.index

    @property
    def level(self) -> int:
        """Return the newest format version that entries after this log's last one may use.

        A node that has the last entry also has the one that raised the version, so it knows it.
        """
        return self._voters.membership.level

    def found(self, membership: Membership) -> None:
        """Bootstrap the group with these members, unless it has members already."""
        self._to_found = membership
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
        self._changes.check(membership)
        if not self._schedule.running or not self._leader.may_change():
            return False
        self._changes.begin(membership, done)
        self._schedule.want()
        return True

    def out_of_reach(self, peer: str) -> bool:
        """Return whether the peer cannot agree to anything before it gets a snapshot."""
        return self._leader.out_of_reach(peer)

    def status(self) -> GroupStatus:
        """Return the group's present state; `start` must have been called."""
        engine, journal = self._engine, self._journal
        leads = self._schedule.running and engine.leads()
        return GroupStatus(
            shard=self._shard,
            is_leader=leads,
            ready=self._schedule.running and self._leader.ready,
            leader=engine.leader() if self._schedule.running else None,
            term=engine.term(),
            commit_index=engine.commit_index(),
            known_commit=max(engine.commit_index(), self._following.commit),
            applied_index=self._applier.index,
            digest=self._machine.digest.hex(),
            log_bytes=journal.log_bytes,
            log_first=journal.first,
            log_last=journal.last,
            leader_changes=self._role.changes,
            voting=self._voters.voting,
            preferred=self._voters.preferred,
            changing=self.changing,
            peers=tuple(
                PeerStatus(
                    id=peer,
                    voter=self._voters.votes(peer),
                    connected=engine.connected(peer),
                    match_index=engine.match_index(peer),
                )
                for peer in self._voters.peers
            ),
            counters=dict(self._context.counters),
            in_doubt=self._replica.divergence.differing if self._replica.divergence.open else (),
        )

    # The turn.

    def _turn(self) -> None:
        try:
            self._take_turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, this replica must not go on
            self._fail(error)

    def _take_turn(self) -> None:
        now, engine, journal = self._timers.now, self._engine, self._journal
        library.use_clock(now)
        if self._to_found is not None:
            self._bootstrap(self._to_found)
        for _ in range(min(len(self._inbox), _MESSAGES_A_TURN)):
            self._guard.handle(*self._inbox.get())
            self._roster.adopt()
        self._report()
        links = self._links
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
            if not self._replica.divergence.open:
                journal.trim(min(self._following.floor, self._machine.stored_index))
        if journal.trimmed:
            forgotten = journal.forget()
            self._writer.forget(forgotten.delete_ranges, forgotten.puts)
        if journal.promising:
            self._flush()
        else:
            self._outbox.release()
            self._next_turn()

    def _bootstrap(self, membership: Membership) -> None:
        self._to_found = None
        if self._roster.bootstrap(membership):
            self._founding = membership

    def _report(self) -> None:
        """Call who can bring this replica a snapshot, if its leader says that it needs one."""
        if self._following.behind:
            self._following.behind = False
            self._on_behind()
        if self._replica.divergence.wrong_at:
            self._on_diverged(self._replica.divergence.wrong_at)

    def _tick(self) -> None:
        engine, campaign, now = self._engine, self._campaign, self._timers.now()
        if not engine.leads() and now >= self._elections.deadline:
            self._pre_votes.ask(now)
        stand = campaign.wanted and not engine.leads()
        self._leader.begin_round()
        engine.tick(stand=stand)
        if stand:
            self._elections.stood(now)
        campaign.wanted = campaign.transferred = False

    def _end_leadership(self) -> None:
        self._leader.end()

    def _new_journal(self) -> Journal:
        return Journal(
            self._store,
            cache_bytes_max=self._settings.cache_bytes_max,
            keep_committed=self._rules.keep_committed,
            # A log with a small bound would exceed it by more than the bound itself.
            trim_entries=min(TRIM_ENTRIES, max(1, self._settings.log_entries_max // 4)),
        )

    # Disk and time.

    def _flush(self) -> None:
        flush = self._journal.flush()
        self._schedule.flushing = True
        self._writer.write(flush.puts, flush.delete_ranges, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        self._schedule.flushing = False
        if not self._schedule.running:
            idle, self._idle = self._idle, None
            if idle is not None:
                idle(error)
            return
        if error is not None:
            # Never retried: the content of the disk is unknown until it is read from scratch.
            self._fail(error)
            return
        try:
            self._journal.flushed()
            self._outbox.release()
            self._next_turn()
        except Exception as failure:  # noqa: BLE001 - whatever it is, this replica must not go on
            self._fail(failure)

    def _next_turn(self) -> None:
        """Take another turn at once when there is work; otherwise sleep until something is due."""
        engine, journal, schedule = self._engine, self._journal, self._schedule
        committed = min(engine.commit_index(), journal.flushed_last)
        alone = self._voters.voters == (self._node_id,) and engine.leads()
        alone = alone and engine.commit_index() < journal.last
        if schedule.wanted or len(self._inbox) or self._applier.index < committed or alone:
            schedule.want()
        schedule.arm()

    def _due(self) -> float:
        if self._engine.leads():
            return self._leader.due
        return self._elections.deadline

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, StorageFailed) and self._on_storage_failed is not None:
            _log.error("storage failed", extra={"shard": self._shard, "error": str(error)})
            self._stand_back()
            self._on_storage_failed(error)
            return
        # The text of this error says it all, so a traceback would only hide it.
        trace = None if isinstance(error, ReleaseTooOld) else error
        _log.critical(
            "replica stops", extra={"shard": self._shard, "reason": str(error)}, exc_info=trace
        )
        self.stop()
        self._leader.end()
        self._on_fatal(error)
