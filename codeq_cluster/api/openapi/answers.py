"""Answers: the bodies that only a description needs as types; handlers compose them directly."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.schemas.responses import ErrorGroup, ResultView, TaskView


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


class DeadLetters(Struct):
    """Part of a list, whose cursor is missing at its end; or what the dead letters died of.

    Of the groups the most frequent is first, and `more` says that not all `matched` were looked at.
    """

    tasks: list[TaskView] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    groups: list[ErrorGroup] | UnsetType = UNSET
    matched: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Requeued(Struct, rename="camel"):
    """What came of a request to revive dead letters; a dry run only counts them."""

    matched: int
    requeued: int
    by_error: dict[str, int]
    more: bool
    dry_run: bool


class Deleted(Struct, rename="camel"):
    """What came of a request to delete dead letters; a dry run only counts them."""

    matched: int
    deleted: int
    by_error: dict[str, int]
    more: bool
    dry_run: bool


class CleanedUp(Struct):
    """How many tasks were deleted, and the bounds that held."""

    deleted: int
    before: str
    limit: int


class PausedQueue(Struct):
    """Whether the queue is paused now."""

    command: str
    paused: bool
    changed: bool


class Replayed(Struct):
    """How many deliveries are pending again."""

    replayed: int


class SubscriptionLife(Struct, rename="camel"):
    """Until when a subscription lives."""

    subscription_id: str
    expires_at: str


class ClusterNode(Struct, rename="camel"):
    """One node; `leads` names shards, `level` the newest formats it knows."""

    id: str
    addr: str
    http_addr: str
    is_self: bool = msgspec.field(name="self")
    connected: bool
    voter: bool
    level: int
    leads: list[int]


class ClusterPeer(Struct, rename="camel"):
    """Another member of a shard's group."""

    id: str
    voter: bool
    connected: bool
    match_index: int


class ClusterShard(Struct, rename="camel"):
    """One shard; its leader is empty when none is known, `level` is of the formats in use."""

    shard: int
    leader: str
    preferred: str
    changing: bool
    level: int
    term: int
    commit_index: int
    applied_index: int
    peers: list[ClusterPeer]


class ClusterStatus(Struct, rename="camel"):
    """The cluster as one node sees it; `level` is of the newest formats any shard uses."""

    cluster_id: str
    level: int
    nodes: list[ClusterNode]
    shards: list[ClusterShard]


class Transferred(Struct):
    """Who led a shard, and who leads it now."""

    shard: int
    before: str = msgspec.field(name="from")
    leader: str
    changed: bool


class MemberShard(Struct, rename="camel"):
    """What a change of the nodes makes of one shard; `answering` counts `votersAfter`."""

    shard: int
    leader: str
    voters: list[str]
    voters_after: list[str]
    learners_after: list[str]
    quorum: int
    quorum_after: int
    answering: int
    done: bool


class MembersChanged(Struct, rename="camel"):
    """What a change of the nodes did, or would do."""

    node_id: str
    dry_run: bool
    changed: bool
    shards: list[MemberShard]


class LevelShard(Struct, rename="camel"):
    """What an upgrade makes of one shard."""

    shard: int
    leader: str
    level: int
    level_after: int
    done: bool


class LevelNode(Struct):
    """The newest formats a node knows, in every shard."""

    id: str
    level: int


class LevelRaised(Struct, rename="camel"):
    """What an upgrade did, or would do; `level` is of the formats in use when it is done."""

    level: int
    dry_run: bool
    changed: bool
    shards: list[LevelShard]
    nodes: list[LevelNode]


class RaftPeer(Struct, rename="camel"):
    """Another member of a group."""

    id: str
    http_addr: str
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
    log_sync: str
    self_http_addr: str = msgspec.field(name="selfHTTPAddr")
    peers: list[RaftPeer]


class RaftStatus(Struct, rename="camel"):
    """Every group of this node."""

    enabled: bool
    num_groups: int
    groups: list[RaftGroup]


class Word(Struct):
    """One word on how the node is."""

    status: str


class NotReady(Struct, rename="camel"):
    """What keeps the node from being ready."""

    error: str
    code: str
    retryable: bool
    request_id: str
    missing: list[str]
