"""Base: what every part of a node is made with."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass

from codeq_cluster.api.http.virtual_time import VirtualTime
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.ports import Clock
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tracing import Tracing


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBase:
    """The settings, the senses and the end of a node.

    Attributes:
        virtual: Moves the clock; None for real time.
        clock: Stamps instants and decides when they are due.
        tracing: Makes spans; None for none.
        background: Runs tasks for as long as the node runs; it stops after all other parts.
        stack: Each part adds its stop when it has started; they run in reverse order.
    """

    settings: NodeSettings
    clock: Clock
    metrics: Metrics
    tracing: Tracing | None
    background: Background
    stack: AsyncExitStack
    virtual: VirtualTime | None = None

    def now_s(self) -> float:
        """Return Unix seconds."""
        return self.clock.wall_ms() / 1000
