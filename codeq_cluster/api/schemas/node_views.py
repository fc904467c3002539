"""Node views: a node's reports about itself and its Raft groups."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from codeq_cluster.broker.values import ShardStatus


class Word(Struct):
    """The node's state in one word."""

    status: str


class NotReady(Struct, rename="camel"):
    """The reasons a node is not ready."""

    error: str
    code: str
    retryable: bool
    request_id: str
    missing: list[str]


class RaftPeer(Struct, rename="camel"):
    """Another member of a group."""

    id: str
    http_addr: str
    connected: bool
    match_index: int


class RaftGroup(Struct, rename="camel"):
    """One Raft group as this node sees it; leader fields are empty if no leader is known."""

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


def raft_view(shards: Sequence[ShardStatus]) -> RaftStatus:
    """Render the local groups; each field is the status field of the same name."""
    groups = msgspec.convert(shards, list[RaftGroup], from_attributes=True)
    return RaftStatus(enabled=True, num_groups=len(groups), groups=groups)
