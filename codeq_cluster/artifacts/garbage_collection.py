"""Garbage collection: uploads deleted that no result refers to, or whose tasks are gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from codeq_cluster.broker.files import Files
from codeq_cluster.core.items import Sweep
from codeq_cluster.core.operations import Operation, Swept
from codeq_cluster.errors import ArtifactStoreFailed
from codeq_cluster.fair_shares import FairShares

log = logging.getLogger(__name__)

AT_ONCE = 16  # On one node, a share a tenant; few suffice, since no caller waits for them.
REST_S = 10.0  # Pause of all attempts after a failure: the store is down for every upload.


class GarbageCollection:
    """Runs the jobs of the artifact garbage collection.

    Args:
        files: The artifact store; None if this node has none: the jobs then wait for a node that
            has one.
        on_outcome: Called with the outcome of every attempt, `success` or `failure`.

    Attributes:
        jobs: The node's jobs at once, a share a tenant; a caller takes one before it runs.
    """

    def __init__(self, files: Files | None, *, on_outcome: Callable[[str], None]) -> None:
        self._files = files
        self._on_outcome = on_outcome
        self.jobs = FairShares(AT_ONCE, name="the node's deletions of artifacts")
        self._rests_until = float("-inf")
        self._failing = False

    async def run(self, sweep: Sweep) -> Operation:
        """Make one attempt and return the operation that records its outcome."""
        swept = await self._swept(sweep)
        return Swept(tenant=sweep.tenant, id=sweep.id, attempt=sweep.attempts + 1, failed=not swept)

    async def _swept(self, sweep: Sweep) -> bool:
        loop = asyncio.get_running_loop()
        if loop.time() < self._rests_until:
            return False
        try:
            if self._files is None:
                raise ArtifactStoreFailed("artifacts.provider is none")  # noqa: TRY301
            await self._files.discard(sweep.tenant, sweep.task_id, sweep.upload)
        except ArtifactStoreFailed as error:
            self._rests_until = loop.time() + REST_S
            if not self._failing:
                self._failing = True
                log.warning("unneeded artifacts stay for now", extra={"error": str(error)})
            self._on_outcome("failure")
            return False
        if self._failing:
            self._failing = False
            log.info("unneeded artifacts are deleted again")
        self._on_outcome("success")
        return True
