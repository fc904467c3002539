"""Outgoing HTTP requests to targets that users name."""

from codeq_cluster.outbound.sender import Sender, Sent
from codeq_cluster.outbound.targets import Targets

__all__ = ["Sender", "Sent", "Targets"]
