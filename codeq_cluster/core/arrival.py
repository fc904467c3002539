"""Arrival: a task that an import brings from another cluster."""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.checkpoint import Checkpoint
from codeq_cluster.core.dependencies import Dependencies, Input
from codeq_cluster.core.durable import Signal, Step
from codeq_cluster.core.items import Delivery
from codeq_cluster.core.log_line import LogLine
from codeq_cluster.core.task import Result, Task


class Arrival(Struct, frozen=True, array_like=True, kw_only=True):
    """A task from another cluster, with everything that belongs to it.

    Attributes:
        payload: JSON text.
        result: For a terminal task only.
        deliveries: Its pending or dead callbacks, each with the result it reports.
        fingerprint: Of command and payload, for the idempotency key; see `Create`.
        dependencies: What it waits for, or has waited for.
        inputs: What these have handed to it.
        beside: Its steps, the signals to it, and the lines of its log.
        checkpoint: What its last worker has left to the next one.
    """

    task: Task
    payload: str
    result: Result | None = None
    deliveries: tuple[tuple[Delivery, Result], ...] = ()
    fingerprint: str = ""
    dependencies: Dependencies | None = None
    inputs: tuple[Input, ...] = ()
    beside: tuple[Step | Signal | LogLine, ...] = ()
    checkpoint: Checkpoint | None = None
