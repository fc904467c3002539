"""Lanes: the keys of one simulated shard, counted again from its tasks with every entry."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.lane import Flow, KeyRule, Lane
from codeq_cluster.core.lanes import count, is_stopped, unclaimed_max
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task

_Name = tuple[str, str]


class LaneFault(AssertionError):
    """A key's row contradicts its tasks, or a task waits without a cause; the text says how."""


class LaneRows:
    """The keys of a shard, as the first replica of it applies its entries."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}  # Those that have a key.
        self._lanes: dict[_Name, Lane] = {}
        self._flows: dict[_Name, Flow] = {}
        self._own: dict[_Name, KeyRule] = {}

    def written(self, mutations: Mapping[bytes, bytes | None]) -> None:
        """Check an entry.

        Raises:
            LaneFault: A row is not what its tasks say, or the queue's rule is not kept.
        """
        before = dict(self._lanes)
        touched = False
        for key, value in mutations.items():
            # By the prefixes alone: calls of the product are counted, and these would be.
            if key.startswith(keyspace.TASK_PREFIX):
                task_id = key.removeprefix(keyspace.TASK_PREFIX).decode()
                touched = self._task(task_id, value) or touched
            elif key.startswith(keyspace.ITEM_PREFIX) and keyspace.knows_kind(key):
                touched = self._item(key, value) or touched
        if not touched:
            return
        counted = {
            name: Lane(tenant=rule.tenant, id=rule.id, key=rule.key, own=rule.own)
            for name, rule in self._own.items()
        }
        for task in self._tasks.values():
            count(counted, task)
        # What is spent of a rate does not follow from tasks, and may be all that is left of a key.
        stored = {
            name: replace(lane, spent_us=0, expires_ms=0, held_until_ms=0)
            for name, lane in self._lanes.items()
            if lane.own is not None or not (lane.is_idle and lane.expires_ms)
        }
        if counted != stored:
            name = min(set(counted.items()) ^ set(stored.items()), key=str)[0]
            raise LaneFault(f"{name}: {stored.get(name)} is {counted.get(name)} by its tasks")
        for name, lane in self._lanes.items():
            self._follows(lane, before.get(name))

    def _task(self, task_id: str, value: bytes | None) -> bool:
        had = self._tasks.pop(task_id, None) is not None
        task = None if value is None else records.decode_task(value)
        if task is not None and task.more is not None and task.more.key:
            self._tasks[task_id] = task
        elif task is not None and task.state is State.HELD and not task.waits_for_others:
            raise LaneFault(f"task {task_id} is held without a key")
        return had or task_id in self._tasks

    def _item(self, key: bytes, value: bytes | None) -> bool:
        kind, tenant, name = keyspace.item_parts(key)
        if kind == ItemKind.KEY_RULE:
            self._own.pop((tenant, name), None)
        elif kind in (ItemKind.LANE, ItemKind.FLOW):
            (self._lanes if kind == ItemKind.LANE else self._flows).pop((tenant, name), None)
        item = None if value is None else records.decode_item(value)
        if isinstance(item, Lane):
            self._lanes[tenant, name] = item
        elif isinstance(item, Flow):
            self._flows[tenant, name] = item
        elif isinstance(item, KeyRule):
            self._own[tenant, name] = item
        return isinstance(item, Lane | Flow) or "@" in name

    def _follows(self, lane: Lane, before: Lane | None) -> None:
        """Check a lane against the rule of its queue, once all lanes follow that."""
        flow = self._flows.get((lane.tenant, lane.queue))
        rule = flow.per_key if flow is not None else None
        if flow is not None and flow.expires_ms:
            return
        if rule is None:
            if lane.held:
                raise LaneFault(f"{lane.id}: {lane.held} tasks are held by no rule")
            return
        rule = lane.own.over(rule) if lane.own is not None else rule
        was = before.running if before is not None else 0
        if lane.running > max(rule.max_running, was):
            raise LaneFault(f"{lane.id}: {lane.running} of {rule.max_running} tasks run")
        places = min(unclaimed_max(lane, rule), rule.max_running - lane.running - lane.kept)
        waits = is_stopped(lane, rule) or lane.rests or (rule.rate is not None and lane.expires_ms)
        if lane.held and lane.ready < places and not waits:
            raise LaneFault(f"{lane.id}: {lane.held} tasks are held, and the key is free")
