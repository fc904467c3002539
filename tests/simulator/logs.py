"""Logs of tasks of one simulated shard, counted again with every entry that touches one."""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.log_line import LINES_MAX, LogLine
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Durable

_PREFIX = keyspace.item_prefix(ItemKind.LOG)


class LogFault(AssertionError):
    """A task's log is too long, not what the task says, or the task is gone."""


class LogRows:
    """The lines of a shard, as the first replica of it applies its entries."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, LogLine]] = {}

    def written(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """Check an entry.

        Raises:
            LogFault: The rows of a task that it touches are not what the task says.
        """
        touched: set[str] = set()
        for key, value in mutations.items():
            if key.startswith(_PREFIX):
                _, _, name = keyspace.item_parts(key)
                task_id, _, number = name.rpartition(".")
                touched.add(task_id)
                lines = self._lines.setdefault(task_id, {})
                lines.pop(int(number, 16), None)
                if value is not None:
                    row = records.decode_item(value)
                    assert isinstance(row, LogLine)
                    lines[row.number] = row
            elif key.startswith(keyspace.TASK_PREFIX):
                task_id = key.removeprefix(keyspace.TASK_PREFIX).decode()
                if task_id in self._lines:
                    touched.add(task_id)
        for task_id in touched:
            self._check(task_id, mutations.get(keyspace.task(task_id)))

    def _check(self, task_id: str, record: bytes | None) -> None:
        lines = self._lines[task_id]
        if not lines:
            del self._lines[task_id]
        if record is None:
            if lines:
                raise LogFault(f"{len(lines)} lines of {task_id} stand without a change of it")
            return
        more = records.decode_task(record).more
        says = (more.durable if more is not None else None) or Durable()
        if len(lines) > LINES_MAX:
            raise LogFault(f"{task_id} has {len(lines)} lines")
        size = sum(line.size for line in lines.values())
        last = [*range(says.logged - len(lines) + 1, says.logged + 1)]
        if (says.lines, says.line_bytes, last) != (len(lines), size, sorted(lines)):
            raise LogFault(f"{task_id} says {says}, and has the lines {sorted(lines)}")
