"""Unique keys of one simulated shard, counted again from its tasks with every entry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Role, Task
from codeq_cluster.core.unique import Holder, scope_of, unique_of
from codeq_cluster.core.uniques import count

_Name = tuple[str, str]
_ROLES = (Role.HOLDER.value.encode(), Role.NEXT.value.encode())
_PREFIX = keyspace.item_prefix(ItemKind.UNIQUE)


class UniqueFault(AssertionError):
    """A unique key has two tasks of one role, or its row names others; the text says how."""


class UniqueRows:
    """The unique keys of a shard, as the first replica of it applies its entries."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}  # Those that hold a key, or are next.
        self._rows: dict[_Name, Holder] = {}

    def written(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """Check an entry.

        Raises:
            UniqueFault: A row is not what its tasks say.
        """
        touched = False
        for key, value in mutations.items():
            if key.startswith(keyspace.TASK_PREFIX):
                touched = self._task(key.removeprefix(keyspace.TASK_PREFIX), value) or touched
            elif key.startswith(_PREFIX):
                self._row(key, value)
                touched = True
        if not touched:
            return
        counted: dict[_Name, Holder] = {}
        roles: Counter[tuple[str, str, Role]] = Counter()
        for task in self._tasks.values():
            count(counted, task)
            unique = unique_of(task)
            assert unique is not None
            roles[task.tenant, scope_of(task), unique.role] += 1
        for (_, scope, role), number in roles.items():
            if number > 1:
                raise UniqueFault(f"{scope}: {number} tasks are {role.value}")
        if counted != self._rows:
            name = min(set(counted.items()) ^ set(self._rows.items()), key=str)[0]
            raise UniqueFault(f"{name}: {self._rows.get(name)} is {counted.get(name)} by its tasks")

    def _task(self, task_id: bytes, value: bytes | None) -> bool:
        name = task_id.decode()
        had = self._tasks.pop(name, None) is not None
        # By the bytes alone: calls of the product are counted, and these would be.
        if value is None or not any(role in value for role in _ROLES):
            return had
        task = records.decode_task(value)
        unique = unique_of(task)
        if unique is not None and unique.role is not Role.FREE:
            self._tasks[name] = task
            return True
        return had

    def _row(self, key: bytes, value: bytes | None) -> None:
        _, tenant, name = keyspace.item_parts(key)
        self._rows.pop((tenant, name), None)
        if value is not None:
            item = records.decode_item(value)
            assert isinstance(item, Holder)
            self._rows[tenant, name] = item
