"""Status: a group's state as operators see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerStatus:
    """One other member.

    Attributes:
        voter: It counts for a majority.
        match_index: Last entry it is known to hold durably; 0 unless this node leads.
    """

    id: str
    voter: bool
    connected: bool
    match_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One group at one instant.

    Attributes:
        ready: This node leads and its state holds every entry committed before its term.
        known_commit: The highest commit index this node has heard of. It may lack entries up to
            there, and so must not count them as committed itself.
        digest: Hex, of the state at `applied_index`.
        log_bytes: Of the entries kept, payloads only.
        leader_changes: How often the known leader changed since the start, including to none.
        voting: This node counts for a majority.
        preferred: The node that should lead when it can.
        changing: The newest membership is not known to be committed.
        counters: Dropped and refused messages, by reason.
        in_doubt: Voters whose state differs, while no majority is known to agree with this one.
    """

    shard: int
    is_leader: bool
    ready: bool
    leader: str | None
    term: int
    commit_index: int
    known_commit: int
    applied_index: int
    digest: str
    log_bytes: int
    log_first: int
    log_last: int
    leader_changes: int
    voting: bool
    preferred: str | None
    changing: bool
    peers: tuple[PeerStatus, ...]
    counters: Mapping[str, int]
    in_doubt: tuple[str, ...] = ()
