"""Checkpoint: what the worker of a task leaves to the next delivery, and says of it meanwhile."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.bounds import Id, JsonOrNone, Owner
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.stored_item import Place, StoredItem

CHECKPOINT_BYTES_MAX = 65536  # It is in the entry of its heartbeat, and in the answer of a claim.


def checkpoint_bytes(text: str) -> int:
    """Return the size of a checkpoint's JSON text."""
    return len(text.encode())


class Checkpoint(StoredItem, frozen=True, array_like=True, tag="checkpoint", kw_only=True):
    """The last checkpoint of a task that may be delivered again.

    Attributes:
        id: The task's.
        text: JSON as the worker sent it, at most `CHECKPOINT_BYTES_MAX`.
    """

    place = Place.TASK

    tenant: Owner
    id: Id
    text: JsonOrNone

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        if not 1 <= checkpoint_bytes(self.text) <= CHECKPOINT_BYTES_MAX:
            return f"text: must have 1 to {CHECKPOINT_BYTES_MAX} bytes"
        return ""


class Report(Struct, frozen=True, array_like=True, tag="report", kw_only=True):
    """A heartbeat that says something of the task: how far it is, or what the next worker needs.

    Attributes:
        progress: Its instant is set by the decision.
        checkpoint: JSON text of at most `CHECKPOINT_BYTES_MAX`; empty to leave it as it is.
        log: Lines for the task's log, at most `LINES_A_REPORT_MAX`.
    """

    id: str
    tenant: str
    worker: str
    extend_ms: int
    token: int = 0
    progress: Progress | None = None
    checkpoint: str = ""
    log: tuple[str, ...] = ()
