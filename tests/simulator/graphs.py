"""Graphs: the dependents of one simulated shard, checked with every entry that concerns them."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.dependencies import Dependencies, Verdict, edge_id
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Role, State, Task
from codeq_cluster.core.unique import unique_of


class EdgeFault(AssertionError):
    """A task waits for others although nobody will tell it of them; the text says how."""


class EdgeRows:
    """The rows of edges of a shard, as the first replica of it applies its entries.

    Args:
        shard: The shard.
        shards: Of the cluster.
    """

    def __init__(self, shard: int, shards: int) -> None:
        self._shard = shard
        self._shards = shards
        self._waiting: dict[str, Task] = {}
        self._rows: dict[str, Dependencies] = {}
        self._edges: set[str] = set()
        self._walks: set[str] = set()

    def written(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """Check an entry.

        Raises:
            EdgeFault: A task is HELD without exactly one cause, or has no way to what it waits for.
        """
        touched = False
        for key, value in mutations.items():
            if key.startswith(keyspace.TASK_PREFIX):
                task_id = key.removeprefix(keyspace.TASK_PREFIX).decode()
                touched = self._task(task_id, value) or touched
            elif key.startswith(keyspace.ITEM_PREFIX) and keyspace.knows_kind(key):
                touched = self._item(key, value) or touched
        for task in self._waiting.values() if touched else ():
            self._check(task)

    def _task(self, task_id: str, value: bytes | None) -> bool:
        had = self._waiting.pop(task_id, None) is not None
        task = None if value is None else records.decode_task(value)
        is_held = task is not None and task.state is State.HELD
        if task is not None and is_held and task.waits_for_others and not _is_next(task):
            self._waiting[task_id] = task
        return had or task_id in self._waiting

    def _item(self, key: bytes, value: bytes | None) -> bool:
        kind, _, item_id = keyspace.item_parts(key)
        # A task may wait for others and be waited for, so its two rows have the same id.
        match kind:
            case ItemKind.DEPENDENCIES:
                item = None if value is None else records.decode_item(value)
                had = self._rows.pop(item_id, None) is not None
                if isinstance(item, Dependencies):
                    self._rows[item_id] = item
                return had or item is not None
            case ItemKind.EDGE | ItemKind.WALK:
                known = self._edges if kind is ItemKind.EDGE else self._walks
                known.discard(item_id)
                if value is not None:
                    known.add(item_id)
            case _:
                pass
        return False

    def _check(self, task: Task) -> None:
        row = self._rows.get(task.id)
        waits = () if row is None else [x for x in row.of if x.verdict is Verdict.WAITS]
        if row is None or not (waits or row.expires_ms):
            raise EdgeFault(f"{task.id} waits for nothing")
        for each in waits:
            is_here = shard_of(each.parent, self._shards) == self._shard
            has_edge = edge_id(each.parent, task.id) in self._edges or each.parent in self._walks
            if not row.expires_ms and not (is_here and has_edge):
                raise EdgeFault(f"{task.id} waits for {each.parent}, and does not ask for it")


def _is_next(task: Task) -> bool:
    """Return whether a task waits for its unique key; W20 looks after these."""
    unique = unique_of(task)
    return unique is not None and unique.role is Role.NEXT
