"""Requests: what callers hand to the broker and what it tells them, validated values both ways."""

from __future__ import annotations

import os

from msgspec import Struct

from codeq_cluster.core.task import Artifact, Counters, Task


def new_request() -> str:
    """Draw a request id: 96 random bits in hexadecimal."""
    return os.urandom(12).hex()


class NewTask(Struct, frozen=True, kw_only=True):
    """A task as a producer asks for it, already validated.

    Attributes:
        payload: JSON text, byte for byte the producer's.
        max_attempts: 0 for the broker's default.
        run_at_ms: Unix milliseconds, 0 for "not asked"; wins over `delay_ms`.
        delay_ms: From now, 0 for at once.
        ttl_ms: Undelivered after that the task dies; 0 for never.
    """

    command: str
    payload: str
    priority: int = 0
    max_attempts: int = 0
    webhook: str = ""
    idempotency_key: str = ""
    run_at_ms: int = 0
    delay_ms: int = 0
    ttl_ms: int = 0
    trace_parent: str = ""
    trace_state: str = ""


class NewFile(Struct, frozen=True, kw_only=True):
    """An artifact that comes with its result, to be stored.

    Attributes:
        chunks: The content, in pieces small enough to be worked on one after the other.
        digest: Of the content, hexadecimal.
    """

    name: str
    content_type: str
    chunks: tuple[bytes, ...]
    digest: str


class Uploaded(Struct, frozen=True, kw_only=True):
    """An artifact that is stored before its result.

    Attributes:
        url: What the result is to name it by.
        size: Bytes.
        etag: As it stands in a header.
    """

    name: str
    url: str
    size: int
    etag: str


class NewResult(Struct, frozen=True, kw_only=True):
    """A result as a worker submits it, already validated.

    Attributes:
        status: COMPLETED or FAILED.
        body: JSON text, empty when there is none.
        artifacts: Those with a URL as they are; of files, each name at most once.
        token: Lease token the worker holds; 0 when it sent none.
    """

    task_id: str
    status: str
    body: str = ""
    error: str = ""
    artifacts: tuple[Artifact | NewFile, ...] = ()
    token: int = 0


class Found(Struct, frozen=True):
    """A task as stored.

    Attributes:
        applied_index: Of the replica that answered, at the read.
    """

    task: Task
    payload: str
    shard: int
    applied_index: int


class QueueDepth(Struct, frozen=True):
    """How full one queue of a tenant is, over all shards.

    Attributes:
        oldest_ready_ms: When its longest-waiting ready task became ready; 0 when there is none.
    """

    command: str
    counters: Counters
    oldest_ready_ms: int


class PeerStatus(Struct, frozen=True, kw_only=True):
    """What a group's leader knows of one peer; `match_index` is 0 on a follower.

    Attributes:
        knows: The newest formats the peer is on record with.
    """

    id: str
    addr: str = ""
    http_addr: str = ""
    voter: bool = True
    connected: bool
    match_index: int = 0
    knows: int = 1


class ShardStatus(Struct, frozen=True, kw_only=True):
    """One Raft group as this node sees it.

    Attributes:
        leader_id: Empty when no leader is known, as are the two addresses after it.
        digest: Running hash over the applied entries, hexadecimal.
        voting: This node counts for a majority of the group.
        preferred: Who should lead when it can; empty before the group is founded.
        changing: The group's newest membership is not known to be committed.
        level: Of the formats in use.
        knows: The newest formats this node is on record with.
        durability: What an acknowledged write survives: `fsync` or `os`.
        log_sync: Who syncs this node's log now: `thread`, `kernel`, or `none` with `os`.
    """

    shard_idx: int
    is_leader: bool
    self_id: str
    self_addr: str
    self_http_addr: str = ""
    voting: bool = True
    preferred: str = ""
    changing: bool = False
    leader_id: str = ""
    leader_addr: str = ""
    leader_http_addr: str = ""
    has_leader: bool = False
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    digest: str = ""
    log_bytes: int = 0
    level: int = 1
    knows: int = 1
    durability: str = ""
    log_sync: str = ""
    peers: tuple[PeerStatus, ...] = ()
