"""Readiness: waiting until every node reports that it can serve."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from codeq_cluster.cli.local.dev.plan import PlannedNode
from codeq_cluster.cli.support.dev_cluster import TOKEN
from codeq_cluster.client import Probe, Refused, Unreachable
from codeq_cluster.errors import CodeqError

READY_TIMEOUT_S = 60.0
_POLL_S = 0.05


async def all_ready(nodes: Sequence[PlannedNode]) -> None:
    """Return when /readyz of every node answers 200.

    Raises:
        CodeqError: Not within `READY_TIMEOUT_S`; the text has the answer of each late node.
    """
    waiting: dict[str, str] = {node.id: "did not answer" for node in nodes}

    async def ready(node: PlannedNode) -> None:
        async with Probe(node.url, token=TOKEN, timeout_s=2.0) as probe:
            while True:
                try:
                    await probe.ready()
                except (Refused, Unreachable) as error:
                    waiting[node.id] = str(error)
                else:
                    del waiting[node.id]
                    return
                await asyncio.sleep(_POLL_S)

    try:
        async with asyncio.timeout(READY_TIMEOUT_S), asyncio.TaskGroup() as group:
            for node in nodes:
                group.create_task(ready(node))
    except TimeoutError as error:
        late = "; ".join(f"{node}: {reason}" for node, reason in sorted(waiting.items()))
        raise CodeqError(f"not ready within {READY_TIMEOUT_S:g} s: {late}") from error
