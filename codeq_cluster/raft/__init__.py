"""Raft by PySyncObj, kept safe from outside: no other package touches the library."""

from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.status import GroupStatus, PeerStatus

__all__ = ["GroupStatus", "PeerStatus", "RaftGroup"]
