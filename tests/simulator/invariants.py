"""Invariants: properties that a shard's replicas keep at all times, checked from inside.

A watch sees every message and every applied entry, and checks all replicas of one shard when asked
to. It raises a violation under the invariant's name. `ReplicaWatch` knows logs; `ShardWatch` also
knows the broker's entries in them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b

from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.members import Voters
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from tests.simulator.graphs import EdgeFault, EdgeRows
from tests.simulator.group_rows import GroupFault, GroupRows
from tests.simulator.lanes import LaneFault, LaneRows
from tests.simulator.limits import LimitFault, LimitRows
from tests.simulator.logs import LogFault, LogRows
from tests.simulator.relays import RelayFault, RelayRows
from tests.simulator.schedules import (
    DecisionFault,
    OverlapFault,
    ScheduleRows,
    TimerFault,
    TwiceFault,
)
from tests.simulator.tags import TagFault, TagRows
from tests.simulator.uniques import UniqueFault, UniqueRows

# How many entries of two logs are compared after growth: more than a log grows by between two
# checks.
_COMPARED = 16
_APPEND_ANSWER = 2
_VOTE_ANSWER = 4
_ENDED = (State.DONE, State.FAILED)


class Invariant(Enum):
    """The invariants that hold at every step."""

    W1 = "one leader a term"
    W2 = "one entry an index, on every replica"
    W3 = "what is committed stays committed, and is in the log"
    W4 = "what a node said it holds, and whom it voted for, it knows after a restart"
    W5 = "a leader counts on no entry that its peer lacks"
    W6 = "two logs with the same entry have the same entries before it"
    W7 = "nothing is cut off at or below what is committed"
    W8 = "equal states at equal indexes"
    W9 = "tokens grow, attempts are counted, what has ended stays so"
    W10 = "once nothing is wrong, all come together and answer"
    W11 = "a relay is in its line once, until it is taken or set aside; both shards' numbers agree"
    W12 = "what follows a result is made once"
    W13 = "a schedule has one timer, which is after all that is decided"
    W14 = "a run of a schedule is made once"
    W15 = "each instant of a schedule is decided once"
    W16 = "runs overlap only if their schedule allows it"
    W17 = "the row of a key is what its tasks say; a task is held as long as its key is busy"
    W18 = "a group counts what its members' rows say; sealed, and without live ones, it has ended"
    W19 = "a task that waits for others has an edge from each, or asks again"
    W20 = "one task holds a unique key, one is next, and its row names them"
    W21 = "a task has one row for each of its tags, and no other"
    W22 = "a log has the last lines of a task that exists, as many as the task says, at most 200"
    W23 = "no more tasks are in progress than the limit of their queues allows"


class InvariantViolated(AssertionError):
    """An invariant was violated; the text says how."""


class InvariantBroken(InvariantViolated):
    """One of these invariants did not hold."""

    def __init__(self, invariant: Invariant, text: str) -> None:
        super().__init__(f"{invariant.name} ({invariant.value}): {text}")
        self.invariant = invariant


@dataclass(slots=True)
class _Promises:
    """The promises of one node to its peers, over all its lives.

    Attributes:
        entry: (index, term) of the last entry it said it holds.
        votes: Term -> who was told to have its vote.
    """

    entry: tuple[int, int] = (0, 0)
    votes: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Seen:
    """The progress of a replica at the last check since it read its disk.

    Attributes:
        commit: Its commit index, and the term of the entry there.
    """

    commit: tuple[int, int] = (0, 0)
    applied: int = 0


class ReplicaWatch:
    """Watches all replicas of one shard, over all their lives."""

    def __init__(self, shard: int) -> None:
        self._shard = shard
        self._leaders: dict[int, str] = {}
        self._entries: dict[int, tuple[int, bytes]] = {}
        self._promises: dict[str, _Promises] = {}
        self._seen: dict[str, _Seen] = {}
        self._compared: dict[tuple[str, str], tuple[int, int]] = {}

    @property
    def entries(self) -> int:
        """Return how many entries were applied anywhere."""
        return len(self._entries)

    # Events.

    def sent(
        self, sender: str, receiver: str, message: Mapping[str, object], group: RaftGroup
    ) -> None:
        """Record a message between nodes: W4 holds its sender to it."""
        kind = message["t"]
        if kind == _APPEND_ANSWER and message["ok"]:
            index = int(str(message["n"])) - 1
            self._of(sender).entry = (index, _log(group).term_at(index) or 0)
        elif kind == _VOTE_ANSWER:
            term = int(str(message["e"]))
            voted = self._of(sender).votes.setdefault(term, receiver)
            if voted != receiver:
                raise self._broken(
                    Invariant.W4, f"{sender} votes for {voted} and for {receiver} in term {term}"
                )

    def applied(self, node: str, index: int, term: int, payload: bytes | None) -> None:
        """Check an entry before it is applied: W2."""
        entry = (term, blake2b(payload or b"", digest_size=16).digest())
        if self._entries.setdefault(index, entry) != entry:
            raise self._broken(
                Invariant.W2, f"{node} applies another entry {index} than was applied elsewhere"
            )

    def began(self, node: str, group: RaftGroup) -> None:
        """Check a replica that has read its disk after a restart: W4."""
        self._seen[node] = _Seen()
        self.holds(node, group)

    def holds(self, node: str, group: RaftGroup) -> None:
        """Check that a replica still has what it promised: W4."""
        index, term = self._of(node).entry
        log = _log(group)
        found = log.term_at(index)
        # A log that ends before it has a newer leader's entry where the dropped ones began.
        held = log.last_term if found is None else found
        if index >= log.first and (held < term or (found is None and held == term)):
            raise self._broken(
                Invariant.W4,
                f"{node} said it holds entry {index} of term {term}, after a restart it has "
                f"{'nothing' if found is None else f'term {found}'} there",
            )
        voted = self._of(node).votes.get(log.term)
        if voted is not None and log.voted_for not in (None, voted):
            raise self._broken(
                Invariant.W4, f"{node} voted for {voted}, after a restart for {log.voted_for}"
            )

    def took_over(self, node: str, index: int, term: int) -> None:
        """Record that a log now ends with a snapshot's entry: its older promises end."""
        self._of(node).entry = (index, term)

    def replaced(self, node: str) -> None:
        """Record that a node has another, empty disk: its old promises end."""
        self._promises.pop(node, None)

    # Checks.

    def look(self, groups: Mapping[str, RaftGroup]) -> None:
        """Check all replicas that run: W1, W3, W5, W6 and W7."""
        running = {node: group for node, group in groups.items() if group.running}
        for node, group in running.items():
            self._look_at(node, group)
            engine = _engine(group)
            if engine.leads:
                term = engine.term
                if self._leaders.setdefault(term, node) != node:
                    raise self._broken(
                        Invariant.W1, f"{node} and {self._leaders[term]} lead term {term}"
                    )
                self._compare(node, group, running)

    def _look_at(self, node: str, group: RaftGroup) -> None:
        engine, log = _engine(group), _log(group)
        seen = self._seen.setdefault(node, _Seen())
        index, term = seen.commit
        commit = engine.commit_index
        if commit < index or commit > log.last:
            raise self._broken(
                Invariant.W3,
                f"{node}'s commit index is {commit} after {index}, its log ends at {log.last}",
            )
        found = log.term_at(index)
        if found != term and index >= log.first:
            raise self._broken(
                Invariant.W7, f"{node} has lost entry {index} of term {term}, which is committed"
            )
        if commit > index:
            seen.commit = (commit, log.term_at(commit) or 0)
        applied = _applied(group)
        if applied < seen.applied:
            raise self._broken(
                Invariant.W3, f"{node}'s state is at entry {applied} after {seen.applied}"
            )
        seen.applied = applied

    def _compare(self, leader: str, group: RaftGroup, running: Mapping[str, RaftGroup]) -> None:
        engine, mine = _engine(group), _log(group)
        for peer, other in running.items():
            theirs = _log(other)
            if peer == leader or _engine(other).term != engine.term:
                continue
            if not _voters(group).knows(peer, _incarnation(other)):
                continue  # It describes a disk that no longer exists.
            match = engine.match_index(peer)
            known = match >= max(mine.first, theirs.first, 1)  # Else one of them forgot it.
            if match > theirs.flushed_last or (
                known and mine.term_at(match) != theirs.term_at(match)
            ):
                raise self._broken(
                    Invariant.W5,
                    f"{leader} believes {peer} holds entry {match}, which it does not",
                )
            ends = (mine.last, theirs.last)
            if self._compared.get((leader, peer)) != ends:
                self._compared[leader, peer] = ends
                self._compare_logs(leader, mine, peer, theirs)

    def _compare_logs(self, one: str, mine: Journal, other: str, theirs: Journal) -> None:
        """Compare the common entries of two logs, back from the last entry that is the same."""
        last = min(mine.last, theirs.last)
        first = max(mine.first, theirs.first, last - _COMPARED)
        same = False
        for index in range(last, first - 1, -1):
            equal = mine.term_at(index) == theirs.term_at(index)
            if same and not equal:
                raise self._broken(
                    Invariant.W6, f"{one} and {other} differ at {index} and agree after it"
                )
            same = same or equal

    def _of(self, node: str) -> _Promises:
        return self._promises.setdefault(node, _Promises())

    def _broken(self, invariant: Invariant, text: str) -> InvariantBroken:
        return InvariantBroken(invariant, f"shard {self._shard}: {text}")


class ShardWatch(ReplicaWatch):
    """Watches all replicas of one shard of the broker, with their states and decisions.

    Args:
        shard: The shard.
        shards: Of the cluster.
        relays: The relays of all shards of the cluster.
        schedules: The schedules, the same way.
    """

    def __init__(self, shard: int, shards: int, relays: RelayRows, schedules: ScheduleRows) -> None:
        super().__init__(shard)
        self._relays = relays
        self._schedules = schedules
        self._lanes = LaneRows()
        self._limits = LimitRows()
        self._groups = GroupRows()
        self._edges = EdgeRows(shard, shards)
        self._uniques = UniqueRows()
        self._logs = LogRows()
        self._tags = TagRows()
        self._followed: set[str] = set()
        self._digests: dict[int, bytes] = {}
        self._tasks: dict[str, Task] = {}

    def applied(self, node: str, index: int, term: int, payload: bytes | None) -> None:
        """Check an entry before it is applied: W2, and W9 the first time it is seen."""
        is_new = index not in self._entries
        super().applied(node, index, term, payload)
        if is_new and payload is not None:
            self._decided(term, payload)

    def stands(self, node: str, index: int, digest: bytes) -> None:
        """Check the state of a replica at an index: W8."""
        if self._digests.setdefault(index, digest) != digest:
            raise self._broken(Invariant.W8, f"{node} has a state of its own at entry {index}")

    def compare_rows(self, states: Mapping[str, tuple[int, list[tuple[bytes, bytes]]]]) -> None:
        """Compare (applied index, rows in order) of replicas that are equally far, row by row.

        Check W8 for state that no hash over entries covers.
        """
        at: dict[int, tuple[str, list[tuple[bytes, bytes]]]] = {}
        for node, (index, rows) in states.items():
            other, known = at.setdefault(index, (node, rows))
            if known != rows:
                differing = min(set(known) ^ set(rows))[0]
                raise self._broken(
                    Invariant.W8, f"{other} and {node} differ at entry {index} in {differing!r}"
                )

    def converged(self, states: Mapping[str, tuple[int, bytes]]) -> None:
        """Compare (applied index, digest) of all replicas once the cluster is at rest: W10."""
        if len(set(states.values())) > 1:
            told = ", ".join(
                f"{node} is at entry {index} with {digest.hex()[:8]}"
                for node, (index, digest) in sorted(states.items())
            )
            raise self._broken(Invariant.W10, told)

    # Decisions.

    def _decided(self, term: int, payload: bytes) -> None:
        entry = entries.decode(payload)
        if entry.epoch != term:
            return
        for key, value in entry.mutations.items():
            if keyspace.family(key) is keyspace.Family.TASK:
                task_id = key[len(keyspace.TASK_PREFIX) :].decode()
                before = self._tasks.pop(task_id, None)
                if value is not None:
                    after = self._tasks[task_id] = records.decode_task(value)
                    self._run(after, is_new=before is None)
                    if before is not None:
                        self._changed(before, after)
                    elif after.more is not None and after.more.run is None:
                        self._made(after)
        try:
            self._relays.written(self._shard, entry.mutations)
        except RelayFault as fault:
            raise self._broken(Invariant.W11, str(fault)) from fault
        try:
            self._lanes.written(entry.mutations)
        except LaneFault as fault:
            raise self._broken(Invariant.W17, str(fault)) from fault
        try:
            self._groups.written(entry.mutations)
        except GroupFault as fault:
            raise self._broken(Invariant.W18, str(fault)) from fault
        self._limit(entry.mutations)
        self._follow_edges(entry.mutations)
        self._hold_keys(entry.mutations)
        self._log(entry.mutations)
        self._list_by_tag(entry.mutations)
        self._fired(entry.mutations)

    def _limit(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Check limits of queues: W23."""
        try:
            self._limits.written(rows, self._tasks)
        except LimitFault as fault:
            raise self._broken(Invariant.W23, str(fault)) from fault

    def _follow_edges(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Check tasks that wait for others: W19."""
        try:
            self._edges.written(rows)
        except EdgeFault as fault:
            raise self._broken(Invariant.W19, str(fault)) from fault

    def _hold_keys(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Check unique keys: W20."""
        try:
            self._uniques.written(rows)
        except UniqueFault as fault:
            raise self._broken(Invariant.W20, str(fault)) from fault

    def _log(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Check logs of tasks: W22."""
        try:
            self._logs.written(rows)
        except LogFault as fault:
            raise self._broken(Invariant.W22, str(fault)) from fault

    def _list_by_tag(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Check rows of tags: W21."""
        try:
            self._tags.written(rows, self._tasks)
        except TagFault as fault:
            raise self._broken(Invariant.W21, str(fault)) from fault

    def _run(self, task: Task, *, is_new: bool) -> None:
        """Check that a run is new: W14."""
        try:
            self._schedules.task(self._shard, task, is_new=is_new)
        except TwiceFault as fault:
            raise self._broken(Invariant.W14, str(fault)) from fault

    def _fired(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Check schedules and their runs: W13, W15 and W16."""
        try:
            self._schedules.written(self._shard, rows)
        except TimerFault as fault:
            raise self._broken(Invariant.W13, str(fault)) from fault
        except DecisionFault as fault:
            raise self._broken(Invariant.W15, str(fault)) from fault
        except OverlapFault as fault:
            raise self._broken(Invariant.W16, str(fault)) from fault

    def _made(self, task: Task) -> None:
        """Check that a task that follows a result is new, also if the one before is gone: W12."""
        if task.id in self._followed:
            raise self._broken(Invariant.W12, f"{task.id} is made again")
        self._followed.add(task.id)

    def _changed(self, before: Task, after: Task) -> None:
        """Check one change of a task against its state before: W9.

        One entry may carry a lease and its end: a claim, and the cancel that came right behind it.
        """
        is_new = after.state is State.LEASED and after.claim != before.claim
        granted = after.lease_token - before.lease_token
        if granted < is_new:
            text = f"its token is {after.lease_token} after {before.lease_token}"
        elif before.state in _ENDED and after.state is not before.state:
            text = f"it was {before.state.name} and is {after.state.name}"
        elif not _least(before, after) <= after.attempts <= _most(before, after) + granted:
            text = f"{after.attempts} attempts after {before.attempts}"
        elif after.attempts > after.max_attempts:
            text = f"{after.attempts} attempts of {after.max_attempts}"
        else:
            return
        raise self._broken(Invariant.W9, f"task {after.id}: {text}")


def _least(before: Task, after: Task) -> int:
    """Return how many attempts a task has at least: fewer when revived, or had by nobody.

    A step that is recorded begins them anew.
    """
    if before.state is State.DEAD or _beside(before) != _beside(after):
        return 0
    given_back = before.state is State.LEASED and after.state is not State.LEASED
    return before.attempts - given_back


def _beside(task: Task) -> tuple[int, ...]:
    """Return what changes with steps and signals, and not with a log."""
    # Calls of the product are counted, and its own function would be.
    durable = task.more.durable if task.more is not None else None
    if durable is None:
        return (0, 0, 0, 0)
    return (durable.steps, durable.bytes, durable.signals, durable.unread)


def _most(before: Task, after: Task) -> int:
    """Return how many attempts a task has at most: more only when its revival is taken back."""
    last = before.history[-1].outcome if before.history else None
    revived = before.state in (State.READY, State.HELD) and last is AttemptOutcome.REQUEUED
    return after.max_attempts if revived and after.state is State.DEAD else before.attempts


def _log(group: RaftGroup) -> Journal:
    return group._replica.journal


def _engine(group: RaftGroup) -> SafeSyncObj:
    return group._replica.engine


def _applied(group: RaftGroup) -> int:
    return group._replica.applier.index


def _voters(group: RaftGroup) -> Voters:
    return group._replica.voters


def _incarnation(group: RaftGroup) -> int:
    return group._replica.incarnation
