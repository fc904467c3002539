"""Journal rows: log, term and vote as rows of a store, readers of them, and the newest entries.

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
from collections.abc import Callable, Iterable, Iterator, Sequence

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Membership
from codeq_cluster.errors import DataDirectoryRefused
from codeq_cluster.raft.members import Memberships, Named
from codeq_cluster.raft.messages import MEMBERS, NO_OP
from codeq_cluster.raft.ports import LogStore

# The library's triple: command, index, term.
Entry = tuple[bytes, int, int]

# The rows to put, and the half-open ranges of keys to delete before them.
Rows = tuple[list[tuple[bytes, bytes]], list[tuple[bytes, bytes]]]

FIRST_INDEX = 1

LOG = b"log/"
LOG_END = b"log0"  # One past every key that starts with `log/`.
VOTE = b"vote"
MEMBERS_AT_FIRST = b"members"
# Bounds of one read of many rows: large enough to be fast, small enough for any node's memory.
LOAD_ROWS = 4096
LOAD_BYTES = 16 * 2**20
_BESIDE_BYTES = 24  # What a message has of an entry beside its command, at most.
_VERSION = 1
_HEAD = struct.Struct(">BIQ")
_INDEX = struct.Struct(">Q")


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
        vote_term: This node's current term.
        voted_for: The node that has this node's vote in that term. A snapshot changes the log,
            never a promise.
        kept: The rows from entry `index` on, when the log holds it: this node has acknowledged
            them.
        members: The row with the members at that entry, from `members_row` or `stored_place`.
            Empty when the reader of the log supplies them.
    """
    log = kept or [entry_row(NO_OP, index, term)]
    beside = [(VOTE, encode_vote(vote_term, voted_for))]
    if members:
        beside.append((MEMBERS_AT_FIRST, members))
    return [*log, *beside], [(LOG, LOG_END)]


def rows_from(store: LogStore, index: int) -> list[tuple[bytes, bytes]]:
    """Return the stored rows of the log from an entry on, without decoding them.

    Raises:
        StorageFailed: The disk refused.
    """
    found: list[tuple[bytes, bytes]] = []
    start = key_of(index)
    while rows := store.scan(start, LOG_END, limit=LOAD_ROWS, bytes_max=LOAD_BYTES):
        found += rows
        start = rows[-1][0] + b"\x00"
    return found


def stored_term(get: Callable[[bytes], bytes | None], index: int) -> int | None:
    """Return the term of a stored entry, or None when the store does not hold it.

    Raises:
        ValueError: The row is damaged.
    """
    value = get(key_of(index))
    return None if value is None else decode_row(key_of(index), value)[2]


def stored_vote(get: Callable[[bytes], bytes | None]) -> tuple[int, str | None]:
    """Return the stored term and the node voted for in it; (0, None) when there is none.

    Raises:
        DataDirectoryRefused: The row is damaged.
    """
    value = get(VOTE)
    return (0, None) if value is None else decode_vote(value)


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
    base = get(MEMBERS_AT_FIRST)
    term = stored_term(get, index)
    if base is None:
        return term, b""
    found = Memberships()
    found.begin(*_decode_members(base))
    for key, value in rows(LOG, key_of(index + 1)):
        # Most entries name no members, so their checksums are not computed here.
        if value[_HEAD.size : _HEAD.size + 1] == MEMBERS:
            command, at, _ = decode_row(key, value)
            found.append(at, command[1:])
    return term, encode_members(*found.newest)


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
    found.begin(*named_at(get(MEMBERS_AT_FIRST), bootstrap))
    last = FIRST_INDEX
    for command, index, _ in stored_entries(rows):
        last = index
        if command[:1] == MEMBERS:
            found.append(index, command[1:])
    return last, found.newest[1]


def stored_entries(
    rows: Callable[[bytes, bytes], Iterable[tuple[bytes, bytes]]],
) -> Iterator[Entry]:
    """Yield the stored entries; raises ValueError if a row is damaged."""
    return (decode_row(key, value) for key, value in rows(key_of(0), LOG_END))


def key_of(index: int) -> bytes:
    """Return the key of an entry's row."""
    return LOG + _INDEX.pack(index)


def entry_row(command: bytes, index: int, term: int) -> tuple[bytes, bytes]:
    """Return an entry's row."""
    head = _HEAD.pack(_VERSION, _row_crc(command, index, term), term)
    return LOG + _INDEX.pack(index), head + command


def _row_crc(command: bytes, index: int, term: int) -> int:
    return zlib.crc32(command, zlib.crc32(_INDEX.pack(index) + _INDEX.pack(term)))


def decode_row(key: bytes, value: bytes) -> Entry:
    """Return the entry in a row; raises ValueError if it is damaged, or of another version."""
    if len(key) != len(LOG) + _INDEX.size:
        raise ValueError("its key has the wrong length")
    if len(value) <= _HEAD.size:
        raise ValueError("it is cut short")
    (index,) = _INDEX.unpack_from(key, len(LOG))
    version, crc, term = _HEAD.unpack_from(value)
    if version != _VERSION:
        raise ValueError(f"its format is {version}, this release reads {_VERSION}")
    command = value[_HEAD.size :]
    if _row_crc(command, index, term) != crc:
        raise ValueError("its checksum does not fit")
    return command, index, term


def encode_vote(term: int, voted_for: str | None) -> bytes:
    """Return the row of a term and the vote in it."""
    return _encode_numbered(term, (voted_for or "").encode())


def decode_vote(value: bytes) -> tuple[int, str | None]:
    """Return the term and the vote in a row; raises DataDirectoryRefused."""
    term, voted_for = _decode_numbered("vote", value)
    return term, voted_for.decode() or None


def encode_members(index: int, membership: Membership) -> bytes:
    """Return the row of the members at an entry."""
    return _encode_numbered(index, codec.encode(membership))


def named_at(base: bytes | None, bootstrap: Membership | None) -> Named:
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


def fitting(entries: Iterable[Entry], bytes_max: int) -> list[Entry]:
    """Return the first entries, as many as take `bytes_max` in a message, but at least one."""
    fit: list[Entry] = []
    total = 0
    for entry in entries:
        total += len(entry[0]) + _BESIDE_BYTES
        if fit and total > bytes_max:
            break
        fit.append(entry)
    return fit


class EntryCache:
    """The newest entries of a log in memory, as many as fit: from `first` to the last one.

    Attributes:
        first: Index of the oldest entry here.
        at: Returns the entry at an index from there on.
    """

    def __init__(self, bytes_max: int) -> None:
        self.first = 1
        self._bytes_max = bytes_max
        self._bytes = 0
        self._entries: dict[int, Entry] = {}
        self.at: Callable[[int], Entry] = self._entries.__getitem__

    def put(self, entry: Entry) -> None:
        """Add the log's next entry."""
        self._entries[entry[1]] = entry
        self._bytes += len(entry[0])

    def truncate(self, start: int, last: int) -> None:
        """Drop the entries from `start` to `last`, the log's last one."""
        for index in range(max(start, self.first), last + 1):
            self._drop(index)
        self.first = min(self.first, start)

    def trim(self, floor: int) -> None:
        """Drop the entries before `floor`."""
        for index in range(self.first, floor):
            self._drop(index)
        self.first = max(self.first, floor)

    def evict(self, end: int) -> None:
        """Drop the oldest entries before `end` that are too many."""
        while self._bytes > self._bytes_max and self.first < end:
            self._drop(self.first)
            self.first += 1

    def _drop(self, index: int) -> None:
        self._bytes -= len(self._entries.pop(index)[0])
