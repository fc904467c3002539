"""Group: one shard's replica of the Raft log, driven in turns.

A turn delivers the messages that came in, lets the library do what is due, and hands the journal's
changes to one flush.
Until that flush is on disk, no message that promises it leaves and no other turn begins. Between
turns the group sleeps until a message, a wake-up or its next deadline.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random

from codeq_cluster.codec import levels
from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership, data_of
from codeq_cluster.errors import ReleaseTooOld, SafetyViolated, StorageFailed
from codeq_cluster.raft import library
from codeq_cluster.raft.changes import Changes
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.elections import Campaign, Elections
from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.following import Following
from codeq_cluster.raft.guard import Guard
from codeq_cluster.raft.inbox import Inbox
from codeq_cluster.raft.journal import (
    TRIM_ENTRIES,
    Entry,
    Journal,
    Rows,
    rows_after_snapshot,
    rows_from,
)
from codeq_cluster.raft.leader import Leader
from codeq_cluster.raft.links import Links
from codeq_cluster.raft.messages import PAYLOAD, Append, PreVoteRequest, TimeoutNow
from codeq_cluster.raft.outbox import Outbox
from codeq_cluster.raft.ports import (
    EntrySource,
    Handle,
    Link,
    LogStore,
    LogWriter,
    StateMachine,
    Timers,
)
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Context, Replica
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from codeq_cluster.raft.safety_switches import ALL_RULES, SafetySwitches
from codeq_cluster.raft.state_digests import Digests
from codeq_cluster.raft.status import GroupStatus, PeerStatus
from codeq_cluster.raft.voters import Voters
from codeq_cluster.settings import RaftSettings

_log = logging.getLogger(__name__)

# Bounds on one turn, about 20 ms: a group that catches up must not block the loop for others.
_MESSAGES_A_TURN = 256
_APPLY_ENTRIES_A_TURN = 256
_APPLY_BYTES_A_TURN = 4 * 2**20
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
        self._voters = Voters(node_id=node_id, shard=shard, own_data=data_of(incarnation))
        self._elections = Elections(
            node_id=node_id,
            voters=self._voters,
            election_ms=settings.election_ms,
            random=random,
        )
        self._read_index = ReadIndex(self._voters)
        self._changes = Changes(self._voters, node_id=node_id, rules=rules)
        self._to_found: Membership | None = None
        self._links = Links()
        self._engine: SafeSyncObj
        self._guard: Guard
        self._leader: Leader
        self._digests: Digests
        self._divergence: Divergence
        self._campaign: Campaign
        self._followers: Followers
        self._following: Following
        self._applied = 0
        self._role: tuple[int, bool, str | None] = (0, False, None)
        self._leader_changes = 0
        self._running = self._paused = False
        self._turn_s = settings.turn_ms / 1000
        self._turned_at = float("-inf")
        self._flushing = False
        self._wanted = False
        self._queued = False  # Operations wait for the entry under way.
        self._idle: Callable[[BaseException | None], None] | None = None
        self._soon: Handle | None = None
        self._timer: Handle | None = None
        self._timer_at = float("inf")

    def start(self) -> None:
        """Load and check the journal, start the timers; no leader is known yet.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
            ReleaseTooOld: The group uses formats that this node does not know.
            SafetyViolated: The library is not the one this release holds.
        """
        library.verify()
        library.use_clock(self._timers.now)
        self._applied = self._machine.applied_index
        self._journal.load(
            applied=self._applied,
            committed=self._machine.seen_index,
            founding=self._founding if self._founding.members else None,
        )
        self._check_level(self._journal.memberships.newest[1])
        self._voters.adopt(*self._journal.memberships.newest)
        self._engine = SafeSyncObj(
            node_id=self._node_id,
            voters=self._voters,
            journal=self._journal,
            applied=self._applied,
            settings=self._settings,
            host=self,
            now=self._timers.now,
        )
        for peer in self._links.connected:
            self._engine.connect(peer)
        self._divergence = Divergence(self._voters, shard=self._shard)
        self._digests = Digests()
        self._campaign = Campaign()
        self._followers, self._following = Followers(), Following()
        replica = Replica(
            context=self._context,
            voters=self._voters,
            links=self._links,
            outbox=self._outbox,
            journal=self._journal,
            engine=self._engine,
            machine=self._machine,
            divergence=self._divergence,
        )
        self._guard = Guard(
            replica,
            elections=self._elections,
            campaign=self._campaign,
            read_index=self._read_index,
            digests=self._digests,
            followers=self._followers,
            following=self._following,
        )
        self._leader = Leader(
            replica,
            source=self._source,
            read_index=self._read_index,
            changes=self._changes,
            followers=self._followers,
            following=self._following,
            again=self._schedule_after_this,
        )
        self._digests.applied(self._applied, self._machine.digest)
        self._role = (self._engine.term(), False, None)
        self._running, self._paused = True, False
        self._elections.start(self._timers.now())
        self._source.follow(None)
        self._on_members()
        self._schedule()

    def stop(self) -> None:
        """Stop for good: no callback follows, not even for a flush under way."""
        self._running = False
        self._idle = None
        for handle in (self._soon, self._timer):
            if handle is not None:
                handle.cancel()
        self._soon = self._timer = None

    @property
    def running(self) -> bool:
        """Return whether the group takes turns: it has been started and is not paused."""
        return self._running

    def pause(self, idle: Callable[[BaseException | None], None]) -> None:
        """Take no more turns, so that the store can be exchanged under the group.

        `resume` follows.

        Args:
            idle: Called on the loop once no flush is under way, perhaps at once. It gets the error
                of that flush, or None. After an error the content of the disk is unknown.
        """
        if self._running:
            self._stand_back()
        if self._flushing:
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
        assert not self._running, "the log may change"
        journal = self._journal
        vote: tuple[int, str | None] = (journal.term, journal.voted_for)
        if term > journal.term or not self._rules.keep_the_vote:
            # The snapshot's leader was elected in a newer term, in which this node has not voted
            # yet.
            vote = (term, None)
        keep = self._rules.keep_the_suffix and journal.term_at(index) == term
        return rows_after_snapshot(
            index,
            term,
            vote_term=vote[0],
            voted_for=vote[1],
            kept=rows_from(self._store, index) if keep else (),
            members=members,
        )

    def resume(self) -> None:
        """Continue with the content of the store, as after a start.

        Raises:
            DataDirectoryRefused: Log and state are damaged or do not fit.
        """
        self._journal = self._new_journal()
        self._flushing = self._wanted = False
        self.start()

    def wants_snapshot(self, index: int, term: int) -> bool:
        """Return whether a snapshot of that entry takes this replica forward.

        A replica with a diverged state takes any snapshot that its log continues.
        """
        if self._divergence.wrong_at:
            return index >= self._journal.first
        if self._rules.newer_snapshots_only and index <= self._journal.commit:
            return False
        return self._journal.term_at(index) != term

    @property
    def lends(self) -> bool:
        """Return whether this replica may serve snapshots to others."""
        return self._running and self._engine.leads() and not self._divergence.open

    @property
    def wanted_from(self) -> int:
        """Return the lowest entry a useful snapshot may end with: this log has what follows it."""
        return self._journal.first if self._divergence.wrong_at else 0

    def hold(self) -> None:
        """Keep more of the log for a minute: a snapshot is on its way to a peer."""
        self._leader.trimmer.hold()

    def wake(self) -> None:
        """Note that the source has something; the next turn takes it.

        While the source has to wait, this schedules no turn: the one that ends the wait is due
        anyway.
        """
        if self._running and self._leader.is_full(self._applied):
            self._queued = True
        else:
            self._schedule()

    def receive(self, peer: str, message: bytes) -> None:
        """Queue a packed message of a peer; a malformed, late or excess message is dropped."""
        if not self._running:
            return
        heard = self._inbox.put(peer, message)
        if heard is not None and not self._leader.can_wait(peer, heard):
            self._schedule()

    def peer_up(self, peer: str) -> None:
        """Note that the link to the peer works."""
        self._links.up(peer)
        self._elections.link_up(peer, self._timers.now())
        if self._running:
            self._engine.connect(peer)
            if self._engine.leads():
                # Messages under way may be lost; the follower's next answer says where to continue.
                self._engine.heartbeat_now()
                self._schedule()

    def peer_down(self, peer: str, *, refused: bool) -> None:
        """Note that the link to the peer broke.

        Args:
            peer: The other end.
            refused: Dialling again was refused: its process is gone.
        """
        self._links.down(peer, refused=refused)
        self._elections.link_down(peer, refused=refused, now=self._timers.now())
        if self._running:
            self._engine.disconnect(peer)
            self._schedule()

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
        self._schedule()

    def transfer(self, peer: str | None) -> bool:
        """Begin a leadership transfer; False when this node does not lead or cannot ask the peer.

        True promises an attempt; half a second later this node leads again or another does.

        Args:
            peer: The next leader, if it could lead within moments. None chooses the connected voter
                that holds most of the log, however far behind it is.
        """
        leads = self._running and self._engine.leads()
        if not leads or not self._leader.transfer.begin(peer):
            return False
        self._schedule()
        return True

    @property
    def membership(self) -> Membership:
        """Return the group's members, as far as this node's log says."""
        return self._voters.membership

    @property
    def changing(self) -> bool:
        """Return whether the newest membership is, as far as is known here, still uncommitted."""
        return self._voters.index > self._applied

    @property
    def level(self) -> int:
        """Return the newest format version that entries after this log's last one may use.

        A node that has the last entry also has the one that raised the version, so it knows it.
        """
        return self._voters.membership.level

    def found(self, membership: Membership) -> None:
        """Bootstrap the group with these members, unless it has members already."""
        self._to_found = membership
        self._schedule()

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
        if not self._running or not self._leader.may_change(self._applied):
            return False
        self._changes.begin(membership, done)
        self._schedule()
        return True

    def out_of_reach(self, peer: str) -> bool:
        """Return whether the peer cannot agree to anything before it gets a snapshot."""
        return self._leader.out_of_reach(peer)

    def status(self) -> GroupStatus:
        """Return the group's present state; `start` must have been called."""
        engine, journal = self._engine, self._journal
        leads = self._running and engine.leads()
        return GroupStatus(
            shard=self._shard,
            is_leader=leads,
            ready=self._running and self._leader.ready,
            leader=engine.leader() if self._running else None,
            term=engine.term(),
            commit_index=engine.commit_index(),
            known_commit=max(engine.commit_index(), self._following.commit),
            applied_index=self._applied,
            digest=self._machine.digest.hex(),
            log_bytes=journal.log_bytes,
            log_first=journal.first,
            log_last=journal.last,
            leader_changes=self._leader_changes,
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
            in_doubt=self._divergence.differing if self._divergence.open else (),
        )

    # The turn.

    def _schedule(self) -> None:
        if not self._running:
            return
        if self._flushing:
            self._wanted = True
        elif self._soon is None:
            # Space turns apart under load, so that each entry carries more operations. Without
            # load, a turn starts at once.
            left_s = self._turned_at + self._turn_s - self._timers.now() if self._queued else 0.0
            if left_s > 0:
                self._soon = self._timers.call_later(left_s, self._turn)
            else:
                self._soon = self._timers.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = None
        if not self._running:
            return
        if self._flushing:
            self._wanted = True
            return
        try:
            self._take_turn()
        except Exception as error:  # noqa: BLE001 - whatever it is, this replica must not go on
            self._fail(error)

    def _take_turn(self) -> None:
        library.use_clock(self._timers.now)
        self._turned_at = self._timers.now()
        self._wanted = self._queued = False
        self._begin_founded()
        for _ in range(min(len(self._inbox), _MESSAGES_A_TURN)):
            self._guard.handle(*self._inbox.get())
            self._adopt_members()
        if self._following.behind:
            self._following.behind = False
            self._on_behind()
        if self._divergence.wrong_at:
            self._on_diverged(self._divergence.wrong_at)
        links = self._links
        if links.refused and self._engine.leads() and not links.leave_a_majority(self._voters):
            self._engine.step_down()
        self._leader.doubted.give_up()
        self._note_role()
        self._tick()
        self._adopt_members()
        self._note_role()
        self._changes.settle(self._applied)
        if self._engine.leads():
            self._leader.turn(self._applied)
        else:
            self._read_index.fail()
            if not self._divergence.open:
                self._journal.trim(min(self._following.floor, self._machine.stored_index))
        if self._journal.trimmed:
            forgotten = self._journal.forget()
            self._writer.forget(forgotten.delete_ranges, forgotten.puts)
        if self._journal.promising:
            self._flush()
        else:
            self._outbox.release()
            self._next_turn()

    def _tick(self) -> None:
        engine, now = self._engine, self._timers.now()
        if not engine.leads() and now >= self._elections.deadline:
            self._ask_for_votes(now)
        stand = self._campaign.wanted and not engine.leads()
        self._leader.begin_round()
        engine.tick(stand=stand)
        if stand:
            self._elections.stood(now)
        self._campaign.wanted = False
        self._campaign.transferred = False

    def _ask_for_votes(self, now: float) -> None:
        self._forget_leader()
        if not self._voters.voting:
            self._elections.abstain(now)
            return
        if self._divergence.wrong_at:
            # The majority works without this replica, which would lead with a wrong state.
            self._elections.unseated(now)
            return
        term = self._engine.term() + 1
        if self._elections.ask(term, now) or not self._rules.pre_vote:
            self._campaign.wanted = True
            return
        request = PreVoteRequest(
            term=term, last=self._journal.last, last_term=self._journal.last_term
        )
        for peer in self._voters.voters:
            if peer in self._links.connected:
                self._outbox.send(peer, request)

    def _forget_leader(self) -> None:
        """Forget the leader: it has been silent for too long."""
        if self._engine.leader() is None:
            return
        self._engine.step_down()
        self._role = (self._engine.term(), False, None)
        self._leader_changes += 1
        self._source.follow(None)

    def _note_role(self) -> None:
        """Report to the source what changed about the leader since the last call."""
        engine = self._engine
        role = engine.role()
        if role == self._role:
            return
        before, self._role = self._role, role
        term, leads, leader = role
        if before[1] and (not leads or term != before[0]):
            self._leader.end()
        if (leads, leader) != before[1:]:
            self._leader_changes += leader != before[2]
            _log.info(
                "leader changed",
                extra={"shard": self._shard, "term": term, "leader": leader, "self": leads},
            )
            if not leads:
                self._source.follow(leader)
        if leader is None and before[2] is not None and not engine.stands():
            self._elections.unseated(self._timers.now())

    # Membership.

    def _begin_founded(self) -> None:
        membership, self._to_found = self._to_found, None
        if membership is not None and not self._voters.membership.members:
            self._journal.found(membership)
            self._founding = membership
            self._adopt_members()

    def _adopt_members(self) -> None:
        """Follow the newest membership in the log, committed or not."""
        index, membership = self._journal.memberships.newest
        voters = self._voters
        if (index, membership) == (voters.index, voters.membership):
            return
        self._check_level(membership)
        voting = voters.voting
        voters.adopt(index, membership)
        self._engine.adopt_members()
        self._read_index.recount()
        _log.info(
            "members changed",
            extra={
                "shard": self._shard,
                "index": index,
                "formats": membership.level,
                "members": [
                    member.id if member.voter else f"{member.id} (learner)"
                    for member in membership.members
                ],
            },
        )
        if voters.voting and not voting:
            self._elections.start(self._timers.now())
        self._on_members()

    def _check_level(self, membership: Membership) -> None:
        levels.check(membership.level, by=f"shard {self._shard}", known=self._level)

    def _new_journal(self) -> Journal:
        return Journal(
            self._store,
            cache_bytes_max=self._settings.cache_bytes_max,
            keep_committed=self._rules.keep_committed,
            # A log with a small bound would exceed it by more than the bound itself.
            trim_entries=min(TRIM_ENTRIES, max(1, self._settings.log_entries_max // 4)),
        )

    # The library's host.

    def send(self, peer: str, message: Mapping[str, object]) -> None:
        """Send one of the library's own messages."""
        self._guard.translate(peer, message)

    def append(
        self, peer: str, *, prev: int, prev_term: int, entries: Sequence[Entry], quiet: bool
    ) -> None:
        """Send entries, or a heartbeat, as leader; it promises nothing, so it leaves at once."""
        tell_all = not self._rules.tell_committed_only
        commit = self._journal.last if tell_all else self._engine.commit_index()
        self._followers.informed[peer] = commit
        message = Append(
            term=self._engine.term(),
            prev=prev,
            prev_term=prev_term,
            commit=commit,
            terms=[entry[2] for entry in entries],
            commands=[entry[0] for entry in entries],
            floor=self._following.floor,
            round=self._read_index.number,
            applied=self._applied,
            digest=self._machine.digest,
            quiet=quiet,
        )
        self._outbox.send(peer, message)

    def apply(self, commit: int) -> int:
        """Apply, in order and each once, the committed entries that are on this node's disk."""
        machine = self._machine
        # The state must never be ahead of the log after a crash, because the log explains the
        # state.
        upto = min(commit, self._journal.flushed_last) if self._rules.apply_flushed_only else commit
        entries = self._journal.read(
            self._applied + 1,
            count=min(upto - self._applied, _APPLY_ENTRIES_A_TURN),
            bytes_max=_APPLY_BYTES_A_TURN,
        )
        for command, index, term in entries:
            if index != self._applied + 1 or machine.applied_index != self._applied:
                raise SafetyViolated(
                    f"shard {self._shard}: entry {index} after {self._applied}, "
                    f"the state is at {machine.applied_index}"
                )
            machine.apply(index, term, command[1:] if command[:1] == PAYLOAD else None)
            if machine.applied_index != index:
                raise SafetyViolated(f"shard {self._shard}: the state did not take entry {index}")
            self._applied = index
            compared = self._digests.applied(index, machine.digest)
            if compared is not None:
                peer, same = compared
                self._divergence.compared(peer, index, same=same)
        return self._applied

    def take(self) -> bytes | None:
        """Return the source's next entry, or None while this leader may propose none."""
        if not self._leader.may_propose(self._applied):
            return None
        payload = self._source.take()
        assert payload is None or len(payload) <= self._settings.entry_bytes_max
        return payload

    def take_members(self) -> bytes | None:
        """Return the encoded membership to propose, or None."""
        membership = self._changes.take(self._journal.last + 1)
        return None if membership is None else codec.encode(membership)

    # Disk and time.

    def _flush(self) -> None:
        flush = self._journal.flush()
        self._flushing = True
        self._writer.write(flush.puts, flush.delete_ranges, self._flushed)

    def _flushed(self, error: BaseException | None) -> None:
        self._flushing = False
        if not self._running:
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

    def _schedule_after_this(self) -> None:
        self._wanted = True

    def _next_turn(self) -> None:
        """Take another turn at once when there is work; otherwise sleep until something is due."""
        engine, journal = self._engine, self._journal
        committed = min(engine.commit_index(), journal.flushed_last)
        alone = self._voters.voters == (self._node_id,) and engine.leads()
        alone = alone and engine.commit_index() < journal.last
        if self._wanted or len(self._inbox) or self._applied < committed or alone:
            self._schedule()
        self._arm()

    def _arm(self) -> None:
        due = self._due()
        if self._timer is not None:
            if self._timer_at <= due:
                return  # It fires early and is set again, which is cheaper than a timer a message.
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._timers.call_later(max(0.0, due - self._timers.now()), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        if not self._running:
            return
        if self._flushing:
            self._wanted = True
        elif self._timers.now() >= self._due():
            self._schedule()
        else:
            self._arm()

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
