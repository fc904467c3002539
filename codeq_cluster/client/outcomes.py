"""Outcomes: how a handler's run ended, before it is reported to the broker."""

from __future__ import annotations

from dataclasses import dataclass

from codeq_cluster.client.handling import HandlerUnfit


@dataclass(frozen=True, slots=True)
class Completed:
    """The handler returned; its result is JSON text that is not null.

    Attributes:
        next: The follow-ups, each as a request's body; of a failed task as well.
    """

    result: bytes
    next: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The task has failed for good."""

    error: str
    next: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The task is to be retried after a delay; 0 for the broker's back-off.

    Attributes:
        error: Why, if the handler did not ask for it; for the log.
        hold: What is to rest until then, too: `key`, `queue` or `limit`; empty for nothing.
    """

    reason: str
    delay_s: int = 0
    error: Exception | None = None
    hold: str = ""


@dataclass(frozen=True, slots=True)
class Rejects:
    """No attempt can finish the task: it is a dead letter."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unfit:
    """The handler can handle nothing."""

    error: HandlerUnfit


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease no longer belongs to this worker."""

    reason: str


@dataclass(frozen=True, slots=True)
class Waits:
    """The handler has parked its task at a step, and ended."""

    step: str


Outcome = Completed | Failed | GivenBack | Rejects | Unfit | Lost | Waits
