"""Tenant reader: one tenant's tasks of a backup, each with all rows that belong to it.

A backup has its rows family by family, each ordered by task id. The families are read side by side,
so that a task meets its payload, result and callbacks. Only the chunks being read are in memory;
the price is that a part is read once for each family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from codeq_cluster.backup.catalogue import known_rows_of
from codeq_cluster.backup.manifest import BackupManifest, Part
from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.backup.tenant_rows import last_part, tenant_of
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core import task_ids
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.checkpoint import Checkpoint
from codeq_cluster.core.creating import on_its_way
from codeq_cluster.core.dependencies import Dependencies, Input, Verdict, input_id
from codeq_cluster.core.durable import Signal, Step
from codeq_cluster.core.items import DELIVERIES_MAX, Delivery, Governing, Item
from codeq_cluster.core.log_line import LogLine
from codeq_cluster.core.placing import is_apart, once_name, placed_again
from codeq_cluster.core.relays import Relay, RelayedTask
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Result, Task
from codeq_cluster.errors import BackupDamaged

Deliveries = tuple[tuple[Delivery, Result], ...]


@dataclass(slots=True)
class LeftOut:
    """Counts of rows that are not exported.

    Attributes:
        callbacks: Of deleted tasks, since a second import could not see that the first has brought
            them; and of one task, those beyond the newest `DELIVERIES_MAX`.
    """

    callbacks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantReader:
    """One tenant in one backup.

    Attributes:
        tenant: Its name; empty for the default tenant.
        parents: What ids tasks get that others wait for; see `placed_parents`.
    """

    place: BackupTarget
    manifest: BackupManifest
    tenant: str
    left_out: LeftOut = field(default_factory=LeftOut)
    parents: Mapping[str, str] = field(default_factory=dict)

    def tasks(
        self, part: Part, *, passed: Callable[[int], None] = lambda _count: None
    ) -> Iterator[Arrival]:
        """Yield the tenant's tasks of a shard, by id, each with the rows that belong to it.

        Args:
            passed: Called for each task of any tenant.

        Raises:
            BackupDamaged: The rows differ from those written, or do not belong together.
            BackupFailed: They cannot be read.
        """
        payloads = _Beside(self._rows(part, Family.PAYLOAD))
        results = _Beside(self._rows(part, Family.RESULT))
        callbacks = _Callbacks(
            _Beside(self._deliveries(part)), _Beside(self._bodies(part)), self.left_out
        )
        waits = _Beside(self._items(part, ItemKind.DEPENDENCIES))
        inputs = _Beside(self._items(part, ItemKind.INPUT))
        steps = _Beside(self._items(part, ItemKind.STEP))
        signals = _Beside(self._items(part, ItemKind.SIGNAL))
        logs = _Beside(self._items(part, ItemKind.LOG))
        checkpoints = _Beside(self._items(part, ItemKind.CHECKPOINT))
        for key, value in self._rows(part, Family.TASK):
            passed(1)
            if tenant_of((key, value)) != self.tenant:
                continue  # Another tenant's, or nobody knows whose: its record cannot be read.
            task = records.decode_task(value)
            task_id = last_part(key)
            payload = payloads.at(task_id)
            if payload is None or task.id.encode() != task_id:
                raise BackupDamaged(f"{self.manifest.id}/{part.file}: a task lacks its payload")
            result = results.at(task_id) if task.has_result else None
            row = waits.at(task_id)
            depends = None if row is None else records.decode_item(row)
            assert depends is None or isinstance(depends, Dependencies)
            depends = depends and self._on(depends)
            row = checkpoints.at(task_id)
            checkpoint = None if row is None else records.decode_item(row)
            assert checkpoint is None or isinstance(checkpoint, Checkpoint)
            yield Arrival(
                task=task,
                payload=payload.decode(),
                result=None if result is None else records.decode_result(result),
                deliveries=self._newest(tuple(callbacks.of(task))),
                dependencies=depends,
                inputs=() if depends is None else tuple(_inputs(inputs, depends)),
                beside=(*_durable(steps, task), *_durable(signals, task), *_durable(logs, task)),
                checkpoint=checkpoint,
            )
        callbacks.rest()

    def placed_parents(self, *, tenant: str, shards: int) -> dict[str, str]:
        """Return the ids of tasks that others wait for and whose keys place them, by their old ids.

        Another tenant that imports them gives them ids on the shards of these keys. An import sees
        only a part of the tasks, so it cannot find these ids from their dependents.

        Args:
            tenant: The tenant that receives them; see `task_ids.kept`.
            shards: The new number of shards.
        """
        found: dict[str, str] = {}
        for task in self._awaited():
            home = placed_again(task, tenant, shards)
            if home is not None:
                found[task.id] = task_ids.kept(tenant, task.id, home=home, shards=shards)
        return found

    def _awaited(self) -> Iterator[Task]:
        """Yield the tasks on whose ends others depend, those on their way among both."""
        awaited: set[bytes] = set()
        for part in self.manifest.parts:
            for _, value in self._items(part, ItemKind.DEPENDENCIES):
                row = records.decode_item(value)
                assert isinstance(row, Dependencies)
                awaited |= _awaited_by(row)
        for arrival in self._relayed():
            awaited |= _awaited_by(arrival.dependencies)
        for part in self.manifest.parts if awaited else ():
            for key, value in self._rows(part, Family.TASK):
                if last_part(key) in awaited and tenant_of((key, value)) == self.tenant:
                    yield records.decode_task(value)
        relayed = (arrival.task for arrival in self._relayed()) if awaited else ()
        yield from (task for task in relayed if task.id.encode() in awaited)

    def _on(self, row: Dependencies) -> Dependencies:
        """Return what a task waits for, under the ids that `parents` gives."""
        if not any(each.parent in self.parents for each in row.of):
            return row
        of = (replace(each, parent=self.parents.get(each.parent, each.parent)) for each in row.of)
        return replace(row, of=tuple(of))

    def on_their_way(self) -> Iterator[Arrival]:
        """Yield the tasks that results have made for another shard and that no copy has.

        Raises as `tasks`.
        The copies of the shards are not of one instant: a relay may be on its way although its task
        has ended, or taken although the task is missing.
        """
        keyed: dict[str, Arrival] = {}  # By the name of its idempotency key.
        others: dict[bytes, Arrival] = {}  # By id.
        for arrival in self._relayed():
            task = arrival.task
            if task.idempotency_key:
                keyed[once_name(task)] = arrival
            else:
                others[task.id.encode()] = arrival
        for part in self.manifest.parts if keyed else ():
            for key, _ in self._rows(part, Family.IDEMPOTENCY):
                owner, name = tenant_key(key)
                if owner == self.tenant:
                    keyed.pop(name, None)
        for part in self.manifest.parts if others else ():
            for key, _ in self._rows(part, Family.TASK):
                others.pop(last_part(key), None)
        yield from keyed.values()
        yield from others.values()

    def _relayed(self) -> Iterator[Arrival]:
        """Yield the task of every relay of the tenant."""
        prefix = keyspace.item_prefix(ItemKind.RELAY, self.tenant)
        for part in self.manifest.parts:
            for key, value in self._rows(part, Family.ITEM):
                if not key.startswith(prefix):
                    continue
                relay = records.decode_item(value)
                assert isinstance(relay, Relay)
                if isinstance(relay.effect, RelayedTask):
                    effect = relay.effect
                    task, row = on_its_way(effect, now_ms=relay.created_ms)
                    payload = effect.create.payload
                    row = None if row is None else self._on(row)
                    yield Arrival(task=task, payload=payload, dependencies=row)

    def _newest(self, deliveries: Deliveries) -> Deliveries:
        """Return as many callbacks of a task as an import takes; count the others."""
        self.left_out.callbacks += max(0, len(deliveries) - DELIVERIES_MAX)
        newest = sorted(deliveries, key=lambda each: each[0].created_ms)[-DELIVERIES_MAX:]
        return deliveries if len(deliveries) <= DELIVERIES_MAX else tuple(newest)

    def governing(self, part: Part) -> Iterator[Governing]:
        """Yield the tenant's topics, pauses and subscriptions of a shard; raises as `tasks`."""
        for row in self._rows(part, Family.ITEM):
            if tenant_of(row) == self.tenant:
                item = records.decode_item(row[1])
                # The key's version stays: another cluster derives other keys from its own secret.
                if isinstance(item, Governing):
                    yield item

    def keys_apart(self, part: Part, *, tenant: str, shards: int) -> int:
        """Return how many tasks of a shard would be on another shard than their keys.

        Args:
            tenant: The tenant that receives them; see `task_ids.kept`.
            shards: The new number of shards.
        """
        apart = 0
        for row in self._rows(part, Family.TASK):
            if tenant_of(row) == self.tenant:
                task = replace(records.decode_task(row[1]), tenant=tenant)
                home = placed_again(task, tenant, shards)
                task_id = task_ids.kept(tenant, task.id, home=home, shards=shards)
                apart += is_apart(replace(task, id=task_id), shards)
        return apart

    def _deliveries(self, part: Part) -> Iterator[Row]:
        return self._items(part, ItemKind.DELIVERY)

    def _items(self, part: Part, kind: ItemKind) -> Iterator[Row]:
        prefix = keyspace.item_prefix(kind, self.tenant)
        rows = (row for row in self._rows(part, Family.ITEM) if row[0].startswith(prefix))
        return (row for row in rows if tenant_of(row) is not None)

    def _bodies(self, part: Part) -> Iterator[Row]:
        rows = self._rows(part, Family.BODY)
        return (row for row in rows if tenant_key(row[0])[0] == self.tenant)

    def _rows(self, part: Part, family: Family) -> Iterator[Row]:
        """Yield the rows of a family; stop reading after them."""
        met = False
        for row in known_rows_of(self.place, self.manifest, part, passed=lambda _size: None):
            if keyspace.family(row[0]) is family:
                met = True
                yield row
            elif met:
                return


class _Beside:
    """Rows by id, read in the order of their ids."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self._next: Row | None = next(rows, None)

    def at(self, row_id: bytes) -> bytes | None:
        """Return the value of this id; skip all rows before it."""
        while self._next is not None and last_part(self._next[0]) < row_id:
            self._next = next(self._rows, None)
        if self._next is None or last_part(self._next[0]) != row_id:
            return None
        return self._next[1]

    def item(self) -> Item | None:
        """Return the next value, which is an item's, without consuming it."""
        return None if self._next is None else records.decode_item(self._next[1])

    def skip(self) -> None:
        """Skip the next value."""
        self._next = next(self._rows, None)


def _awaited_by(row: Dependencies | None) -> set[bytes]:
    """Return the ids of the tasks whose ends it still depends on."""
    of = () if row is None else row.of
    return {each.parent.encode() for each in of if each.verdict is not Verdict.MET}


def _inputs(rows: _Beside, of: Dependencies) -> Iterator[Input]:
    """Yield what was handed to a task, in the order of the rows."""
    for name in sorted(input_id(of.id, place) for place in range(len(of.of))):
        row = rows.at(name.encode())
        if row is not None:
            item = records.decode_item(row)
            assert isinstance(item, Input)
            yield item


def _durable(rows: _Beside, task: Task) -> Iterator[Step | Signal | LogLine]:
    """Yield the steps of a task, the signals to it, or its log, in the order of the rows."""
    while (item := rows.item()) is not None:
        assert isinstance(item, Step | Signal | LogLine)
        task_id = item.id.partition(".")[0]
        if task_id > task.id:
            return
        rows.skip()
        if task_id == task.id:
            yield item


class _Callbacks:
    """Deliveries with their results, read in the order of their tasks' ids."""

    def __init__(self, items: _Beside, bodies: _Beside, left_out: LeftOut) -> None:
        self._items = items
        self._bodies = bodies
        self._left_out = left_out

    def of(self, task: Task) -> Iterator[tuple[Delivery, Result]]:
        """Yield the deliveries of a task."""
        while (delivery := self._first()) is not None and delivery.task_id <= task.id:
            self._items.skip()
            if delivery.task_id < task.id:
                self._left_out.callbacks += 1
                continue
            body = self._bodies.at(delivery.id.encode())
            if body is None:
                raise BackupDamaged(f"callback {delivery.id} lacks what it tells of")
            yield delivery, records.decode_result(body)

    def rest(self) -> None:
        """Count the remaining deliveries, whose tasks do not exist."""
        while self._first() is not None:
            self._items.skip()
            self._left_out.callbacks += 1

    def _first(self) -> Delivery | None:
        item = self._items.item()
        assert item is None or isinstance(item, Delivery)
        return item
