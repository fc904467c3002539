"""Journal: the Raft log, the term and the vote, on a `LogStore`.

Changes collect in memory and reach the disk in one atomic write per flush. Entries up to
`flushed_last` are on disk.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import starmap

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership
from codeq_cluster.errors import DataDirectoryRefused, SafetyViolated, StorageDamaged
from codeq_cluster.raft.journal_rows import (
    FIRST_INDEX,
    LOAD_BYTES,
    LOAD_ROWS,
    LOG,
    LOG_END,
    MEMBERS_AT_FIRST,
    VOTE,
    Entry,
    EntryCache,
    decode_row,
    decode_vote,
    encode_members,
    encode_vote,
    entry_row,
    fitting,
    key_of,
    named_at,
)
from codeq_cluster.raft.members import Memberships
from codeq_cluster.raft.messages import MEMBERS, NO_OP
from codeq_cluster.raft.ports import LogStore

# Trimming costs a range delete, so it waits for this many entries or bytes.
TRIM_ENTRIES = 256
_TRIM_BYTES = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """One atomic write: the range deletes, then the rows.

    Attributes:
        last: Index of the last entry once the write is done.
    """

    puts: Sequence[tuple[bytes, bytes]]
    delete_ranges: Sequence[tuple[bytes, bytes]]
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """Rows that trimming makes superfluous, and the rows that replace them."""

    delete_ranges: Sequence[tuple[bytes, bytes]]
    puts: Sequence[tuple[bytes, bytes]]


class Journal:
    """One group's log; the library reads it as a sequence, other callers by index.

    Attributes:
        first: Index of the oldest entry kept.
        last: Index of the newest entry.
        last_term: Term of the newest entry.
        flushed_last: Entries up to here are on disk as they are in memory.
        commit: Highest commit index the library announced; never shrinks.
        voted_for: The node that has this node's vote in `term`.
        log_bytes: Size of all entries kept, without row overhead.
        memberships: The group's members at every entry kept.
        promising: A change waits for a flush.
        trimmed_to: Trimmed rows before this entry wait to be deleted; None for none.
    """

    def __init__(
        self,
        store: LogStore,
        *,
        cache_bytes_max: int,
        keep_committed: bool = True,
        trim_entries: int = TRIM_ENTRIES,
    ) -> None:
        self._store = store
        self._keep_committed = keep_committed
        self._trim_entries = trim_entries
        self._cache = EntryCache(cache_bytes_max)
        self._sizes = array("Q")
        # Terms never shrink along the log, so a few runs give every entry's term.
        self._run_starts: list[int] = []
        self._run_terms: list[int] = []
        self.first = 1
        self.last = 0
        self.last_term = 0
        self.log_bytes = 0
        self.flushed_last = 0
        self.commit = 0
        self.term = 0
        self.voted_for: str | None = None
        self._oldest: Entry | None = None
        self._newest: Entry | None = None
        self._unflushed: list[Entry] = []
        self._delete_from: int | None = None
        self.trimmed_to: int | None = None
        self.promising = False
        self._vote_dirty = False
        self._base_dirty = False
        self._base_moved = False
        self._in_flight: Flush | None = None
        self.memberships = Memberships()

    # Loading.

    def load(
        self, *, applied: int, committed: int = 0, bootstrap: Membership | None = None
    ) -> None:
        """Read and check the whole log; make the first entry when there is none.

        Args:
            applied: Index the state machine has reached; everything up to it is committed.
            committed: Another index up to which everything is known to be committed.
            bootstrap: The members when the log names none; None for none yet.

        Raises:
            DataDirectoryRefused: A row is damaged or missing, or log and state do not match.
        """
        vote = self._store.get(VOTE)
        if vote is not None:
            self.term, self.voted_for = decode_vote(vote)
        base = self._store.get(MEMBERS_AT_FIRST)
        self.memberships.begin(*named_at(base, bootstrap))
        start = LOG
        while rows := self._store.scan(start, LOG_END, limit=LOAD_ROWS, bytes_max=LOAD_BYTES):
            for key, value in rows:
                self._load_row(key, value)
            start = rows[-1][0] + b"\x00"
        if self._newest is None:
            if vote is not None or applied != FIRST_INDEX:
                raise DataDirectoryRefused(
                    f"the log is empty but the vote or the state (applied {applied}) is not"
                )
            self.add(NO_OP, FIRST_INDEX, 0)
        else:
            self.flushed_last = self.last
            self._check_loaded(applied=applied, voted=vote is not None)
        self._base_dirty = base is None and bootstrap is not None
        self.promising = self._base_dirty or bool(self._unflushed)
        self.commit = max(applied, min(committed, self.last))

    def bootstrap(self, membership: Membership) -> None:
        """Bootstrap the group with these members; only while it has none."""
        assert not self.memberships.newest[1].members, "a group is bootstrapped once"
        self.memberships.begin(FIRST_INDEX, membership)
        self._base_dirty = self.promising = True

    def name_members(self, membership: Membership) -> None:
        """Append an entry of the current term that names the group's members."""
        self.add(MEMBERS + codec.encode(membership), self.last + 1, self.term)

    def _load_row(self, key: bytes, value: bytes) -> None:
        try:
            command, index, term = decode_row(key, value)
            self._check_follows(index, term)
            self.add(command, index, term)
        except ValueError as damage:
            raise DataDirectoryRefused(
                f"log entry {key.hex()} is damaged ({damage}); restore this node from its peers"
            ) from damage
        self._unflushed.clear()
        self._cache.evict(index)

    def _check_follows(self, index: int, term: int) -> None:
        if self._newest is None:
            self.first = self._cache.first = index
        elif index != self.last + 1:
            raise DataDirectoryRefused(
                f"the log lacks the entries {self.last + 1} to {index - 1}; "
                "restore this node from its peers"
            )
        if term < self.last_term:
            raise DataDirectoryRefused(
                f"log entry {index} is of term {term}, the one before it of {self.last_term}"
            )

    def _check_loaded(self, *, applied: int, voted: bool) -> None:
        if applied > self.last:
            raise DataDirectoryRefused(
                f"the state has applied entry {applied}, the log ends at {self.last}; "
                "restore this node from its peers"
            )
        if applied < self.first:
            raise DataDirectoryRefused(
                f"the state has applied entry {applied}, the log starts at {self.first}; "
                "restore this node from its peers"
            )
        if self.last_term > 0 and not voted:
            raise DataDirectoryRefused(
                f"the log reaches term {self.last_term} but the vote is missing"
            )
        if self.last_term > self.term:
            raise DataDirectoryRefused(
                f"the log reaches term {self.last_term}, the vote is of term {self.term}"
            )

    # Reading.

    def term_at(self, index: int) -> int | None:
        """Return the term of an entry, or None when the log does not hold it."""
        if not self.first <= index <= self.last:
            return None
        return self._run_terms[bisect_right(self._run_starts, index) - 1]

    def first_of_term(self, index: int) -> int:
        """Return the index of the first kept entry of the term that entry `index` has."""
        return max(self._run_starts[bisect_right(self._run_starts, index) - 1], self.first)

    def read(self, start: int, *, count: int, bytes_max: int) -> list[Entry]:
        """Return entries from `start` on: at most `count` and those that fit; see `fitting`.

        The list is empty when `start` is outside the log.

        Raises:
            StorageDamaged: A row that was intact at the start is now damaged or gone.
            StorageFailed: The disk refused.
        """
        if not self.first <= start <= self.last:
            return []
        end = min(start + count, self.last + 1)
        if start < self._cache.first:
            return self._read_store(start, min(end, self._cache.first), bytes_max)
        return fitting(map(self._cache.at, range(start, end)), bytes_max)

    def _read_store(self, start: int, end: int, bytes_max: int) -> list[Entry]:
        rows = self._store.scan(key_of(start), key_of(end), limit=end - start, bytes_max=bytes_max)
        try:
            entries = [decode_row(key, value) for key, value in rows]
        except ValueError as damage:
            raise StorageDamaged(f"the log is damaged near entry {start}: {damage}") from damage
        if [entry[1] for entry in entries] != list(range(start, start + len(entries))):
            raise StorageDamaged(f"the log has lost entries near {start}")
        if not entries:
            raise StorageDamaged(f"the log has lost entry {start}")
        return fitting(entries, bytes_max)

    # The library's view.

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __getitem__(self, position: int) -> Entry:
        entry = self._newest if position == -1 else self._oldest if position == 0 else None
        assert entry is not None, "the library asks for the first and the last entry only"
        return entry

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry; raises SafetyViolated if it does not follow the last one."""
        if self._newest is not None and (index != self.last + 1 or term < self.last_term):
            raise SafetyViolated(
                f"entry {index} of term {term} after entry {self.last} of term {self.last_term}"
            )
        if command[:1] == MEMBERS:
            self.memberships.append(index, command[1:])
        entry = (command, index, term)
        if self._newest is None:
            self._oldest = entry
        self._newest = entry
        self._unflushed.append(entry)
        self.promising = True
        self.last = index
        if term != self.last_term or not self._run_terms:
            self._run_starts.append(index)
            self._run_terms.append(term)
        self.last_term = term
        self._sizes.append(len(command))
        self.log_bytes += len(command)
        self._cache.put(entry)

    def deleteEntriesFrom(self, position: int) -> None:  # noqa: N802 - the library's name
        """Drop the entries from `position` on, because the leader's log has others there.

        Positions count from `first`.

        Raises:
            SafetyViolated: They include a committed entry, or the first one.
        """
        start = self.first + position
        if start <= self.first or (start <= self.commit and self._keep_committed):
            raise SafetyViolated(
                f"truncation at {start}: the log starts at {self.first}, committed is {self.commit}"
            )
        if start > self.last:
            return
        self._cache.truncate(start, self.last)
        self.log_bytes -= sum(self._sizes[start - self.first :])
        del self._sizes[start - self.first :]
        while self._run_starts[-1] >= start:
            self._run_starts.pop()
            self._run_terms.pop()
        self.memberships.truncate(start)
        self.last = start - 1
        self.last_term = self._run_terms[-1]
        # The cache may have dropped this entry long ago.
        self._newest = self.read(self.last, count=1, bytes_max=0)[0]
        if self.flushed_last >= start:
            self._delete_from = (
                start if self._delete_from is None else min(self._delete_from, start)
            )
            self.flushed_last = start - 1
            self.promising = True
        while self._unflushed and self._unflushed[-1][1] >= start:
            self._unflushed.pop()

    def setRaftCommitIndex(self, index: int) -> None:  # noqa: N802 - the library's name
        """Remember the commit index in memory only; a restart begins with the applied index."""
        self.commit = max(self.commit, index)

    def getRaftCommitIndex(self) -> int:  # noqa: N802 - the library's name
        """Return the commit index, never beyond the log."""
        return min(self.commit, self.last)

    def setCurrentTerm(self, term: int, voted_for: str | None) -> None:  # noqa: N802 - the library's name
        """Change term and vote; durable with the next flush.

        Raises:
            SafetyViolated: The term would shrink, or a vote already given would change.
        """
        if (term, voted_for) == (self.term, self.voted_for):
            return
        if term < self.term:
            raise SafetyViolated(f"term {term} after term {self.term}")
        if term == self.term and self.voted_for is not None:
            raise SafetyViolated(f"a second vote in term {term}")
        self.term = term
        self.voted_for = voted_for
        self._vote_dirty = self.promising = True

    def getCurrentTerm(self) -> int:  # noqa: N802 - the library's name
        """Return the current term."""
        return self.term

    def getVotedForNodeId(self) -> str | None:  # noqa: N802 - the library's name
        """Return the id of the node that has this node's vote in the current term, or None."""
        return self.voted_for

    def onOneSecondTimer(self) -> None:  # noqa: N802 - the library's name
        """Do nothing: changes wait for their flush, not for a timer."""

    def members_row(self, index: int) -> bytes:
        """Return the row with the group's members at an entry that is kept."""
        return encode_members(*self.memberships.at(index))

    # Trimming and flushing.

    def trim(self, floor: int) -> None:
        """Forget the entries before `floor`; the one at `floor` stays as the log's first.

        Does nothing until enough entries have gathered to be worth a range delete.
        """
        floor = min(floor, self.flushed_last)
        count = floor - self.first
        if count <= 0:
            return
        if count < self._trim_entries and self.log_bytes < _TRIM_BYTES:
            return
        freed = sum(self._sizes[:count])
        if count < self._trim_entries and freed < _TRIM_BYTES:
            return
        self.log_bytes -= freed
        del self._sizes[:count]
        self._cache.trim(floor)
        self._oldest = self.read(floor, count=1, bytes_max=0)[0]
        self.first = floor
        run = bisect_right(self._run_starts, floor) - 1
        del self._run_starts[:run]
        del self._run_terms[:run]
        self.trimmed_to = floor
        moved = self.memberships.trim(floor)
        # A `members` row that is not on disk yet is written together with the range delete, in its
        # newest version.
        self._base_moved = moved or self._base_moved or self._base_dirty
        self._base_dirty = False

    def first_within(self, bytes_max: int, entries_max: int, *, upto: int) -> int:
        """Return the index to trim to, at most `upto`, so that the rest is within both bounds.

        Reads only the sizes of the entries that would go.
        """
        index, log_bytes = self.first, self.log_bytes
        end = min(upto, self.last)
        while index < end and (log_bytes > bytes_max or self.last - index + 1 > entries_max):
            log_bytes -= self._sizes[index - self.first]
            index += 1
        return index

    def forget(self) -> Forgotten:
        """Return the rows to delete and replace; they need not reach the disk soon."""
        assert self.trimmed_to is not None, "nothing was trimmed"
        forgotten = Forgotten(
            delete_ranges=[(LOG, key_of(self.trimmed_to))],
            # Written only together with the range delete: until then a start finds the same
            # members in the log's own rows.
            puts=[(MEMBERS_AT_FIRST, encode_members(*self.memberships.base))]
            if self._base_moved
            else [],
        )
        self.trimmed_to = None
        self._base_moved = False
        return forgotten

    def flush(self) -> Flush:
        """Return the changes that are not on disk.

        The log must not change until `flushed` is called.
        """
        assert self._in_flight is None, "one flush at a time"
        puts = list(starmap(entry_row, self._unflushed))
        if self._vote_dirty:
            puts.append((VOTE, encode_vote(self.term, self.voted_for)))
        if self._base_dirty:
            puts.append(self._base_row())
        delete_ranges = []
        if self._delete_from is not None:
            delete_ranges.append((key_of(self._delete_from), LOG_END))
        self._in_flight = Flush(puts=puts, delete_ranges=delete_ranges, last=self.last)
        return self._in_flight

    def flushed(self) -> None:
        """Note that the last flush is on disk."""
        flush = self._in_flight
        assert flush is not None, "nothing was flushed"
        assert flush.last == self.last, "the log changed under its flush"
        self._in_flight = None
        self.flushed_last = flush.last
        self._unflushed.clear()
        self.promising = False
        self._vote_dirty = False
        self._base_dirty = False
        self._delete_from = None
        # The newest entry always stays, because every turn reads it.
        self._cache.evict(self.flushed_last)

    def _base_row(self) -> tuple[bytes, bytes]:
        return MEMBERS_AT_FIRST, encode_members(*self.memberships.base)
