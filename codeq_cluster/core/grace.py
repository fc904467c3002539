"""Grace: a cancel that says more than the task's id, and what its worker is told of it."""

from __future__ import annotations

from msgspec import Struct

GRACE_MS_MAX = 86_400_000  # A worker that needs longer has to save its work and be cancelled.


class AskCancel(Struct, frozen=True, array_like=True, tag="ask_cancel", kw_only=True):
    """End a task that is not terminal yet; while a worker holds it, that one has time to end.

    Attributes:
        grace_ms: How long at most; 0 to end it at once, as all tasks that nobody holds.
        reason: For the worker and for people, at most `REASON_CHARS_MAX` characters.
        dependents: What waits for the task is cancelled with it, and what waits for that.
    """

    request: str
    id: str
    tenant: str
    grace_ms: int = 0
    reason: str = ""
    dependents: bool = False
