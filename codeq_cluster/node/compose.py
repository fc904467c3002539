"""Compose: the composition root: from settings to a running node, and back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from codeq_cluster.api.http.virtual_time import VirtualTime
from codeq_cluster.api.server import HttpServer
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.ports import Clock
from codeq_cluster.broker.values import ShardStatus
from codeq_cluster.errors import DataDirectoryRefused, StorageFailed
from codeq_cluster.node import descriptors, huge_pages
from codeq_cluster.node.artifact_files import open_artifacts
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.features import log_features
from codeq_cluster.node.front_end import FrontEnd
from codeq_cluster.node.node_certificates import read_certificates
from codeq_cluster.node.open_storage import remedy
from codeq_cluster.node.parts import NodeParts, put_together
from codeq_cluster.node.relay_wiring import start_relays
from codeq_cluster.node.schedule_wiring import start_schedules
from codeq_cluster.node.webhook_wiring import WebhookWiring
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tracing import Tracing, start_tracing

log = logging.getLogger(__name__)

_COLLECT_AFTER = (20_000, 20, 50)


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Return Unix milliseconds; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""
        return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Serving:
    """A node that serves callers."""

    parts: NodeParts
    http: HttpServer


class Node:
    """One node of the cluster.

    Args:
        clock: Stamps instants and decides when they are due; None for the machine's. The event
            loop's own time must advance with it.
        virtual: Moves that clock as callers ask; None for a node whose data is of real time.
    """

    def __init__(
        self,
        settings: NodeSettings,
        *,
        clock: Clock | None = None,
        virtual: VirtualTime | None = None,
    ) -> None:
        self.settings = settings
        self.metrics = Metrics(commands_max=settings.metrics_max_commands)
        self._clock = clock or SystemClock()
        self._virtual = virtual
        self._stack = contextlib.AsyncExitStack()
        self._serving: _Serving | None = None

    @property
    def parts(self) -> NodeParts:
        """Return the node's parts, once started."""
        assert self._serving is not None
        return self._serving.parts

    @property
    def port(self) -> int:
        """Return the port of the HTTP front end, once started."""
        assert self._serving is not None
        return self._serving.http.port

    def status(self) -> list[ShardStatus]:
        """Return one status per shard."""
        return self.parts.status.shards()

    def missing(self, *, in_full: bool) -> list[str]:
        """Return why this node is not ready; in full the reasons name directories."""
        return self.parts.readiness.missing(in_full=in_full)

    async def start(self) -> None:
        """Start all parts in order; on failure, stop those that were started.

        Raises:
            DataDirectoryRefused: The data is another node's, another cluster's, locked or damaged.
            ReleaseTooOld: The data has formats that this release does not know.
            OSError: A port is taken.
        """
        try:
            self._serving = await self._start()
        except StorageFailed as error:
            await self._stack.aclose()
            text = f"{error}{remedy(error, self.settings.data_dir)}"
            raise DataDirectoryRefused(text) from error
        except BaseException:
            await self._stack.aclose()
            raise

    async def stop(self) -> None:
        """Stop without failed requests, within a bound, in this order.

        - `/readyz` fails; requests are still served until load balancers take notice.
        - The leaderships go to other nodes, so that no client waits for an election.
        - Requests in progress are finished and connections closed.
        - The other parts stop in reverse order of their start; if this call is cancelled, at once.
        """
        try:
            if self._serving is not None:
                parts, http = self._serving.parts, self._serving.http
                parts.readiness.draining = True
                log.info("stopping")
                await asyncio.sleep(self.settings.limits.drain_ms / 1000)
                await parts.drain.transfer_all()
                await http.leave()
        finally:
            await self._stack.aclose()

    async def _start(self) -> _Serving:
        """Start the parts, each after those it needs; every one adds its stop to the stack."""
        stack = self._stack
        background = Background()
        stack.push_async_callback(background.stop)

        # Certificates first: a node that cannot prove its identity must not start.
        certificates = read_certificates(self.settings, background)
        base = NodeBase(
            settings=self.settings,
            clock=self._clock,
            metrics=self.metrics,
            tracing=self._start_tracing(),
            background=background,
            stack=stack,
            virtual=self._virtual,
        )

        # All listeners are registered before the first part runs, so that none misses an event.
        parts = put_together(base, certificates)

        # The groups drive the replicas; snapshot fetches stop before the groups do.
        parts.replicas.start()
        parts.recovery.start()

        # The link: from here on there are other nodes.
        await parts.mesh.start(parts.calls.handler, parts.members)
        stack.push_async_callback(parts.mesh.stop)
        background.spawn(parts.members.take_part())

        # The leaders' work outside the log: outbox jobs, relays and schedules; and notices.
        files = open_artifacts(base)
        outgoing = await WebhookWiring(base, parts).start(files)
        start_relays(base, parts)
        start_schedules(base, parts)

        # Callers last: every request needs the parts above.
        front_end = FrontEnd(
            base=base, parts=parts, files=files, background=outgoing, certificates=certificates
        )
        http = await front_end.open()
        log_features(self.settings)
        log.info("serving", extra={"port": http.port})
        return _Serving(parts, http)

    def _start_tracing(self) -> Tracing | None:
        """Make spans if a collector is configured."""
        settings = self.settings
        tracing = start_tracing(settings.tracing, node_id=settings.node_id)
        if tracing is not None:
            self._stack.push_async_callback(tracing.stop)
        return tracing


async def run(settings: NodeSettings, *, ready: Callable[[], None] | None = None) -> None:
    """Run a node until the calling task is cancelled.

    Args:
        ready: Called once the node serves; some shards may not have a leader yet.
    """
    node = Node(descriptors.leave_files(settings))
    await node.start()
    # Objects made at start-up live as long as the node, so the collector need not check them again.
    # It also checks the rest less often, because most of it is freed without the collector.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        await asyncio.to_thread(huge_pages.collapse)
        if ready is not None:
            ready()
        await asyncio.Event().wait()
    finally:
        await node.stop()
