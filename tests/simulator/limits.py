"""Limits: the leases of limited queues of one simulated shard, counted with every entry.

A queue is counted by its own limit, and all queues that share one are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.lane import Flow
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task

_Name = tuple[str, str]
_FLOWS = keyspace.item_prefix(ItemKind.FLOW)


class LimitFault(AssertionError):
    """More tasks are in progress than a limit allows; the text says of which."""


class LimitRows:
    """The leases of a shard, as the first replica of it applies its entries."""

    def __init__(self) -> None:
        self._leased: dict[str, Task] = {}
        self._flows: dict[_Name, Flow] = {}
        self._before: Counter[_Name] = Counter()

    def written(self, mutations: Mapping[bytes, bytes | None], tasks: Mapping[str, Task]) -> None:
        """Check an entry.

        Args:
            mutations: Of the entry.
            tasks: All tasks of the shard after it, so that none is decoded again: calls of the
                product are counted.

        Raises:
            LimitFault: It has let more tasks go than a limit allows.
        """
        touched = False
        for key, value in mutations.items():
            if key.startswith(keyspace.TASK_PREFIX):
                task_id = key.removeprefix(keyspace.TASK_PREFIX).decode()
                had = self._leased.pop(task_id, None)
                task = tasks.get(task_id)
                if task is not None and task.state is State.LEASED:
                    self._leased[task_id] = task
                touched = touched or had is not None or task_id in self._leased
            elif key.startswith(_FLOWS) and value is not None:
                flow = records.decode_item(value)
                assert isinstance(flow, Flow)
                self._flows[flow.tenant, flow.id] = flow
                touched = True
        if touched:
            self._check()

    def _check(self) -> None:
        running: Counter[_Name] = Counter()
        for task in self._leased.values():
            queue = task.tenant, task.command.lower()
            running[queue] += 1
            flow = self._flows.get(queue)
            if flow is not None and flow.limit:
                running[task.tenant, f"@{flow.limit}"] += 1
        for name, flow in self._flows.items():
            rule = flow.per_queue
            most = rule.max_running if rule is not None else 0
            # A smaller limit, or a queue that comes to one, ends no lease.
            if most and running[name] > max(most, self._before[name]):
                raise LimitFault(f"{name}: {running[name]} of {most} tasks are in progress")
        self._before = running
