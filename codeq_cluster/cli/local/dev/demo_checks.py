"""Demo checks: what must hold of the demo's tasks once all of them have ended."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from codeq_cluster.cli.support.checks import Check
from codeq_cluster.client import Ended, Ending, GroupRecord, ScheduleRecord

Row = Mapping[str, Any]  # A task, as the API lists it.

TICK_S = 1
# So many tasks of a key in so many seconds, and so many at once after a pause.
RATE_COUNT, RATE_S, BURST = 4, 1, 2

_ROUNDED = timedelta(milliseconds=1)  # Instants are whole milliseconds.


@dataclass(slots=True)
class Seen:
    """What the demo's producers and its worker have seen.

    Attributes:
        acknowledged: Ids of tasks that the broker said it has.
        completed: How many deliveries of each task reported an end that the broker took.
    """

    acknowledged: set[str] = field(default_factory=set)
    completed: Counter[str] = field(default_factory=Counter)

    def ended(self, ended: Ended) -> None:
        """Note the end of a delivery."""
        self.completed[ended.task.id] += ended.ending is Ending.COMPLETED


def ended_once(seen: Seen, rows: Iterable[Row]) -> Check:
    """Judge that no acknowledged task is lost, and that no task was completed twice."""
    found = {row["id"]: row for row in rows}
    broken = [f"{task_id} is gone" for task_id in seen.acknowledged - found.keys()]
    left = [each for each in found.values() if each["status"] != "COMPLETED"]
    broken += [f"{each['id']} is {each['status']}" for each in left]
    twice = [task_id for task_id, times in seen.completed.items() if times > 1]
    broken += [f"{task_id} was completed twice" for task_id in twice]
    promise = "every acknowledged task ended exactly once"
    return Check(promise=promise, facts=len(seen.acknowledged), broken=tuple(broken))


def completed_once(group: GroupRecord, members: Sequence[Row], thens: Sequence[Row]) -> Check:
    """Judge that a group has one completion task, after its last member, with true counts."""
    broken = []
    if (group.total, group.completed, group.live) != (len(members), len(members), 0):
        broken.append(f"the group says {group.completed} of {group.total}, not {len(members)}")
    if [group.then_task_id] != [each["id"] for each in thens]:
        broken.append(f"it has {len(thens)} completion tasks")
    for then in thens:
        told = then["group"]
        if (told["total"], told["completed"]) != (len(members), len(members)):
            broken.append(f"its completion task says {told['completed']} of {told['total']}")
        if any(_at(then["createdAt"]) < _at(each["updatedAt"]) for each in members):
            broken.append("its completion task is older than the last end")
    promise = "the group's completion task came once, after all members, with true counts"
    return Check(promise=promise, facts=len(members), broken=tuple(broken))


def one_at_a_time(rows: Iterable[Row]) -> Check:
    """Judge that no two tasks of one key were in progress at once."""
    spans = list(_by_key(rows))
    broken = [
        f"{key}: one began at {other[0]:%T.%f} and another ended at {one[1]:%T.%f}"
        for key, deliveries in spans
        for one, other in pairwise(deliveries)
        if other[0] < one[1]
    ]
    facts = sum(len(deliveries) for _, deliveries in spans)
    promise = "never two tasks of one key at once"
    return Check(promise=promise, facts=facts, broken=tuple(broken))


def within_rate(rows: Iterable[Row]) -> Check:
    """Judge that no key was faster than its rate in any stretch of time."""
    broken, facts = [], 0
    for key, deliveries in _by_key(rows):
        begun = [since for since, _ in deliveries]
        facts += len(begun)
        for first, since in enumerate(begun):
            for last in range(first + BURST, len(begun)):
                span_s = (begun[last] - since + _ROUNDED).total_seconds()
                if last - first + 1 > BURST + span_s * RATE_COUNT / RATE_S:
                    broken.append(f"{key}: {last - first + 1} from {since:%T.%f} on")
                    break
    promise = f"no key was faster than {RATE_COUNT} tasks in {RATE_S} s"
    return Check(promise=promise, facts=facts, broken=tuple(broken))


def fired_once(schedule: ScheduleRecord, rows: Iterable[Row]) -> Check:
    """Judge that each instant of a schedule has made one task, and that none is missing."""
    fired = Counter(_at(each["scheduledFor"]) for each in rows)
    broken = [f"{at:%T} made {n} tasks" for at, n in fired.items() if n > 1]
    for one, other in pairwise(sorted(fired)):
        if other - one != timedelta(seconds=TICK_S):
            broken.append(f"nothing between {one:%T} and {other:%T}")
    if (schedule.made, schedule.missed.count) != (len(fired), 0):
        broken.append(f"it says {schedule.made} made and {schedule.missed.count} missed")
    promise = "each instant of the schedule made exactly one task"
    return Check(promise=promise, facts=len(fired), broken=tuple(broken))


def _by_key(rows: Iterable[Row]) -> Iterator[tuple[str, list[tuple[datetime, datetime]]]]:
    """Yield each key with when its deliveries began and ended, in order."""
    found: dict[str, list[tuple[datetime, datetime]]] = defaultdict(list)
    for row in rows:
        spans = ((_at(each["startedAt"]), _at(each["endedAt"])) for each in row["history"])
        found[row["key"]] += spans
    yield from ((key, sorted(spans)) for key, spans in found.items())


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
