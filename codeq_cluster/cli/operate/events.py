"""Events: the changes between two looks at a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from codeq_cluster.cli.operate.look import Flowed, FlowLine, Look, ProblemLine
from codeq_cluster.cli.support.output import cell
from codeq_cluster.cli.support.times import Times, instant


class EventKind(StrEnum):
    """The kind of an event."""

    WRONG = "wrong"
    OVER = "over"
    LEADER = "leader"
    TASKS = "tasks"
    DEAD = "dead"
    AUDIT = "audit"
    AWAY = "away"
    BACK = "back"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        at: When it happened, or was first seen.
        kind: Of the cluster, or of a task.
    """

    at: datetime
    kind: str
    text: str

    @property
    def row(self) -> dict[str, str]:
        """Return the event as a document for a program."""
        return {"at": Times.ISO.text(self.at), "kind": self.kind, "text": self.text}


def begun(look: Look, *, at: datetime) -> Iterator[Event]:
    """Yield the problems of the first look."""
    for problem in look.overview.problems:
        yield Event(at=at, kind=EventKind.WRONG, text=_worded(problem))


def between(before: Look, now: Look, *, at: datetime) -> Iterator[Event]:
    """Yield new problems, problems that are over, and changes of leaders since the last look."""
    leaders = {shard.shard_idx: shard.leader_id for shard in before.shards}
    for shard in now.shards:
        was = leaders.get(shard.shard_idx)
        if shard.leader_id == was:
            continue
        led = f"is led by {shard.leader_id}" if shard.leader_id else "has no leader"
        text = f"shard {shard.shard_idx} {led}, term {shard.term}; {was or 'nobody'} before"
        yield Event(at=at, kind=EventKind.LEADER, text=text)
    known = {problem.id: problem for problem in before.overview.problems}
    found = {problem.id: problem for problem in now.overview.problems}
    for name, problem in found.items():
        if name not in known:
            yield Event(at=at, kind=EventKind.WRONG, text=_worded(problem))
    # A node that could not show everything cannot prove that a problem is over.
    if not now.trouble:
        for name, problem in known.items():
            if name not in found:
                yield Event(at=at, kind=EventKind.OVER, text=cell(problem.text))


def counted(flowed: Flowed) -> Iterator[Event]:
    """Yield a line for each queue with activity, the busiest first."""
    at = datetime.fromtimestamp((flowed.last + 1) * flowed.step, UTC)
    for queue in flowed.queues:
        yield Event(at=at, kind=EventKind.TASKS, text=f"{cell(queue.command)}: {_numbers(queue)}")
    if flowed.more:
        queues = "queue" if flowed.more == 1 else "queues"
        text = f"{flowed.more:,} more {queues}: {_numbers(flowed.others)}"
        yield Event(at=at, kind=EventKind.TASKS, text=text)


def audited(record: Mapping[str, object]) -> Event:
    """Return an audit record as an event."""
    said = [cell(record.get(name)) for name in ("actor", "action", "target", "detail")]
    return Event(
        at=_instant(record.get("at")),
        kind=EventKind.AUDIT,
        text=" ".join(each for each in said if each != "-"),
    )


def died(task: Mapping[str, object]) -> Event:
    """Return a new dead letter as an event."""
    named = f"{cell(task.get('id'))} of {cell(task.get('command'))}{_killed_by(task)}"
    return Event(
        at=_instant(task.get("updatedAt")),
        kind=EventKind.DEAD,
        text=f"{named}: {cell(task.get('error'))}",
    )


def _killed_by(task: Mapping[str, object]) -> str:
    """Return the worker whose attempt was the last; empty if the task died while it waited."""
    match task.get("history"):
        case [*_, {"worker": worker, "endedAt": ended, **attempt}] if ended == task["updatedAt"]:
            name = attempt.get("workerName")
            return f", by {cell(f'{worker}/{name}' if name else worker)}"
        case _:
            return ""


def _numbers(flow: FlowLine) -> str:
    said = (
        (flow.created, "created"),
        (flow.started, "claimed"),
        (flow.completed, "completed"),
        (flow.failed, "failed"),
    )
    return ", ".join(f"{number:,} {word}" for number, word in said if number)


def _worded(problem: ProblemLine) -> str:
    return f"{cell(problem.text)} ({problem.severity})"


def _instant(text: object) -> datetime:
    found = instant(text)
    return found if isinstance(found, datetime) else datetime.now(UTC)
