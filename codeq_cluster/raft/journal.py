"""Journal: the Raft log, the term and the vote, on a `LogStore`.

Changes collect in memory and reach the disk in one atomic write per flush. Entries up to
`flushed_last` are on disk.
Every row carries a checksum. A row whose checksum is wrong stops the start: a wrong log is worse
than a node that is down.

Rows:
    log/<index, 8 bytes big-endian>   version, crc32, term, command
    vote                              version, crc32, term, id voted for
    members                           version, crc32, index, membership as of the oldest entry
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership
from codeq_cluster.errors import DataDirectoryRefused, SafetyViolated, StorageDamaged
from codeq_cluster.raft.memberships import Memberships, Named
from codeq_cluster.raft.messages import MEMBERS, NO_OP
from codeq_cluster.raft.ports import LogStore

# The library's triple: command, index, term.
Entry = tuple[bytes, int, int]

# The rows to put, and the half-open ranges of keys to delete before them.
Rows = tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]

FIRST_INDEX = 1

_LOG = b"log/"
_LOG_END = b"log0"  # One past every key that starts with `log/`.
_VOTE = b"vote"
_MEMBERS = b"members"
_VERSION = 1
_HEAD = struct.Struct(">BIQ")
_INDEX = struct.Struct(">Q")
# Bounds of one read while loading: large enough to be fast, small enough for any node's memory.
_LOAD_ROWS = 4096
_LOAD_BYTES = 16 * 2**20
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
        term: Current term.
        voted_for: The node that has this node's vote in `term`.
        log_bytes: Size of all entries kept, without row overhead.
        memberships: The group's members at every entry kept.
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
        self._cache_bytes_max = cache_bytes_max
        self._keep_committed = keep_committed
        self._trim_entries = trim_entries
        self._cache: dict[int, Entry] = {}
        self._cache_first = 1
        self._cache_bytes = 0
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
        self._unflushed_from: int | None = None
        self._delete_from: int | None = None
        self._trimmed_to: int | None = None
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
        vote = self._store.get(_VOTE)
        if vote is not None:
            self.term, self.voted_for = _decode_vote(vote)
        base = self._store.get(_MEMBERS)
        self.memberships.begin(*_named_at(base, bootstrap))
        self._base_dirty = base is None and bootstrap is not None
        start = _LOG
        while rows := self._store.scan(start, _LOG_END, limit=_LOAD_ROWS, bytes_max=_LOAD_BYTES):
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
        self.commit = max(applied, min(committed, self.last))

    def bootstrap(self, membership: Membership) -> None:
        """Bootstrap the group with these members; only while it has none."""
        assert not self.memberships.newest[1].members, "a group is bootstrapped once"
        self.memberships.begin(FIRST_INDEX, membership)
        self._base_dirty = True

    def name_members(self, membership: Membership) -> None:
        """Append an entry of the current term that names the group's members."""
        self.add(MEMBERS + codec.encode(membership), self.last + 1, self.term)

    def _load_row(self, key: bytes, value: bytes) -> None:
        try:
            entry = _decode_row(key, value)
            if entry[0][:1] == MEMBERS:
                self.memberships.append(entry[1], entry[0][1:])
        except ValueError as damage:
            raise DataDirectoryRefused(
                f"log entry {key.hex()} is damaged ({damage}); restore this node from its peers"
            ) from damage
        _, index, term = entry
        if self._newest is None:
            self.first = index
            self.last = index - 1
            self._cache_first = index
        elif index != self.last + 1:
            raise DataDirectoryRefused(
                f"the log lacks the entries {self.last + 1} to {index - 1}; "
                "restore this node from its peers"
            )
        if term < self.last_term:
            raise DataDirectoryRefused(
                f"log entry {index} is of term {term}, the one before it of {self.last_term}"
            )
        self._append(entry)
        self._evict(self.last)

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
        """Return entries from `start` on: at most `count`, about `bytes_max`, but at least one.

        The list is empty when `start` is outside the log.

        Raises:
            StorageDamaged: A row that was intact at the start is now damaged or gone.
            StorageFailed: The disk refused.
        """
        if not self.first <= start <= self.last:
            return []
        end = min(start + count, self.last + 1)
        if start < self._cache_first:
            return self._read_store(start, min(end, self._cache_first), bytes_max)
        entries: list[Entry] = []
        total = 0
        for index in range(start, end):
            entry = self._cache[index]
            total += len(entry[0])
            if entries and total > bytes_max:
                break
            entries.append(entry)
        return entries

    def _read_store(self, start: int, end: int, bytes_max: int) -> list[Entry]:
        rows = self._store.scan(_key(start), _key(end), limit=end - start, bytes_max=bytes_max)
        try:
            entries = [_decode_row(key, value) for key, value in rows]
        except ValueError as damage:
            raise StorageDamaged(f"the log is damaged near entry {start}: {damage}") from damage
        if [entry[1] for entry in entries] != list(range(start, start + len(entries))):
            raise StorageDamaged(f"the log has lost entries near {start}")
        if not entries:
            raise StorageDamaged(f"the log has lost entry {start}")
        return entries

    # The library's view.

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __getitem__(self, position: int) -> Entry:
        entry = self._newest if position == -1 else self._oldest if position == 0 else None
        assert entry is not None, "the library asks for the first and the last entry only"
        return entry

    def add(self, command: bytes, index: int, term: int) -> None:
        """Append one entry.

        Raises:
            SafetyViolated: The entry does not follow the last one.
        """
        if self._newest is not None and (index != self.last + 1 or term < self.last_term):
            raise SafetyViolated(
                f"entry {index} of term {term} after entry {self.last} of term {self.last_term}"
            )
        if self._unflushed_from is None:
            self._unflushed_from = index
        if command[:1] == MEMBERS:
            self.memberships.append(index, command[1:])
        self._append((command, index, term))

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
        for index in range(start, self.last + 1):
            self.log_bytes -= self._sizes[index - self.first]
            dropped = self._cache.pop(index, None)
            if dropped is not None:
                self._cache_bytes -= len(dropped[0])
        del self._sizes[start - self.first :]
        while self._run_starts[-1] >= start:
            self._run_starts.pop()
            self._run_terms.pop()
        self.memberships.truncate(start)
        self.last = start - 1
        self.last_term = self._run_terms[-1]
        self._cache_first = min(self._cache_first, start)
        # The cache may have dropped this entry long ago.
        self._newest = self.read(self.last, count=1, bytes_max=0)[0]
        if self.flushed_last >= start:
            self._delete_from = (
                start if self._delete_from is None else min(self._delete_from, start)
            )
            self.flushed_last = start - 1
        if self._unflushed_from is not None and self._unflushed_from >= start:
            self._unflushed_from = None

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
        self._vote_dirty = True

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
        return _encode_members(*self.memberships.at(index))

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
        for index in range(max(self.first, self._cache_first), floor):
            self._cache_bytes -= len(self._cache.pop(index)[0])
        self._oldest = self.read(floor, count=1, bytes_max=0)[0]
        self.first = floor
        self._cache_first = max(self._cache_first, floor)
        run = bisect_right(self._run_starts, floor) - 1
        del self._run_starts[:run]
        del self._run_terms[:run]
        self._trimmed_to = floor
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

    @property
    def promising(self) -> bool:
        """Return whether a change waits for a flush."""
        return (
            self._unflushed_from is not None
            or self._vote_dirty
            or self._base_dirty
            or self._delete_from is not None
        )

    @property
    def trimmed(self) -> bool:
        """Return whether there are trimmed rows to delete."""
        return self._trimmed_to is not None

    def forget(self) -> Forgotten:
        """Return the rows to delete and replace; they need not reach the disk soon."""
        assert self._trimmed_to is not None, "nothing was trimmed"
        forgotten = Forgotten(
            delete_ranges=[(_LOG, _key(self._trimmed_to))],
            # Written only together with the range delete: until then a start finds the same
            # members in the log's own rows.
            puts=[(_MEMBERS, _encode_members(*self.memberships.base))] if self._base_moved else [],
        )
        self._trimmed_to = None
        self._base_moved = False
        return forgotten

    def flush(self) -> Flush:
        """Return the changes that are not on disk.

        The log must not change until `flushed` is called.
        """
        assert self._in_flight is None, "one flush at a time"
        puts = [
            (_key(index), _encode_row(*self._cache[index]))
            for index in range(self._unflushed_from or self.last + 1, self.last + 1)
        ]
        if self._vote_dirty:
            puts.append((_VOTE, _encode_vote(self.term, self.voted_for)))
        if self._base_dirty:
            puts.append((_MEMBERS, _encode_members(*self.memberships.base)))
        delete_ranges = []
        if self._delete_from is not None:
            delete_ranges.append((_key(self._delete_from), _LOG_END))
        self._in_flight = Flush(puts=puts, delete_ranges=delete_ranges, last=self.last)
        return self._in_flight

    def flushed(self) -> None:
        """Note that the last flush is on disk."""
        flush = self._in_flight
        assert flush is not None, "nothing was flushed"
        assert flush.last == self.last, "the log changed under its flush"
        self._in_flight = None
        self.flushed_last = flush.last
        self._unflushed_from = None
        self._vote_dirty = False
        self._base_dirty = False
        self._delete_from = None
        self._evict(self.flushed_last)

    # Shared parts.

    def _append(self, entry: Entry) -> None:
        command, index, term = entry
        if self._newest is None:
            self._oldest = entry
        self._newest = entry
        self.last = index
        if not self._run_terms or term != self._run_terms[-1]:
            self._run_starts.append(index)
            self._run_terms.append(term)
        self.last_term = term
        self._sizes.append(len(command))
        self.log_bytes += len(command)
        self._cache[index] = entry
        self._cache_bytes += len(command)

    def _evict(self, flushed: int) -> None:
        # The newest entry always stays, because every turn reads it.
        while self._cache_bytes > self._cache_bytes_max and self._cache_first < min(
            flushed, self.last
        ):
            self._cache_bytes -= len(self._cache.pop(self._cache_first)[0])
            self._cache_first += 1


def rows_after_snapshot(
    index: int,
    term: int,
    *,
    vote_term: int,
    voted_for: str | None,
    kept: Sequence[tuple[bytes, bytes]] = (),
    members: bytes = b"",
) -> Rows:
    """Return the rows of a log that begins at a snapshot.

    Args:
        index: Of the last entry in the snapshot's state.
        term: Of that entry.
        vote_term: This node's current term.
        voted_for: The node that has this node's vote in that term. A snapshot changes the log,
            never a promise.
        kept: The rows from entry `index` on, when the log holds it: this node has acknowledged
            them.
        members: The row with the members at that entry, from `members_row` or `stored_place`.
            Empty when the reader of the log supplies them.
    """
    log = kept or [(_key(index), _encode_row(NO_OP, index, term))]
    beside = [(_VOTE, _encode_vote(vote_term, voted_for))]
    if members:
        beside.append((_MEMBERS, members))
    return [*log, *beside], [(_LOG, _LOG_END)]


def rows_from(store: LogStore, index: int) -> list[tuple[bytes, bytes]]:
    """Return the stored rows of the log from an entry on, without decoding them.

    Raises:
        StorageFailed: The disk refused.
    """
    found: list[tuple[bytes, bytes]] = []
    start = _key(index)
    while rows := store.scan(start, _LOG_END, limit=_LOAD_ROWS, bytes_max=_LOAD_BYTES):
        found += rows
        start = rows[-1][0] + b"\x00"
    return found


def stored_term(get: Callable[[bytes], bytes | None], index: int) -> int | None:
    """Return the term of a stored entry, or None when the store does not hold it.

    Raises:
        ValueError: The row is damaged.
    """
    value = get(_key(index))
    return None if value is None else _decode_row(_key(index), value)[2]


def stored_vote(get: Callable[[bytes], bytes | None]) -> tuple[int, str | None]:
    """Return the stored term and the node voted for in it; (0, None) when there is none.

    Raises:
        DataDirectoryRefused: The row is damaged.
    """
    value = get(_VOTE)
    return (0, None) if value is None else _decode_vote(value)


def stored_place(
    get: Callable[[bytes], bytes | None],
    rows: Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]],
    index: int,
) -> tuple[int | None, bytes]:
    """Return the term of a stored entry, and the row with the group's members there.

    The term is None when the log does not hold the entry. The row is empty when the log names no
    members.

    Raises:
        ValueError: A row is damaged.
        DataDirectoryRefused: The row with the members is damaged.
    """
    base = get(_MEMBERS)
    term = stored_term(get, index)
    if base is None:
        return term, b""
    found = Memberships()
    found.begin(*_decode_members(base))
    for key, value in rows(_LOG, _key(index + 1)):
        # Most entries name no members, so their checksums are not computed here.
        if value[_HEAD.size : _HEAD.size + 1] == MEMBERS:
            command, at, _ = _decode_row(key, value)
            found.append(at, command[1:])
    return term, _encode_members(*found.newest)


def stored_end(
    get: Callable[[bytes], bytes | None],
    rows: Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]],
    *,
    bootstrap: Membership | None,
) -> tuple[int, Membership]:
    """Return the index of the last stored entry and the members there, after reading every row.

    Args:
        get: Reads one row of the store.
        rows: Reads a range of rows of the store.
        bootstrap: The members when the log names none; None for none yet.

    Raises:
        ValueError: A row is damaged.
        DataDirectoryRefused: The row with the members is damaged.
    """
    found = Memberships()
    found.begin(*_named_at(get(_MEMBERS), bootstrap))
    last = FIRST_INDEX
    for command, index, _ in stored_entries(rows):
        last = index
        if command[:1] == MEMBERS:
            found.append(index, command[1:])
    return last, found.newest[1]


def stored_entries(
    rows: Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]], *, start: int = 0
) -> Iterator[Entry]:
    """Yield the stored entries from an index on.

    Raises:
        ValueError: A row is damaged.
    """
    return (_decode_row(key, value) for key, value in rows(_key(start), _LOG_END))


def _key(index: int) -> bytes:
    return _LOG + _INDEX.pack(index)


def _encode_row(command: bytes, index: int, term: int) -> bytes:
    return _HEAD.pack(_VERSION, _row_crc(command, index, term), term) + command


def _row_crc(command: bytes, index: int, term: int) -> int:
    return zlib.crc32(command, zlib.crc32(_INDEX.pack(index) + _INDEX.pack(term)))


def _decode_row(key: bytes, value: bytes) -> Entry:
    if len(key) != len(_LOG) + _INDEX.size:
        raise ValueError("its key has the wrong length")
    if len(value) <= _HEAD.size:
        raise ValueError("it is cut short")
    (index,) = _INDEX.unpack_from(key, len(_LOG))
    version, crc, term = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise ValueError(f"its format is {version}, this release reads {_VERSION}")
    command = value[_HEAD.size :]
    if _row_crc(command, index, term) != crc:
        raise ValueError("its checksum does not fit")
    return command, index, term


def _encode_vote(term: int, voted_for: str | None) -> bytes:
    return _encode_numbered(term, (voted_for or "").encode())


def _decode_vote(value: bytes) -> tuple[int, str | None]:
    term, voted_for = _decode_numbered("vote", value)
    return term, voted_for.decode() or None


def _encode_members(index: int, membership: Membership) -> bytes:
    return _encode_numbered(index, codec.encode(membership))


def _named_at(base: bytes | None, bootstrap: Membership | None) -> Named:
    """Return the members before the log's entries name any, and the index from which on."""
    return (FIRST_INDEX, bootstrap or Membership()) if base is None else _decode_members(base)


def _decode_members(value: bytes) -> Named:
    index, members = _decode_numbered("membership", value)
    try:
        return index, codec.decode(members)
    except ValueError as damage:
        raise DataDirectoryRefused(f"the membership cannot be read: {damage}") from damage


def _encode_numbered(number: int, text: bytes) -> bytes:
    body = _INDEX.pack(number) + text
    return struct.pack(">BI", _VERSION, zlib.crc32(body)) + body


def _decode_numbered(what: str, value: bytes) -> tuple[int, bytes]:
    head = struct.calcsize(">BI")
    body = value[head:]
    if len(body) < _INDEX.size:
        raise DataDirectoryRefused(f"the {what} is cut short; restore this node from its peers")
    version, crc = struct.unpack_from(">BI", value)
    if version != _VERSION or zlib.crc32(body) != crc:
        raise DataDirectoryRefused(f"the {what} is damaged; restore this node from its peers")
    (number,) = _INDEX.unpack_from(body)
    return number, body[_INDEX.size :]
