"""Progress: how far the work on a task is."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from codeq_cluster.core.bounds import Instant, Number, text

NOTE_BYTES_MAX = 1024  # It is written again with each change of the task.


class Progress(Struct, frozen=True, array_like=True, kw_only=True):
    """How far the work on a task is, in whatever its worker counts.

    Attributes:
        total: 0 if it is unknown; what is done may exceed it.
        at_ms: When the last worker to say so said it.
    """

    done: Number = 0
    total: Number = 0
    note: Annotated[str, text(NOTE_BYTES_MAX)] = ""
    at_ms: Instant = 0
