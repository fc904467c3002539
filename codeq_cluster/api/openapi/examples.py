"""Examples: a task and its result over their life, rendered as handlers render them."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.api.schemas.task_views import TaskView, result_view, task_view
from codeq_cluster.core.task import Artifact, Attempt, AttemptOutcome, Result, State, Task

TASK_ID = "0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60"
COMMAND = "resize-image"
NOON_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z

_SECOND_MS = 1_000
_MINUTE_MS = 60 * _SECOND_MS
_NEW = Task(
    id=TASK_ID,
    tenant="acme",
    command=COMMAND,
    priority=5,
    max_attempts=5,
    created_ms=NOON_MS,
    updated_ms=NOON_MS,
    state=State.READY,
)
_DELIVERED = Attempt(
    worker="worker-7",
    started_ms=NOON_MS + _SECOND_MS,
    ended_ms=NOON_MS + 9 * _SECOND_MS,
    outcome=AttemptOutcome.COMPLETED,
)
_DIED_MS = NOON_MS + 20 * _MINUTE_MS


def _view(task: Task, *, claimed: bool = False) -> TaskView:
    return task_view(task, '{"image":"cat.png","width":640}', shards=1, claimed=claimed)


TASK = _view(_NEW)
CLAIMED = _view(
    replace(
        _NEW,
        state=State.LEASED,
        worker="worker-7",
        lease_until_ms=NOON_MS + 5 * _MINUTE_MS + _SECOND_MS,
        attempts=1,
        updated_ms=NOON_MS + _SECOND_MS,
        lease_token=281474976710657,
    ),
    claimed=True,
)
FINISHED = _view(
    replace(
        _NEW,
        state=State.DONE,
        attempts=1,
        has_result=True,
        updated_ms=_DELIVERED.ended_ms,
        history=(_DELIVERED,),
    )
)
RESULT = result_view(
    Result(
        task_id=TASK_ID,
        status="COMPLETED",
        body='{"url":"https://example.com/cat-640.png"}',
        artifacts=(Artifact("thumbnail", "https://example.com/cat-64.png"),),
        completed_ms=_DELIVERED.ended_ms,
    )
)
DEAD = _view(
    replace(
        _NEW,
        state=State.DEAD,
        priority=0,
        attempts=5,
        error="MAX_ATTEMPTS",
        has_result=True,
        updated_ms=_DIED_MS,
    )
)
DEAD_RESULT = result_view(
    Result(task_id=TASK_ID, status="FAILED", error=DEAD.error, completed_ms=_DIED_MS)
)
