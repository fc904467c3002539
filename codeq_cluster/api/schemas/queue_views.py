"""Queue views: the depth of a queue, and whether it is paused."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.broker.values import QueueDepth


class QueueView(Struct, rename="camel", kw_only=True):
    """The depth of a queue; `paused` if nobody may claim from it."""

    command: str
    ready: int
    delayed: int
    in_progress: int
    dlq: int
    oldest_ready_seconds: int
    paused: bool | UnsetType = UNSET


class PausedQueue(Struct):
    """Whether the queue is paused now."""

    command: str
    paused: bool
    changed: bool


def queue_view(depth: QueueDepth, *, now_ms: int, paused: bool = False) -> QueueView:
    """Render a queue's depth."""
    counters = depth.counters
    waited_ms = now_ms - depth.oldest_ready_ms if depth.oldest_ready_ms else 0
    return QueueView(
        command=depth.command,
        ready=counters.ready,
        delayed=counters.delayed,
        in_progress=counters.leased,
        dlq=counters.dead,
        oldest_ready_seconds=max(0, waited_ms // 1000),
        paused=paused or UNSET,
    )
