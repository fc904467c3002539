"""Accounting: judges the calls of clients against the broker's promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RecordedOperation(StrEnum):
    """The operation of a call."""

    CREATE = "create"
    CLAIM = "claim"
    RESULT = "result"


class RecordedOutcome(StrEnum):
    """The conclusion a caller may draw from the answer, or from its absence."""

    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One HTTP request and its answer.

    Attributes:
        node: The node asked.
        key: Identifies the task: chosen by the producer and carried by the payload; empty for a
            claim that returned no task.
        worker: The worker that claimed or finished; empty for a create.
        content: Of a result: what was submitted, unique to one lease of one worker. Of a claim:
            the payload as delivered. Of a create: the payload as sent.
        started_s: Monotonic seconds, before the broker had seen the call.
        ended_s: Monotonic seconds, when the answer was complete.
        status: HTTP status, 0 if the connection broke.
        detail: The answer's stable code, or the connection's error.
        excused: The node was given up before or during the call, so a failure is expected.
        shard: Of the task, -1 if unknown.
    """

    operation: RecordedOperation
    node: str
    key: str
    task_id: str
    worker: str
    content: str
    started_s: float
    ended_s: float
    outcome: RecordedOutcome
    status: int
    detail: str
    excused: bool
    shard: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTask:
    """The state of a task, read after the cluster came to rest.

    Attributes:
        status: The task's status; empty if the task is missing.
        content: The stored result's content, empty without one.
    """

    status: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The violations, one line each; all lists are empty if the broker kept its promises.

    Attributes:
        failed: Calls to running nodes that were not answered with success.
        lost: Acknowledged tasks that are missing.
        unfinished: Acknowledged tasks that are present but were never finished.
        duplicated: Single creates that made several tasks.
        finished_twice: Tasks with two acknowledged results of different content, with a result
            that changed after it was acknowledged, or with a claim after an acknowledged result.
        invented: Deliveries that nobody created, or with another payload than was sent.
    """

    failed: Sequence[str] = ()
    lost: Sequence[str] = ()
    unfinished: Sequence[str] = ()
    duplicated: Sequence[str] = ()
    finished_twice: Sequence[str] = ()
    invented: Sequence[str] = ()

    @property
    def clean(self) -> bool:
        """Whether there is no violation."""
        return not any(getattr(self, kind) for kind in _KINDS)

    def __str__(self) -> str:
        """Return the counts, and the first lines of each kind."""
        lines = []
        for kind in _KINDS:
            found: Sequence[str] = getattr(self, kind)
            lines.append(f"{kind}: {len(found)}")
            lines.extend(f"  {line}" for line in found[:5])
        return "\n".join(lines)


_KINDS = ("failed", "lost", "unfinished", "duplicated", "finished_twice", "invented")


def audit(calls: Iterable[RecordedCall], final: Mapping[str, FinalTask]) -> Verdict:
    """Judge a run.

    Args:
        calls: Every call of every client, in any order.
        final: By task id: the state read after the last call. An acknowledged task that is
            missing here counts as lost.
    """
    by_operation: dict[RecordedOperation, list[RecordedCall]] = defaultdict(list)
    failed = []
    for call in calls:
        by_operation[call.operation].append(call)
        if call.outcome is not RecordedOutcome.OK and not call.excused:
            failed.append(
                f"{call.operation} {call.key} at {call.node}: {call.status} {call.detail}"
                f" after {call.ended_s - call.started_s:.2f} s"
            )
    creates, claims = by_operation[RecordedOperation.CREATE], by_operation[RecordedOperation.CLAIM]
    results = by_operation[RecordedOperation.RESULT]
    at_rest = _at_rest(creates, final)
    return Verdict(
        failed=failed,
        lost=[task for task, state in at_rest.items() if not state],
        unfinished=[
            f"{task} is {state}"
            for task, state in at_rest.items()
            if state not in {"", "COMPLETED"}
        ],
        duplicated=_duplicated(creates, claims),
        finished_twice=[*_finished_twice(results, final), *_claimed_again(claims, results)],
        invented=_invented(creates, claims),
    )


def _at_rest(creates: Sequence[RecordedCall], final: Mapping[str, FinalTask]) -> dict[str, str]:
    """Return the last status of every acknowledged task, empty for one that is missing."""
    absent = FinalTask(status="", content="")
    acknowledged = {c.task_id: c.key for c in creates if c.outcome is RecordedOutcome.OK}
    return {
        f"{key} ({task_id})": final.get(task_id, absent).status
        for task_id, key in acknowledged.items()
    }


def _duplicated(creates: Sequence[RecordedCall], claims: Sequence[RecordedCall]) -> list[str]:
    # Every create carries an idempotency key, so all its retries must return the same task. A
    # second task made by an unacknowledged try shows up in a claim.
    ids: dict[str, set[str]] = defaultdict(set)
    for call in (*creates, *claims):
        if call.key and call.task_id:
            ids[call.key].add(call.task_id)
    return [f"{key} is {sorted(tasks)}" for key, tasks in ids.items() if len(tasks) > 1]


def _finished_twice(results: Sequence[RecordedCall], final: Mapping[str, FinalTask]) -> list[str]:
    acknowledged: dict[str, dict[str, RecordedCall]] = defaultdict(dict)
    for call in results:
        if call.outcome is RecordedOutcome.OK:
            acknowledged[call.task_id].setdefault(call.content, call)
    found = []
    for task_id, contents in acknowledged.items():
        if len(contents) > 1:
            workers = sorted({call.worker for call in contents.values()})
            found.append(f"{task_id} has {len(contents)} results, by {workers}")
        stored = final.get(task_id)
        if stored is not None and stored.content not in contents:
            found.append(f"{task_id} answers {stored.content!r}, acknowledged {sorted(contents)}")
    return found


def _claimed_again(claims: Sequence[RecordedCall], results: Sequence[RecordedCall]) -> list[str]:
    finished_s: dict[str, float] = {}
    for call in results:
        if call.outcome is RecordedOutcome.OK:
            finished_s[call.task_id] = min(call.ended_s, finished_s.get(call.task_id, call.ended_s))
    # Only a claim sent after the acknowledgement must not see the task. The answer of an earlier
    # claim may simply be late.
    return [
        f"{call.task_id} claimed by {call.worker} at {call.node} after its result was acknowledged"
        for call in claims
        if call.task_id and call.started_s > finished_s.get(call.task_id, float("inf"))
    ]


def _invented(creates: Sequence[RecordedCall], claims: Sequence[RecordedCall]) -> list[str]:
    sent = {call.key: call.content for call in creates}
    return [
        f"{call.task_id} was delivered with {call.content[:80]!r}"
        for call in claims
        if call.task_id and sent.get(call.key) != call.content
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of durations, in their unit; all 0 for an empty set."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, durations: Sequence[float]) -> Percentiles:
        """Summarize `durations` by nearest rank."""
        ranked = sorted(durations)
        if not ranked:
            return cls(count=0, p50=0.0, p90=0.0, p99=0.0, max=0.0)

        def rank(share: float) -> float:
            return ranked[min(len(ranked) - 1, int(share * len(ranked)))]

        return cls(count=len(ranked), p50=rank(0.5), p90=rank(0.9), p99=rank(0.99), max=ranked[-1])


def repair_seconds(calls: Iterable[RecordedCall], *, struck_s: float, shard: int) -> float | None:
    """Return the time from a fault to the next acknowledged create on a shard.

    Args:
        calls: Every call of the run.
        struck_s: Monotonic instant of the fault. Only creates sent after it count: an earlier one
            may have been answered by the old leader.
        shard: The shard that lost its leader.

    Returns:
        Seconds, or None if no create on that shard was acknowledged since.
    """
    answers = [
        call.ended_s
        for call in calls
        if call.operation is RecordedOperation.CREATE
        and call.outcome is RecordedOutcome.OK
        and call.shard == shard
        and call.started_s > struck_s
    ]
    return min(answers) - struck_s if answers else None
