"""Outbox: tasks that are created if, and only if, the application's own transaction commits."""

from codeq_cluster.integrations.outbox.relay import Relay
from codeq_cluster.integrations.outbox.table import METADATA, Status, enqueue, retry, status

__all__ = ["METADATA", "Relay", "Status", "enqueue", "retry", "status"]
