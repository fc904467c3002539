"""Pins: queues of which all new tasks are on one shard, as far as leaders have told this node.

A leader refuses a new task that belongs elsewhere, and names its queue. The node then places the
task again, and remembers the queue: a pin never ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from codeq_cluster.core.limit import pin_read
from codeq_cluster.core.outcomes import Rejected, Rejection

KNOWN_MAX = 65_536  # x about 200 bytes; beyond it every queue is learnt again, by one refusal.


class Pins:
    """What one node knows of pinned queues.

    Attributes:
        known: What places all new tasks of a queue, by tenant and queue.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], str] = {}

    def told(self, tenant: str, refused: Rejected) -> Mapping[tuple[str, str], str]:
        """Return what is known with what a refusal says."""
        assert refused.rejection is Rejection.MISPLACED
        if len(self.known) > KNOWN_MAX:
            self.known.clear()
        said = map(pin_read, refused.limit.split(","))
        self.known.update({(tenant, queue): scope for queue, scope in said})
        return self.known
