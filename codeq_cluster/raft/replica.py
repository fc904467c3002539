"""Replica: what the parts of one replica share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.raft.applier import Applier
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.journal import Journal
from codeq_cluster.raft.links import Links
from codeq_cluster.raft.outbox import Outbox
from codeq_cluster.raft.ports import StateMachine
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.voters import Voters
from codeq_cluster.settings import RaftSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Which replica this is, and what it goes by; the same for as long as the process runs.

    Attributes:
        shard: Number of the shard, for logs and status.
        node_id: This node.
        incarnation: Grows durably with each start on the same data; 1 to 2^64 - 1.
        level: The newest format version this node knows.
        settings: Times and sizes.
        rules: Production has them all.
        counters: Of dropped and refused messages and other rare events, by reason.
        now: Returns monotonic seconds.
    """

    shard: int
    node_id: str
    incarnation: int
    level: int
    settings: RaftSettings
    rules: SafetySwitches
    counters: Counter[str]
    now: Callable[[], float]

    @property
    def election_s(self) -> float:
        """Return the election timeout; a peer that answered within it is alive."""
        return self.settings.election_ms / 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One start of a replica: its members, its way to them, its log and its state.

    A group that resumes on an exchanged store makes another one, so that nothing which the parts
    remember of the old log or state outlives it. `voters`, `links` and `outbox` go on.

    Attributes:
        context: Which replica this is.
        voters: The membership in force.
        links: To which peers there is a connection.
        outbox: The way to the peers.
        journal: The log on this node's disk.
        engine: The library's Raft state on that log.
        machine: The state that the log drives.
        applier: Brings entries from the log into the state.
        divergence: Which voters have another state.
    """

    context: Context
    voters: Voters
    links: Links
    outbox: Outbox
    journal: Journal
    engine: SafeSyncObj
    machine: StateMachine
    applier: Applier
    divergence: Divergence
