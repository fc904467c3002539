"""Reject: a worker's word that no attempt can finish a task."""

from __future__ import annotations

from msgspec import Struct


class Reject(Struct, frozen=True, array_like=True, tag="reject", kw_only=True):
    """End a leased task as a dead letter, whatever attempts it has left."""

    request: str
    id: str
    tenant: str
    worker: str
    reason: str = ""
    token: int = 0
