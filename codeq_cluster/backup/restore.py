"""Restore: makes a new cluster's data directories from a backup.

No log of the old cluster continues. Every node's log starts at one entry that the state includes:
the same entry, term and digest on every node, as after a snapshot. Its term is above every term of
the backup, so that no log of the old cluster ever counts as longer.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from pathlib import Path

from msgspec.structs import replace

from codeq_cluster.backup import manifest as manifests
from codeq_cluster.backup.apart import (
    RELAYS,
    all_fit,
    carries_apart,
    refuse_apart,
    without_its_keys,
)
from codeq_cluster.backup.catalogue import known_rows_of
from codeq_cluster.backup.manifest import BackupManifest, Part
from codeq_cluster.backup.resharding import shard_of_row
from codeq_cluster.backup.row_faults import row_fault
from codeq_cluster.backup.rows import CLOCK, SEQ, Row
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.backup.tenant_rows import OneTenant, tenant_name, tenant_of
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.mutations import Recount
from codeq_cluster.core import lanes, uniques
from codeq_cluster.core.dependencies import Dependencies
from codeq_cluster.core.dependencies import restored as restored_row
from codeq_cluster.core.flowing import restored, restored_without
from codeq_cluster.core.groups import Group
from codeq_cluster.core.items import KIND_OF, Item
from codeq_cluster.core.lane import FlowRule, KeyRule, Lane
from codeq_cluster.core.placing import is_apart, once_name, pin_of, without_keys
from codeq_cluster.core.relays import Relay, RelayedTask, RelayLink
from codeq_cluster.core.schedules import PAUSED_BY_RESTORE, Schedule, held_back
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind, Place
from codeq_cluster.core.tally import GROUPS, KEY_RULES, SCHEDULES, Tally
from codeq_cluster.core.unique import Holder
from codeq_cluster.errors import BackupFailed
from codeq_cluster.raft.journal_rows import rows_after_snapshot
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.directory import new_directory
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache

log = logging.getLogger(__name__)

_DIGEST_BYTES = 16
_BATCH_BYTES = 2**20
_PAGE = 256
# A new log begins at 1; the restored entry must come later.
_INDEX_MIN = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSource:
    """One backup from which a cluster is made."""

    place: BackupTarget
    manifest: BackupManifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The cluster to be made.

    Attributes:
        tenant: Only this one, as shown to users; None for all.
        forget_keys: Leave out idempotency keys whose task belongs on another shard; without it they
            are refused.
        run_schedules: Schedules go on; without it they are paused, since the cluster of the backup
            may still run.
    """

    cluster_id: str
    shards: int
    tenant: str | None = None
    forget_keys: bool = False
    run_schedules: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """The restored state.

    Attributes:
        index: The entry every shard begins with.
        term: Of that entry.
        rows: Written, indexes and counters included.
        forgotten_keys: Idempotency keys that are left out.
        unreadable: Records that are left out because they cannot be read, with what belongs to
            them.
    """

    index: int
    term: int
    tasks: int
    rows: int
    forgotten_keys: int
    unreadable: int


def restore(
    sources: Sequence[RestoreSource],
    wanted: Wanted,
    *,
    into: Path,
    node_id: str,
    passed: Callable[[int], None] = lambda _size: None,
) -> Restored:
    """Make one node's data directory; blocks.

    The same sources and the same cluster make the same state on every node.

    Args:
        sources: A backup, then exports of tenants that none of the earlier ones has.
        into: The directory, empty or missing.
        passed: Called with the bytes of each piece that is read.

    Raises:
        DataDirectoryRefused: The directory is not empty, in use or not writable.
        BackupDamaged: A backup is damaged; no node can then use the directory.
        BackupFailed: A backup cannot be read, or does not fit this cluster.
        StorageFailed: The disk refused.
    """
    _check_sources(sources)
    for source in () if wanted.forget_keys else sources:
        read = (_rows(source, part, wanted, lambda _size: None) for part in source.manifest.parts)
        old = source.manifest.shards
        refuse_apart(chain.from_iterable(read), old=old, new=wanted.shards)
    parts = [part for source in sources for part in source.manifest.parts]
    index = max(_INDEX_MIN, *(part.index for part in parts)) + 1
    term = max(part.term for part in parts) + 1
    with new_directory(
        into, cluster_id=wanted.cluster_id, node_id=node_id, shards=wanted.shards
    ) as path_of:
        settings = StoreSettings()
        cache = new_cache(settings)
        with ExitStack() as stack:
            stores = []
            for shard in range(wanted.shards):
                store = RocksShard(path_of(shard), settings=settings, cache=cache)
                stack.callback(store.close)
                stores.append(store)
            filling = _Filling([_Shard(store) for store in stores], wanted)
            added = {source.manifest.tenant or "" for source in sources[1:]}
            for source in sources:
                own = source.manifest.tenant
                others = {tenant_name(shown) for shown in added if shown != own}
                filling.take(source, passed, others=others)
            if wanted.tenant is not None and not filling.rows:
                raise BackupFailed(f"the backup holds nothing of a tenant {wanted.tenant}")
            filling.end(
                clock_ms=max(part.clock_ms for part in parts), seq=max(part.seq for part in parts)
            )
            for shard, store in enumerate(stores):
                digest = _digest(sources, wanted, shard)
                puts, _ = rows_after_snapshot(index, term, vote_term=term, voted_for=None)
                store.write(
                    rows={},
                    index=index,
                    digest=digest,
                    delete_ranges=(),
                    log_rows=dict(puts),
                    mark=0,
                    wait=True,
                )
                store.sync()
    return Restored(
        index=index,
        term=term,
        tasks=filling.tasks,
        rows=filling.rows,
        forgotten_keys=filling.forgotten,
        unreadable=filling.unreadable,
    )


class _Shard:
    """One shard being filled."""

    def __init__(self, store: RocksShard) -> None:
        self.store = store
        self.recount = Recount()
        self.lanes: dict[tuple[str, str], Lane] = {}
        self.uniques: dict[tuple[str, str], Holder] = {}
        self.relays: Counter[int] = Counter()  # By the shard they go to.
        self.tallies: Counter[tuple[str, str]] = Counter()  # By tenant and id.
        self._rows: dict[bytes, bytes | None] = {}
        self._size = 0

    def has(self, key: bytes) -> bool:
        return self._rows.get(key) is not None or self.store.state.get(key) is not None

    def stored(self, prefix: bytes) -> Iterator[Row]:
        start, end = keyspace.prefix_range(prefix)
        while page := self.store.state.scan(start, end, _PAGE):
            yield from page
            start = page[-1][0] + b"\0"

    def count(self, item: Item) -> None:
        """Count an item in its tenant's tally and in its key, if it is one of those."""
        if isinstance(item, Schedule):
            self.tallies[item.tenant, SCHEDULES] += 1
        elif isinstance(item, KeyRule):
            self.tallies[item.tenant, KEY_RULES] += 1
            lanes.count_own(self.lanes, item)
        elif isinstance(item, Group) and not item.ended_ms:
            self.tallies[item.tenant, GROUPS] += 1

    def put(self, key: bytes, value: bytes | None) -> None:
        self._rows[key] = value
        self._size += len(key) + len(value or b"")
        if self._size >= _BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._rows:
            state = self.store.state
            self.store.write(
                rows=self._rows,
                index=state.applied_index,
                digest=state.digest,
                delete_ranges=(),
                log_rows={},
                mark=0,
                wait=True,
            )
            self._rows.clear()
            self._size = 0


class _Filling:
    def __init__(self, shards: Sequence[_Shard], wanted: Wanted) -> None:
        self._shards = shards
        self._wanted = wanted
        self._count = wanted.shards
        self.tasks = 0
        self.rows = 0
        self.forgotten = 0
        self.unreadable = 0
        # Of a backup of all tenants: the last relay that acted, by its shard and the other one.
        self._acted: dict[tuple[int, int], int] | None = None
        self._old_count = 0
        self._exported: set[str] = set()
        self._pins: dict[tuple[str, str], str] = {}
        self._fits = True  # The source's number of shards is a multiple of this one.
        self._bare: set[str] = set()  # The ids of tasks that have come without their keys.
        self._apart: set[bytes] = set()  # The keys of relays whose tasks go without theirs.
        self._lost: set[str] = set()  # The ids of tasks and deliveries that cannot be read.

    def take(
        self, source: RestoreSource, passed: Callable[[int], None], *, others: Collection[str]
    ) -> None:
        """Add the rows of a backup; `others` are the tenants that come from another one."""
        if source.manifest.tenant is None and self._wanted.tenant is None:
            self._acted, self._old_count = {}, source.manifest.shards
        if source.manifest.tenant is not None:
            self._exported.add(tenant_name(source.manifest.tenant))
        self._fits = all_fit(source.manifest.shards, self._count)
        for part in source.manifest.parts:
            for row in _rows(source, part, self._wanted, passed):
                tenant = tenant_of(row)
                if tenant in others:
                    raise BackupFailed(f"tenant {tenant or '_'} is in more than one of the backups")
                try:
                    why = row_fault(row)
                    if why:
                        raise records.RecordInvalid(why)
                    self._add(row, part.shard)
                except records.UNREADABLE_ROW as error:
                    # One record must not keep all others from coming back, nor may one that no
                    # cluster can have written stop the timers of its shard.
                    extra = {"key": repr(row[0]), "error": str(error)}
                    log.warning("unreadable record left out", extra=extra)
                    self.unreadable += 1
                    self._lost.add(keyspace.last_id(row[0]))

    def end(self, *, clock_ms: int, seq: int) -> None:
        """Write the rows that follow from all others: indexes, counters, clock and sequence."""
        for shard in self._shards:
            shard.flush()
        for shard in self._shards:
            self._send_relays_again(shard)
        for shard in self._shards:
            for (tenant, of), count in shard.tallies.items():
                self._put_item(shard, Tally(tenant=tenant, id=of, count=count))
            for key, value in shard.recount.rows().items():
                self._put(shard, key, value)
            self._put_keys(shard)
            for key, number in ((CLOCK, clock_ms), (SEQ, seq)):
                if number:
                    self._put(shard, key, number.to_bytes(8))
            shard.flush()

    def _put_keys(self, shard: _Shard) -> None:
        for holder in shard.uniques.values():
            self._put_item(shard, uniques.restored(holder))
        for lane in shard.lanes.values():
            self._put_item(shard, lane)
        held = {(lane.tenant, lane.queue) for lane in shard.lanes.values() if lane.held}
        for queue in self._pins.keys() | held:
            if not shard.has(keyspace.item(ItemKind.FLOW, *queue)):
                self._put_item(shard, restored_without(*queue, pinned=self._pins.get(queue, "")))

    def _add(self, row: Row, source: int) -> None:
        key, value = row
        shard = self._shards[shard_of_row(row, source=source, shards=self._count)]
        match keyspace.family(key):
            case Family.TASK:
                task = records.decode_task(value)
                if not self._fits and is_apart(task, self._count):
                    self._bare.add(task.id)
                    task = without_keys(task)
                    value = records.encode(task)
                    self.forgotten += 1
                if shard.has(key):
                    raise BackupFailed(f"task {task.id} is in more than one of the backups")
                self._put(shard, key, value)
                for index_key in keyspace.index_keys(task):
                    self._put(shard, index_key, b"")
                shard.recount.add(task)
                lanes.count(shard.lanes, task)
                self._pins |= pin_of(task)
                uniques.count(shard.uniques, task)
                self.tasks += 1
            case Family.IDEMPOTENCY:
                task_id = records.decode_key_row(value).task_id
                if task_id not in self._lost and task_id not in self._bare:
                    self._put(shard, key, value)
            case Family.ITEM:
                self._add_item(shard, row, source)
            case _:
                if keyspace.last_id(key) not in self._lost:
                    self._put(shard, key, value)

    def _add_item(self, shard: _Shard, row: Row, source: int) -> None:
        key = row[0]
        item = _begun(records.decode_item(row[1]))
        if item.place is Place.ORIGIN and shard.has(key):
            # One request acted on several shards, and this shard gets all its records.
            item = replace(item, id=f"{item.id}.{source}")
            key = b"%b.%d" % (key, source)
        if shard.has(key):
            # Its index rows would stay beside those of the second, and name nothing.
            raise records.RecordInvalid(f"item {item.id} is there twice")
        shard.count(item)
        if isinstance(item, RelayLink):
            way, _, other = item.id.partition(".")
            if way == "from" and self._acted is not None:
                self._acted[source, int(other)] = item.number
        elif isinstance(item, Relay):
            self._put(shard, key, row[1])  # All tasks must be there before its other rows.
            if not self._fits and carries_apart(item, self._count):
                self._apart.add(key)
        else:
            if isinstance(item, Schedule) and not self._wanted.run_schedules:
                item = held_back(item, by=PAUSED_BY_RESTORE, now_ms=item.updated_ms)
            self._put_item(shard, item)
        for flow in restored(item):
            for each in self._shards:
                self._put_item(each, flow)

    def _send_relays_again(self, shard: _Shard) -> None:
        """Let this cluster send each relay that has not acted yet, even if it was taken.

        The copy of the other shard may be from before that.
        """
        relays = [
            (key, without_its_keys(relay) if key in self._apart else relay)
            for key, value in shard.stored(RELAYS)
            if isinstance(relay := records.decode_item(value), Relay)
        ]
        # In their order: one may be of no use before another.
        for key, relay in sorted(relays, key=lambda each: each[1].number):
            if self._has_acted(relay):
                shard.put(key, None)
                continue
            to = relay.effect.home(self._count)
            shard.relays[to] += 1
            again = replace(relay, to=to, number=shard.relays[to], taken_ms=0, expires_ms=0)
            self._put_item(shard, again)
            self.forgotten += key in self._apart

    def _has_acted(self, relay: Relay) -> bool:
        """Return whether the other shard's copy is from after a relay."""
        if isinstance(relay.effect, FlowRule):
            return True  # What it brings follows from the topics.
        if self._acted is not None and relay.tenant not in self._exported:
            origin = shard_of(relay.task_id, self._old_count)
            return self._acted.get((relay.to, origin), 0) >= relay.number
        # One tenant's rows do not tell; a task that was deleted meanwhile comes again.
        if not isinstance(relay.effect, RelayedTask):
            return False  # Noted twice, it acts once.
        create, shard = relay.effect.create, self._shards[relay.effect.home(self._count)]
        if not create.idempotency_key:
            return shard.has(keyspace.task(create.id))
        return shard.has(keyspace.idempotency(create.tenant, once_name(create)))

    def _put_item(self, shard: _Shard, item: Item) -> None:
        self._put(
            shard, keyspace.item(KIND_OF[type(item)], item.tenant, item.id), records.encode(item)
        )
        for index_key in keyspace.item_index_keys(item):
            self._put(shard, index_key, b"")

    def _put(self, shard: _Shard, key: bytes, value: bytes) -> None:
        shard.put(key, value)
        self.rows += 1


def _begun(item: Item) -> Item:
    """Return an item as it begins in a restored cluster."""
    return restored_row(item) if isinstance(item, Dependencies) else item


def _rows(
    source: RestoreSource, part: Part, wanted: Wanted, passed: Callable[[int], None]
) -> Iterator[Row]:
    one = None if wanted.tenant is None else OneTenant(tenant_name(wanted.tenant))
    rows = known_rows_of(source.place, source.manifest, part, passed=passed)
    return rows if one is None else one.passing(rows)


def _check_sources(sources: Sequence[RestoreSource]) -> None:
    for source in sources:
        manifests.check_known(source.manifest)
    tenants = [source.manifest.tenant for source in sources]
    if None in tenants[1:]:
        raise BackupFailed("only exports of one tenant can be added to a backup")
    if len(set(tenants)) != len(tenants):
        raise BackupFailed("a tenant is in more than one of the backups")


def _digest(sources: Sequence[RestoreSource], wanted: Wanted, shard: int) -> bytes:
    """Return the digest that nodes compare: equal only if made from the same, in the same way."""
    made = blake2b(digest_size=_DIGEST_BYTES)
    for source in sources:
        made.update(manifests.digest(manifests.encode(source.manifest)))
    tenant = "" if wanted.tenant is None else f"/{wanted.tenant}"
    running = "+schedules" if wanted.run_schedules else ""
    chosen = f"{wanted.forget_keys}{tenant}{running}"
    made.update(f"{wanted.cluster_id} {wanted.shards} {shard} {chosen}".encode())
    return made.digest()
