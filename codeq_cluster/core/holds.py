"""Holds: a worker gives its task back, and lets nothing of a key, a queue or a limit go a while."""

from __future__ import annotations

from msgspec import Struct


class Nack(Struct, frozen=True, array_like=True, tag="nack", kw_only=True):
    """Give a leased task back after a delay.

    Attributes:
        delay_ms: The requested delay; 0 or less for the back-off policy.
    """

    request: str
    id: str
    tenant: str
    worker: str
    delay_ms: int = 0
    reason: str = ""
    token: int = 0


class HoldKey(Struct, frozen=True, array_like=True, tag="hold_key", kw_only=True):
    """Give a leased task back to the front of its key, of which nothing goes for the nack's delay.

    The delivery does not count. A worker may hold the keys of `commands`; if empty, of every one.
    """

    nack: Nack
    commands: tuple[str, ...] = ()


class HoldQueue(Struct, frozen=True, array_like=True, tag="hold_queue", kw_only=True):
    """As `HoldKey`, for all tasks of a queue with a limit of its own."""

    nack: Nack
    commands: tuple[str, ...] = ()


class HoldLimit(Struct, frozen=True, array_like=True, tag="hold_limit", kw_only=True):
    """As `HoldKey`, for all tasks of the queues that share a limit with the task's queue."""

    nack: Nack
    commands: tuple[str, ...] = ()


HoldOperation = HoldKey | HoldQueue | HoldLimit
# By the word of a request.
HOLDS: dict[str, type[HoldOperation]] = {"key": HoldKey, "queue": HoldQueue, "limit": HoldLimit}
