"""Rows of tags of one simulated shard, compared with its tasks at every entry."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.tag_keys import TAG_PREFIX, tag_keys
from codeq_cluster.core.task import Task


class TagFault(AssertionError):
    """A task has rows of other tags than it says; the text says which."""


class TagRows:
    """The rows of tags of a shard, as the first replica of it applies its entries."""

    def __init__(self) -> None:
        self._rows: dict[str, set[bytes]] = {}  # By task.

    def written(self, mutations: Mapping[bytes, bytes | None], tasks: Mapping[str, Task]) -> None:
        """Check an entry.

        Args:
            mutations: Of the entry.
            tasks: All tasks after it.

        Raises:
            TagFault: The rows of a task are not what it says.
        """
        touched: set[str] = set()
        for key, value in mutations.items():
            if key.startswith(TAG_PREFIX):
                task_id = key[key.rindex(b"/") + 1 :].decode()
                rows = self._rows.setdefault(task_id, set())
                (rows.discard if value is None else rows.add)(key)
                touched.add(task_id)
            elif key.startswith(keyspace.TASK_PREFIX):
                touched.add(key[len(keyspace.TASK_PREFIX) :].decode())
        for task_id in touched:
            task = tasks.get(task_id)
            # Calls of the product are counted, so a task without tags makes none.
            tagged = task is not None and task.more is not None and task.more.tags
            wanted = set(tag_keys(task)) if task is not None and tagged else set()
            rows = self._rows.pop(task_id, set())
            if rows:
                self._rows[task_id] = rows
            if rows != wanted:
                raise TagFault(f"{task_id}: {min(rows ^ wanted)!r} is not as its task says")
