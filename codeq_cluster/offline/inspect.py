"""Inspect: reads a stopped node's directory without changing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.items import Item
from codeq_cluster.core.task import Counters, Task
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.raft.journal_rows import stored_end, stored_entries, stored_term, stored_vote
from codeq_cluster.raft.messages import MEMBERS, NO_OP
from codeq_cluster.storage.directory import stopped_directory, wal_of
from codeq_cluster.storage.identity import DirectoryIdentity
from codeq_cluster.storage.stored_shard import StoredShard
from codeq_cluster.storage.swap import settled
from codeq_cluster.storage.wal import SegmentDisk, stored_writes

_LIBRARY_FILE = "rocksdict-config.json"
_ALL = keyspace.prefix_range(b"codeq/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One shard in numbers.

    Attributes:
        applied: Index of the last entry in the state.
        term: Of that entry; None if the log lacks it.
        log_first: Index of the oldest entry of the log; 0 if it is empty.
        vote_term: The node's current term.
        voted_for: The candidate that has its vote in that term.
        rows: By family, in lower case.
    """

    shard: int
    applied: int
    term: int | None
    digest: str
    log_first: int
    log_last: int
    vote_term: int
    voted_for: str | None
    rows: dict[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """One node's replica of a shard.

    Attributes:
        applied: All entries up to here are committed.
        last: Entries after `applied` up to here are kept, and were perhaps never acknowledged.
        voters: Of the group, by this node's log.
    """

    shard: int
    applied: int
    last: int
    voters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """One entry of a log.

    Attributes:
        kind: `no-op` for a leader's own, `members` for a membership, `batch` for decisions.
        clock_ms: Of the last decision; 0 for a no-op.
        version: Of the format of a batch or a membership; 0 for a no-op.
        keys: The keys that it writes and deletes.
    """

    index: int
    term: int
    kind: str
    clock_ms: int
    keys: tuple[bytes, ...]
    version: int = 0


class StoppedNode:
    """The directory of a stopped node."""

    def __init__(self, identity: DirectoryIdentity, shards: list[StoredShard]) -> None:
        self.identity = identity
        self._shards = shards

    def summaries(self) -> Iterator[Summary]:
        """Yield the numbers of each shard; reads every row."""
        for number, shard in enumerate(self._shards):
            rows = Counter(keyspace.family(key).name.lower() for key, _ in shard.rows(*_ALL))
            first = last = 0
            for _, index, _ in stored_entries(shard.log_rows):
                first, last = first or index, index
            vote_term, voted_for = stored_vote(shard.log_get)
            yield Summary(
                shard=number,
                applied=shard.index,
                term=stored_term(shard.log_get, shard.index),
                digest=shard.digest.hex(),
                log_first=first,
                log_last=last,
                vote_term=vote_term,
                voted_for=voted_for,
                rows=dict(sorted(rows.items())),
            )

    def stands(self) -> Iterator[Stand]:
        """Yield each shard's replica; reads the logs, raises StorageFailed on damage."""
        for number, shard in enumerate(self._shards):
            with _damage_of_log(number):
                last, membership = stored_end(
                    shard.log_get, shard.log_rows, bootstrap=self.identity.bootstrap
                )
            yield Stand(shard=number, applied=shard.index, last=last, voters=membership.voters)

    def tasks(self) -> Iterator[tuple[int, Task]]:
        """Yield (shard, task), by shard and id."""
        for number, shard in enumerate(self._shards):
            for _, value in shard.rows(*keyspace.prefix_range(keyspace.TASK_PREFIX)):
                yield number, records.decode_task(value)

    def queues(self) -> Iterator[tuple[int, str, str, Counters]]:
        """Yield (shard, queue, tenant, counters), as stored."""
        for number, shard in enumerate(self._shards):
            for key, value in shard.rows(*keyspace.prefix_range(keyspace.STATS_PREFIX)):
                queue, tenant = keyspace.stats_parts(key)
                yield number, queue, tenant, records.decode_counters(value)

    def items(self) -> Iterator[tuple[int, Item]]:
        """Yield (shard, item), by shard, kind, tenant and id; those of known kinds."""
        for number, shard in enumerate(self._shards):
            for key, value in shard.rows(*keyspace.prefix_range(keyspace.ITEM_PREFIX)):
                if keyspace.knows_kind(key):
                    yield number, records.decode_item(value)

    def log(self) -> Iterator[tuple[int, Logged]]:
        """Yield (shard, entry), by shard and index; raises StorageFailed on damage."""
        for number, shard in enumerate(self._shards):
            with _damage_of_log(number):
                for command, index, term in stored_entries(shard.log_rows):
                    yield number, _logged(command, index, term)

    def row(self, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield (shard, value) of a row, from each shard that has it."""
        for number, shard in enumerate(self._shards):
            value = shard.get(key)
            if value is not None:
                yield number, value


@contextmanager
def stopped_node(path: Path) -> Iterator[StoppedNode]:
    """Open the directory of a stopped node without changing it.

    Raises:
        DataDirectoryRefused: It is in use, or is no data directory.
        StorageFailed: A shard cannot be read.
    """
    with stopped_directory(path) as identity, ExitStack() as stack:
        aside = Path(stack.enter_context(TemporaryDirectory(prefix="codeq-inspect-")))
        wal = wal_of(path, identity)
        shards = [
            stack.enter_context(StoredShard(mirrored(path.absolute(), shard, aside), wal=wal))
            for shard in range(identity.shards)
        ]
        if wal is not None:
            add_pending(wal, dict(enumerate(shards)))
        yield StoppedNode(identity, shards)


def add_pending(wal: SegmentDisk, shards: Mapping[int, StoredShard]) -> None:
    """Add to a stopped node's shards the log writes that only the write-ahead log has.

    Raises:
        StorageFailed: The write-ahead log is damaged or missing.
    """
    try:
        writes = stored_writes(wal, {number: shard.mark for number, shard in shards.items()})
    except DataDirectoryRefused as error:
        raise StorageFailed(str(error)) from error
    for number, shard in shards.items():
        for write in writes[number]:
            shard.pending.write(write.puts, write.delete_ranges)


@contextmanager
def _damage_of_log(shard: int) -> Iterator[None]:
    try:
        yield
    except (ValueError, DataDirectoryRefused) as error:
        raise StorageFailed(f"the log of shard {shard} is damaged: {error}") from error


def mirrored(path: Path, shard: int, aside: Path) -> Path:
    """Return a directory of links to a shard's files: opening one writes RocksDB's own file.

    If a crash has interrupted a swap for a snapshot, the links are to the files that a start would
    use.
    """
    mirror = aside / f"shard-{shard}"
    try:
        mirror.mkdir()
        for file in settled(path / mirror.name).iterdir():
            if file.name != _LIBRARY_FILE:
                (mirror / file.name).symlink_to(file)
    except OSError as error:
        raise StorageFailed(f"reading {mirror.name}: {error}") from error
    return mirror


def decoded(key: bytes, value: bytes) -> object:
    """Return a row's content, decoded if this version knows its family."""
    match keyspace.family(key):
        case Family.TASK:
            return records.decode_task(value)
        case Family.RESULT | Family.BODY:
            return records.decode_result(value)
        case Family.IDEMPOTENCY:
            return records.decode_key_row(value)
        case Family.STATS:
            return records.decode_counters(value)
        case Family.ITEM if keyspace.knows_kind(key):
            return records.decode_item(value)
        case Family.PAYLOAD:
            return value.decode()
        case _:
            return value.hex()


def _logged(command: bytes, index: int, term: int) -> Logged:
    if command == NO_OP:
        return Logged(index=index, term=term, kind="no-op", clock_ms=0, keys=())
    if command[:1] == MEMBERS:
        return Logged(
            index=index, term=term, kind="members", clock_ms=0, keys=(), version=command[1]
        )
    entry = entries.decode(command[1:])
    return Logged(
        index=index,
        term=term,
        kind="batch",
        clock_ms=entry.clock_ms,
        keys=tuple(sorted(entry.mutations)),
        version=command[1],
    )
