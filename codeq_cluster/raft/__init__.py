"""PySyncObj, held from outside: the only package that touches it."""

from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.status import GroupStatus, PeerStatus

__all__ = ["GroupStatus", "PeerStatus", "RaftGroup"]
