"""Answers: the bodies that only a description needs as types; handlers compose them directly."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.rendering import ResultView, TaskView


class CreatedItem(Struct, rename="camel"):
    """What became of one item of a batch: a task, or an error with its code."""

    task: TaskView | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class CreatedBatch(Struct, rename="camel"):
    """One entry an item, in the items' order."""

    results: list[CreatedItem]


class CancelledTask(Struct, rename="camel"):
    """The task that was cancelled."""

    status: str
    id: str


class ClaimedBatch(Struct, rename="camel"):
    """The tasks now leased to the caller, in claim order."""

    tasks: list[TaskView]


class ExtendedLease(Struct, rename="camel"):
    """When the lease ends now."""

    ok: bool
    lease_until: str


class AbandonedTask(Struct, rename="camel"):
    """Where the task went: `requeued`, or `dlq` when it has had all its attempts."""

    status: str


class RefusedTask(Struct, rename="camel"):
    """Where the task went, as of an abandoned one, and after how long it is ready again."""

    status: str
    delay_seconds: int


class SubmittedItem(Struct, rename="camel"):
    """What became of one item of a batch: a result, or an error with its code."""

    task_id: str
    result: ResultView | UnsetType = UNSET
    error: str | UnsetType = UNSET
    code: str | UnsetType = UNSET


class SubmittedBatch(Struct, rename="camel"):
    """One entry an item, in the items' order."""

    results: list[SubmittedItem]


class TaskAndResult(Struct, rename="camel"):
    """A task that has ended, and how."""

    task: TaskView
    result: ResultView


class RaftPeer(Struct, rename="camel"):
    """Another member of a group."""

    id: str
    connected: bool
    match_index: int


class RaftGroup(Struct, rename="camel"):
    """One Raft group as this node sees it; leader fields are empty when no leader is known."""

    shard_idx: int
    is_leader: bool
    self_id: str
    self_addr: str
    leader_id: str
    leader_addr: str
    leader_http_addr: str = msgspec.field(name="leaderHTTPAddr")
    has_leader: bool
    term: int
    commit_index: int
    applied_index: int
    digest: str
    log_bytes: int
    durability: str
    peers: list[RaftPeer]


class RaftStatus(Struct, rename="camel"):
    """Every group of this node."""

    enabled: bool
    num_groups: int
    groups: list[RaftGroup]


class Word(Struct):
    """One word on how the node is."""

    status: str


class NotReady(Struct):
    """What keeps the node from being ready."""

    error: str
    code: str
    retryable: bool
    missing: list[str]
