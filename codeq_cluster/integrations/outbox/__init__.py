"""Outbox: tasks that are created if, and only if, a transaction of the application commits.

`Outbox.enqueue` writes a row in the application's own transaction; a `Relay` creates its task.
"""

from codeq_cluster.integrations.outbox.relay import Relay
from codeq_cluster.integrations.outbox.rows import Backlog, Outbox

__all__ = ["Backlog", "Outbox", "Relay"]
