"""Virtual node: a node of a cluster without others, under a clock that moves on request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from codeq_cluster.client import Client, Operator, Worker
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import NodeSettings
from codeq_cluster.virtual_time.clock_stepper import ClockStepper
from codeq_cluster.virtual_time.movable_time import MovableTime

_POLL_S = 0.001
_CENTURY_MS = 100 * 365 * 86_400_000


@asynccontextmanager
async def virtual_node(
    settings: NodeSettings,
    time: MovableTime,
    *,
    token: str,
    workers: Sequence[Worker] = (),
    patience_s: float = 1.0,
) -> AsyncIterator[ClockStepper]:
    """Run a node within the block, in a `MovableLoop` of the same time; it is ready.

    Its data has served virtual time alone, and never serves real time: `time` does not begin
    before what it showed there.

    Args:
        settings: Of the only node of its cluster.
        token: Of an admin and producer of the tenant whose tasks the clock stops for.
        workers: As for `ClockStepper`.
        patience_s: The same.

    Raises:
        DataDirectoryRefused: The data is of real time, or as for `Node.start`.
    """
    url = f"http://127.0.0.1:{settings.port}"
    async with (
        Operator([url], token=token, deadline_s=0, discover=False) as operator,
        Client([url], token=token, deadline_s=0, discover=False) as client,
    ):
        stepper = ClockStepper(time, operator, client, workers, patience_s=patience_s)
        node = Node(_patient(settings), clock=time, virtual=stepper)
        await node.start()
        try:
            stepper.follow(node)
            while node.missing(in_full=False):  # noqa: ASYNC110, a node tells nobody
                await asyncio.sleep(_POLL_S)
            yield stepper
        finally:
            await node.stop()


def _patient(settings: NodeSettings) -> NodeSettings:
    """Return settings with which a jump of the clock times out no connection or request."""
    limits = replace(
        settings.limits,
        idle_timeout_ms=_CENTURY_MS,
        header_timeout_ms=_CENTURY_MS,
        body_timeout_ms=_CENTURY_MS,
        request_timeout_ms=_CENTURY_MS,
    )
    return replace(settings, limits=limits)
