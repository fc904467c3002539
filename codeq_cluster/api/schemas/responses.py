"""Responses: the broker's values as the contract's JSON, in its field order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.broker.values import FoundTask, QueueDepth, ShardStatus
from codeq_cluster.core.explaining import Explanation, Reason
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Attempt, Result, State, Task
from codeq_cluster.settings import NodeSettings

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
    """A task; what has no default is always there.

    `readyAt` of a delayed one is when it can be claimed, `expiresAt` of a waiting one when it dies.
    """

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
    ready_at: str = ""
    expires_at: str = ""
    shard: int
    history: tuple[AttemptView, ...] = ()


class TaskPage(Struct):
    """Part of a list of tasks; the cursor is missing at its end."""

    tasks: Sequence[TaskView]
    cursor: str | UnsetType = UNSET

    @classmethod
    def of(cls, found: Iterable[FoundTask], cursor: str | None, *, shards: int) -> Self:
        """Make a page."""
        views = [task_view(each.task, each.payload, shards=shards) for each in found]
        return cls(views, cursor or UNSET)


class ErrorGroup(Struct):
    """How many dead letters died of one error."""

    error: str
    count: int


class ArtifactView(Struct):
    """A product of a task."""

    name: str
    url: str


class UploadView(Struct):
    """An artifact that is stored; a result names it by `name` and `url`."""

    name: str
    url: str
    size: int
    etag: str


class ResultView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """How a task ended."""

    task_id: str
    status: str
    result: Raw | UnsetType = UNSET
    error: str = ""
    artifacts: tuple[ArtifactView, ...] = ()
    completed_at: str


class ExplanationView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """Why a task is where it is; `until` when time itself ends the reason."""

    task_id: str
    reason: Reason
    message: str
    waiting: bool
    until: str = ""


class QueueView(Struct, rename="camel", kw_only=True):
    """How full a queue is; `paused` when nobody may claim from it."""

    command: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    oldest_ready_seconds: int
    paused: bool | UnsetType = UNSET


def task_view(task: Task, payload: str, *, shards: int, claimed: bool = False) -> TaskView:
    """Render a task; only the worker that has just claimed it sees the lease token."""
    leased = task.state is State.LEASED
    waiting = task.state in (State.READY, State.DELAYED)
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
        ready_at=rfc3339(task.due_ms) if task.state is State.DELAYED else "",
        expires_at=rfc3339(task.expires_ms) if waiting and task.expires_ms else "",
        shard=shard_of(task.id, shards) if shards > 1 else 0,
        history=tuple(map(attempt_view, task.history)),
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


def explanation_view(task_id: str, explanation: Explanation) -> ExplanationView:
    """Render why a task is where it is."""
    return ExplanationView(
        task_id=task_id,
        reason=explanation.reason,
        message=explanation.text,
        waiting=explanation.reason.waiting,
        until=rfc3339(explanation.until_ms) if explanation.until_ms else "",
    )


def queue_view(depth: QueueDepth, *, now_ms: int, paused: bool = False) -> QueueView:
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
        paused=paused or UNSET,
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
            "logSync": shard.log_sync,
            "selfHTTPAddr": shard.self_http_addr,
            "peers": [
                {
                    "id": peer.id,
                    "httpAddr": peer.http_addr,
                    "connected": peer.connected,
                    "matchIndex": peer.match_index,
                }
                for peer in shard.peers
            ],
        }
        for shard in shards
    ]
    return {"enabled": True, "numGroups": len(groups), "groups": groups}


def cluster_view(settings: NodeSettings, shards: Sequence[ShardStatus]) -> dict[str, object]:
    """Render the nodes, and the leader of each shard."""
    own = shards[0]
    seen: dict[str, dict[str, Any]] = {
        own.self_id: {
            "addr": own.self_addr,
            "httpAddr": own.self_http_addr,
            "self": True,
            "connected": True,
            "voter": all(shard.voting for shard in shards),
            "level": min(shard.knows for shard in shards),
        }
    }
    for peer in (peer for shard in shards for peer in shard.peers):
        before = seen.get(peer.id)
        seen[peer.id] = {
            "addr": peer.addr,
            "httpAddr": peer.http_addr,
            "self": False,
            "connected": peer.connected,
            # A node that is still a learner in any shard is no full member.
            "voter": peer.voter and (before is None or before["voter"]),
            "level": peer.knows if before is None else min(peer.knows, before["level"]),
        }
    nodes = [
        {
            "id": node_id,
            **node,
            "leads": [shard.shard_idx for shard in shards if shard.leader_id == node_id],
        }
        for node_id, node in sorted(seen.items())
    ]
    views = [
        {
            "shard": shard.shard_idx,
            "leader": shard.leader_id,
            "preferred": shard.preferred,
            "changing": shard.changing,
            "level": shard.level,
            "term": shard.term,
            "commitIndex": shard.commit_index,
            "appliedIndex": shard.applied_index,
            "peers": [
                {
                    "id": peer.id,
                    "voter": peer.voter,
                    "connected": peer.connected,
                    "matchIndex": peer.match_index,
                }
                for peer in shard.peers
            ],
        }
        for shard in shards
    ]
    return {
        "clusterId": settings.cluster_id,
        # A joining node must know the newest format that any shard uses.
        "level": max(shard.level for shard in shards),
        "nodes": nodes,
        "shards": views,
    }


def attempt_view(attempt: Attempt) -> AttemptView:
    """Render a delivery that is over."""
    return AttemptView(
        worker=attempt.worker,
        started_at=rfc3339(attempt.started_ms),
        ended_at=rfc3339(attempt.ended_ms),
        outcome=attempt.outcome.value,
        error=attempt.error,
    )
