"""Schedules: the rows of schedules and of their runs in a simulated cluster, checked by entry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from codeq_cluster.codec import keyspace, line_keys, records
from codeq_cluster.core.items import Aside
from codeq_cluster.core.schedules import Overlap, Schedule
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Run, Task
from codeq_cluster.schedules.due import instants_between

INSTANTS_MAX = 10_000  # Of one entry.

_ONE_AT_A_TIME = (Overlap.SKIP, Overlap.QUEUE, Overlap.QUEUE_ONE, Overlap.CANCEL)


class TimerFault(AssertionError):
    """The timers are not those of the schedules."""


class DecisionFault(AssertionError):
    """An instant was decided twice, or not at all."""


class OverlapFault(AssertionError):
    """Runs overlap that must not."""


class TwiceFault(AssertionError):
    """A run was made twice."""


@dataclass(slots=True)
class _Shard:
    """The rows of one shard.

    Attributes:
        timers: Of all schedules, as keys.
        alive: The runs that have not ended for the first time, by the id of their task.
        made: All runs that there ever were, by their tenants.
        mixed: Generations whose plan has changed, so that runs of both plans may be open.
    """

    schedules: dict[bytes, Schedule] = field(default_factory=dict)
    timers: set[bytes] = field(default_factory=set)
    alive: dict[str, Run] = field(default_factory=dict)
    made: set[tuple[str, Run]] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)


class ScheduleRows:
    """The schedules of a cluster, as the first replica of each shard applies its entries."""

    def __init__(self) -> None:
        self._shards: dict[int, _Shard] = defaultdict(_Shard)

    @property
    def all(self) -> list[Schedule]:
        """Return all schedules."""
        return [at for shard in self._shards.values() for at in shard.schedules.values()]

    @property
    def runs(self) -> list[Run]:
        """Return all runs that were ever made, in the order of their instants."""
        made = (run for shard in self._shards.values() for _, run in shard.made)
        return sorted(made, key=lambda run: (run.at_ms, run.name))

    def alive(self, shard: int) -> dict[str, Run]:
        """Return the runs of a shard that have not ended, by the ids of their tasks."""
        return self._shards[shard].alive

    def timers(self, shard: int) -> set[bytes]:
        """Return the rows that say when schedules fire."""
        return self._shards[shard].timers

    def overdue(self, now_ms: int) -> list[str]:
        """Return the schedules that should have fired by now."""
        return [at.id for at in self.all if 0 < at.fires_ms <= now_ms]

    def task(self, shard: int, task: Task, *, is_new: bool) -> None:
        """Follow a task that an entry writes.

        Raises:
            TwiceFault: It is a run, and there was one of its name.
        """
        run = task.more.run if task.more is not None else None
        if run is None:
            return
        of = self._shards[shard]
        if is_new:
            name = task.tenant, run
            if name in of.made:
                raise TwiceFault(f"{run} is made again, as {task.id}")
            of.made.add(name)
            of.alive[task.id] = run
        if task.endings:
            of.alive.pop(task.id, None)

    def written(self, shard: int, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow an entry's rows, after those of its tasks.

        Raises:
            TimerFault, DecisionFault, OverlapFault: The rows contradict each other.
        """
        of, touched = self._shards[shard], False
        for key, value in rows.items():
            # By the prefixes alone: calls of the product are counted, and these would be.
            if key.startswith(line_keys.FIRE_PREFIX):
                (of.timers.discard if value is None else of.timers.add)(key)
                touched = True
            elif key.startswith(keyspace.ITEM_PREFIX):
                touched |= self._item(of, key, value)
        if touched:
            _check_timers(of)
        _check_overlap(of)

    def _item(self, of: _Shard, key: bytes, value: bytes | None) -> bool:
        kind, *_ = keyspace.item_parts(key)
        item = records.decode_item(value) if value is not None else None
        if kind is ItemKind.ASIDE and isinstance(item, Aside):
            if item.kind == ItemKind.SCHEDULE:
                raise TimerFault(f"{item.subject} is set aside: {item.reason}")
            return False
        if kind is not ItemKind.SCHEDULE:
            return False
        before = of.schedules.pop(key, None)
        if isinstance(item, Schedule):
            if before is not None and before.generation == item.generation:
                _check_decided(before, item)
                if before.version != item.version:
                    of.mixed.add(item.generation)
            of.schedules[key] = item
        return True


def _check_timers(of: _Shard) -> None:
    wanted = [timer for at in of.schedules.values() for timer in keyspace.item_index_keys(at)]
    if sorted(wanted) != sorted(of.timers):
        odd = sorted(set(wanted) ^ of.timers)
        raise TimerFault(f"a timer too many or too few: {odd[0]!r}")
    for at in of.schedules.values():
        if at.next_ms and at.next_ms <= at.done_ms:
            raise TimerFault(f"{at.id} looks again at {at.next_ms}, decided up to {at.done_ms}")


def _check_decided(before: Schedule, after: Schedule) -> None:
    if after.done_ms < before.done_ms:
        raise DecisionFault(f"{after.id} is decided up to {after.done_ms}, was {before.done_ms}")
    # An edit, or a resume, begins the calendar there: what lies between then counts for nothing.
    if before.request != after.request or before.backfill or after.is_over:
        return
    timing = before.plan.timing
    due = len(instants_between(timing, before.done_ms, after.done_ms, INSTANTS_MAX))
    said = _counted(after) - _counted(before)
    if said != due:
        raise DecisionFault(
            f"{after.id} decides {said} instants between {before.done_ms} and {after.done_ms}, "
            f"where there are {due}"
        )


def _counted(at: Schedule) -> int:
    return at.made + at.skipped + at.missed


def _check_overlap(of: _Shard) -> None:
    for at in of.schedules.values():
        mine = (run.name for run in of.alive.values() if run.generation == at.generation)
        alive, named = sorted(mine), sorted(row.name for row in at.open)
        if alive != named:
            raise OverlapFault(f"{at.id} says that {named} are open, and it is {alive}")
        if at.plan.overlap not in _ONE_AT_A_TIME or at.generation in of.mixed:
            continue
        if len(alive) > 1:
            raise OverlapFault(f"{at.id} lets {', '.join(alive)} run side by side")
