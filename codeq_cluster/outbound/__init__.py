"""What leaves the machine: HTTP requests to targets that somebody else names."""

from codeq_cluster.outbound.sender import Sender, Sent
from codeq_cluster.outbound.targets import Targets

__all__ = ["Sender", "Sent", "Targets"]
