"""Rendering: the broker's values as the contract's JSON, in its field order."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import lru_cache

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.api.ports import QueueDepth, ShardStatus
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Attempt, Result, State, Task

encode = msgspec.json.Encoder().encode

_STATUS = {
    State.READY: "PENDING",
    State.DELAYED: "PENDING",
    State.LEASED: "IN_PROGRESS",
    State.DONE: "COMPLETED",
    State.FAILED: "FAILED",
    State.DEAD: "FAILED",
}
_LOCATION = {
    State.READY: "PENDING_LIST",
    State.DELAYED: "DELAYED_ZSET",
    State.LEASED: "INPROG_SET",
    State.DONE: "NONE",
    State.FAILED: "NONE",
    State.DEAD: "DLQ_SET",
}


class AttemptView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """One finished delivery."""

    worker: str
    started_at: str
    ended_at: str
    outcome: str
    error: str = ""


class TaskView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A task; what has no default is always there."""

    id: str
    command: str
    payload: str
    priority: int = 0
    webhook: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    status: str
    last_known_location: str
    worker_id: str = ""
    lease_until: str = ""
    attempts: int
    max_attempts: int = 0
    error: str = ""
    result_key: str = ""
    tenant_id: str = ""
    created_at: str
    updated_at: str
    lease_token: int = 0
    run_at: str = ""
    shard: int
    history: tuple[AttemptView, ...] = ()


class ArtifactView(Struct):
    """A product of a task."""

    name: str
    url: str


class ResultView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How a task ended."""

    task_id: str
    status: str
    result: Raw | UnsetType = UNSET
    error: str = ""
    artifacts: tuple[ArtifactView, ...] = ()
    completed_at: str


class QueueView(Struct, rename="camel", kw_only=True):
    """How full a queue is."""

    command: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    oldest_ready_seconds: int


def task_view(task: Task, payload: str, *, shards: int, claimed: bool = False) -> TaskView:
    """Render a task; the lease token is shown to the worker that has just claimed it alone."""
    leased = task.state is State.LEASED
    return TaskView(
        id=task.id,
        command=task.command,
        payload=payload,
        priority=task.priority,
        webhook=task.webhook,
        trace_parent=task.trace_parent,
        trace_state=task.trace_state,
        status=_STATUS[task.state],
        last_known_location=_LOCATION[task.state],
        worker_id=task.worker if leased else "",
        lease_until=rfc3339(task.lease_until_ms) if leased else "",
        attempts=task.attempts,
        max_attempts=task.max_attempts,
        error=task.error,
        result_key=f"codeq/results/{task.id}" if task.has_result else "",
        tenant_id=task.tenant,
        created_at=rfc3339(task.created_ms),
        updated_at=rfc3339(task.updated_ms),
        lease_token=task.lease_token if claimed else 0,
        run_at=rfc3339(task.run_at_ms) if task.run_at_ms else "",
        shard=shard_of(task.id, shards) if shards > 1 else 0,
        history=tuple(map(_attempt_view, task.history)),
    )


def result_view(result: Result) -> ResultView:
    """Render a result."""
    return ResultView(
        task_id=result.task_id,
        status=result.status,
        result=Raw(result.body) if result.body else UNSET,
        error=result.error,
        artifacts=tuple(ArtifactView(each.name, each.url) for each in result.artifacts),
        completed_at=rfc3339(result.completed_ms),
    )


def queue_view(depth: QueueDepth, *, now_ms: int) -> QueueView:
    """Render a queue's depth."""
    counters = depth.counters
    waited_ms = now_ms - depth.oldest_ready_ms if depth.oldest_ready_ms else 0
    return QueueView(
        command=depth.command,
        ready=counters.ready,
        delayed=counters.delayed,
        in_progress=counters.leased,
        dlq=counters.dead,
        oldest_ready_seconds=max(0, waited_ms // 1000),
    )


def raft_view(shards: Iterable[ShardStatus]) -> dict[str, object]:
    """Render the local groups."""
    groups = [
        {
            "shardIdx": shard.shard_idx,
            "isLeader": shard.is_leader,
            "selfId": shard.self_id,
            "selfAddr": shard.self_addr,
            "leaderId": shard.leader_id,
            "leaderAddr": shard.leader_addr,
            "leaderHTTPAddr": shard.leader_http_addr,
            "hasLeader": shard.has_leader,
            "term": shard.term,
            "commitIndex": shard.commit_index,
            "appliedIndex": shard.applied_index,
            "digest": shard.digest,
            "logBytes": shard.log_bytes,
            "durability": shard.durability,
            "peers": [
                {"id": peer.id, "connected": peer.connected, "matchIndex": peer.match_index}
                for peer in shard.peers
            ],
        }
        for shard in shards
    ]
    return {"enabled": True, "numGroups": len(groups), "groups": groups}


def rfc3339(unix_ms: int) -> str:
    """Render an instant: UTC, milliseconds, `Z`."""
    seconds, millis = divmod(unix_ms, 1000)
    return f"{_second(seconds)}.{millis:03d}Z"


@lru_cache(maxsize=4096)
def _second(unix_s: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(unix_s))


def _attempt_view(attempt: Attempt) -> AttemptView:
    return AttemptView(
        worker=attempt.worker,
        started_at=rfc3339(attempt.started_ms),
        ended_at=rfc3339(attempt.ended_ms),
        outcome=attempt.outcome.value,
        error=attempt.error,
    )
