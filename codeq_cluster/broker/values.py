"""Values: validated values that callers give the broker and get from it."""

from __future__ import annotations

import os
from collections import Counter
from typing import TypedDict

from msgspec import Struct

from codeq_cluster.core.new_task import Create
from codeq_cluster.core.task import Artifact, Counters, Task

ERRORS_MAX = 100  # Distinct errors of one count.
OTHER_ERROR = "(other)"


def new_request() -> str:
    """Return a new request id: 96 random bits in hexadecimal."""
    return os.urandom(12).hex()


def count_error(counts: Counter[str], error: str, number: int = 1) -> None:
    """Count tasks that have an error; past `ERRORS_MAX` distinct ones, others count together."""
    known = error in counts or len(counts) < ERRORS_MAX
    counts[error if known else OTHER_ERROR] += number


class Signed(TypedDict):
    """The fields of an operation that its audit record names."""

    request: str
    tenant: str
    by: str


class Caller(Struct, frozen=True):
    """Who asks an admin's question, or for an admin's change.

    Attributes:
        tenant: The owner of what is asked about.
        by: Subject, for the audit record.
        deadline: By when it must be answered, as `deadline_in` says it.
    """

    tenant: str
    by: str
    deadline: float

    def signed(self) -> Signed:
        """Return what a change says of its request, with a new id."""
        return {"request": new_request(), "tenant": self.tenant, "by": self.by}


class NewFile(Struct, frozen=True, kw_only=True):
    """An artifact sent with its result, to be stored.

    Attributes:
        chunks: The content, in pieces small enough to be handled one after the other.
        digest: Of the content, hexadecimal.
    """

    name: str
    content_type: str
    chunks: tuple[bytes, ...]
    digest: str


class Uploaded(Struct, frozen=True, kw_only=True):
    """An artifact stored before its result.

    Attributes:
        url: The URL by which the result must name it.
        size: Bytes.
        etag: As written in a header.
    """

    name: str
    url: str
    size: int
    etag: str


class NewResult(Struct, frozen=True, kw_only=True):
    """A result as a worker submits it, already validated.

    Attributes:
        status: COMPLETED or FAILED.
        body: JSON text, empty if there is none.
        artifacts: Those with a URL are kept as they are; of files, each name at most once.
        token: Lease token the worker holds; 0 if it sent none.
        next: The tasks that follow, without ids.
        next_digest: Of what the worker said of them; empty if there are none.
        next_groups: See `Finish.groups`.
    """

    task_id: str
    status: str
    body: str = ""
    error: str = ""
    artifacts: tuple[Artifact | NewFile, ...] = ()
    token: int = 0
    next: tuple[Create, ...] = ()
    next_digest: str = ""
    next_groups: tuple[str, ...] = ()


class FoundTask(Struct, frozen=True):
    """A stored task.

    Attributes:
        applied_index: Of the replica that answered, at the read.
    """

    task: Task
    payload: str
    shard: int
    applied_index: int


class QueueDepth(Struct, frozen=True):
    """The depth of one queue of a tenant, over all shards.

    Attributes:
        oldest_ready_ms: When its longest-waiting ready task became ready; 0 if there is none.
        oldest_held_ms: Since when a task waits for its key; 0 if none does.
        held_until_ms: Until when a worker holds the queue; 0 if none does.
    """

    command: str
    counters: Counters
    oldest_ready_ms: int
    oldest_held_ms: int = 0
    held_until_ms: int = 0


class PeerView(Struct, frozen=True, kw_only=True):
    """The state of one peer as a group's leader knows it; `match_index` is 0 on a follower.

    Attributes:
        away_since_ms: Since when the answering node cannot reach it; 0 while it can.
        remedy: What to do if one of the two refuses the other; empty if unknown.
        knows: The newest formats on record for the peer.
    """

    id: str
    addr: str = ""
    http_addr: str = ""
    voter: bool = True
    connected: bool
    away_since_ms: int = 0
    remedy: str = ""
    match_index: int = 0
    knows: int = 1


class ShardStatus(Struct, frozen=True, kw_only=True):
    """One Raft group as this node sees it.

    Attributes:
        leader_id: Empty if no leader is known, as are the two addresses after it.
        digest: Running hash over the applied entries, hexadecimal.
        voting: Whether this node counts towards the group's majority.
        preferred: The node that should lead when it can; empty before the bootstrap.
        changing: Whether the group's newest membership is not known to be committed.
        level: Of the formats in use.
        knows: The newest formats on record for this node.
        durability: What an acknowledged write survives: `fsync` or `os`.
        log_sync: How this node's log is synced now: `thread`, `kernel`, or `none` with `os`.
        aside: How many tasks and items of all tenants are set aside, as this node knows.
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
    aside: int = 0
    peers: tuple[PeerView, ...] = ()
