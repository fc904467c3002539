"""Step views: durable steps and signals of a task as JSON."""

from __future__ import annotations

from msgspec import UNSET, Raw, Struct, UnsetType

from codeq_cluster.core.durable import Signal, Step
from codeq_cluster.core.instants import rfc3339


class StepView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A step that a task's function has recorded, or waits at.

    `value` is what the step has returned; of a wait, the payload of the signal that ended it, so a
    wait that time has ended has none. A wait has an `until`, and is `open` until it is over.
    `position` is its place among the steps that the function asks for, if its worker counts them.
    """

    name: str
    position: int = 0
    value: Raw | UnsetType = UNSET
    recorded_at: str
    signal: str = ""
    until: str = ""
    open: bool = False


class SignalView(Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A signal; once a wait has read it, its payload is that step's value."""

    name: str
    payload: Raw | UnsetType = UNSET
    sent_at: str
    read: bool = False


def step_view(step: Step) -> StepView:
    """Render a step."""
    return StepView(
        name=step.name,
        position=step.position,
        value=_raw(step.value),
        recorded_at=rfc3339(step.at_ms),
        signal=step.signal,
        until=rfc3339(step.until_ms) if step.until_ms else "",
        open=step.is_open,
    )


def signal_view(signal: Signal) -> SignalView:
    """Render a signal."""
    return SignalView(
        name=signal.name,
        payload=_raw(signal.payload),
        sent_at=rfc3339(signal.sent_ms),
        read=signal.is_read,
    )


def _raw(text: str) -> Raw | UnsetType:
    return Raw(text.encode()) if text else UNSET
