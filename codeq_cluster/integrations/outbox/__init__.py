"""Outbox: tasks that are created if, and only if, the application's own transaction commits."""

from codeq_cluster.integrations.outbox.relay import Relay
from codeq_cluster.integrations.outbox.table import METADATA, enqueue, retry, status
from codeq_cluster.integrations.rows import Status

__all__ = ["METADATA", "Relay", "Status", "enqueue", "retry", "status"]
