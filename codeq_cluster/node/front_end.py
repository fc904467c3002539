"""Front end: the broker for callers over HTTP, with its API and its page."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from codeq_cluster.api.app import make_app
from codeq_cluster.api.http.access_log import AccessLog
from codeq_cluster.api.http.services import (
    CallerShares,
    ClusterServices,
    RequestTelemetry,
    Services,
)
from codeq_cluster.api.server import HttpServer
from codeq_cluster.auth import Authenticator
from codeq_cluster.backup.job import BackupJobs
from codeq_cluster.backup.open_target import open_place
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.feed.feed import Feed
from codeq_cluster.broker.polls import Polls
from codeq_cluster.broker.queries.depths import LocalDepths
from codeq_cluster.broker.service import Broker
from codeq_cluster.core.loops import Loop
from codeq_cluster.node.artifact_files import ArtifactFiles
from codeq_cluster.node.backup_source import BackupShard
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.metrics import register_gauges, register_tls, register_turns
from codeq_cluster.node.node_certificates import NodeCertificates
from codeq_cluster.node.parts import NodeParts
from codeq_cluster.node.peer_logs import PeerLogs
from codeq_cluster.node.report import Reporter
from codeq_cluster.ui.routes import mount
from codeq_cluster.ui.sources import Shared, Sources
from codeq_cluster.webhooks.dns import DnsResolver
from codeq_cluster.webhooks.ssrf_guard.targets import Targets

_NAMES_AT_ONCE = 16  # Concurrent look-ups of webhooks' names, each in a thread.


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontEnd:
    """Opens a node to callers.

    Attributes:
        files: The artifact store; None for none.
        background: Runs what outlives a request.
        certificates: For https, and for the metrics.
    """

    base: NodeBase
    parts: NodeParts
    files: ArtifactFiles | None
    background: Background
    certificates: NodeCertificates

    async def open(self) -> HttpServer:
        """Serve the API and the page; return the server. Raises OSError if the port is taken."""
        base, parts, certificates = self.base, self.parts, self.certificates
        register_gauges(
            base.metrics,
            engines=parts.replicas.engines,
            groups=parts.replicas.groups,
            stores=parts.storage.databases,
            states=[shard.state for shard in parts.storage.shards],
            mesh=parts.mesh,
            now_s=base.now_s,
        )
        authenticator = Authenticator(base.settings.auth, now_ms=base.clock.wall_ms)
        await authenticator.start()
        base.stack.push_async_callback(authenticator.stop)
        http = self._http(authenticator)
        base.background.spawn(parts.replicas.history.run())
        register_tls(base.metrics, certificates=certificates.all, http=http)
        await http.start()
        base.stack.push_async_callback(http.stop)
        return http

    def _http(self, authenticator: Authenticator) -> HttpServer:
        """Return the server of the API and the page, not started."""
        base, parts, settings = self.base, self.parts, self.base.settings
        polls = Polls(base.clock.wall_ms)
        targets = Targets(
            allow_private=settings.webhooks.allow_private,
            lookup=DnsResolver(threads_max=_NAMES_AT_ONCE).addresses,
        )
        shares = CallerShares(settings, parts.calls.quotas)
        register_turns(base.metrics, shares.turns)
        app = make_app(
            Services(
                broker=self._broker(),
                authenticator=authenticator,
                settings=settings,
                now_ms=base.clock.wall_ms,
                shares=shares,
                telemetry=RequestTelemetry(
                    metrics=base.metrics,
                    access_log=AccessLog(settings.access_log, shares.callers),
                    tracing=base.tracing,
                ),
                cluster=ClusterServices(
                    transfers=parts.calls.transfers,
                    members=parts.members.members,
                    backups=self._backups(),
                ),
                polls=polls,
                targets=targets,
                feed=self._feed(),
                artifacts=None if self.files is None else self.files.kept,
                virtual_time=base.virtual,
            )
        )
        mount(app, self._page_sources(polls))
        return HttpServer(
            app,
            host=settings.host,
            port=settings.port,
            limits=settings.limits,
            metrics=base.metrics,
            certificates=self.certificates.http,
        )

    def _broker(self) -> Broker:
        parts = self.parts
        return Broker(
            shards=parts.calls.router,
            clock=self.base.clock,
            waiters=parts.replicas.waiters,
            background=self.background,
            status=parts.status.shards,
            missing=parts.readiness.missing,
            files=self.files,
            artifact_base=self.base.settings.artifacts.public_url.rstrip("/"),
        )

    def _feed(self) -> Feed:
        """Return the events of tasks; other nodes may ask for what this one's log has."""
        base, calls = self.base, self.parts.calls
        logs = PeerLogs(calls.gathering)
        feed = Feed(
            calls.router,
            failed=partial(base.metrics.item_failures.inc, Loop.LISTENERS),
            elsewhere=logs.entries,
        )
        logs.answer_from(feed)
        return feed

    def _page_sources(self, polls: Polls) -> Sources:
        """Return the page's data sources, on this node and, over the link, on the others."""
        base, parts = self.base, self.parts
        stores = [store.state for store in parts.storage.shards]
        sources = Sources(
            depths=LocalDepths(stores=stores, catalogue=parts.replicas.catalogue),
            history=parts.replicas.history,
            polls=polls,
            gathering=parts.calls.gathering,
            now_ms=base.clock.wall_ms,
            shared=Shared(self.background),
        )
        sources.offer(Reporter(base, parts).report)
        return sources

    def _backups(self) -> BackupJobs | None:
        base, parts, settings = self.base, self.parts, self.base.settings
        place = open_place(settings.backup)
        if place is None:
            return None
        return BackupJobs(
            node_id=settings.node_id,
            cluster_id=settings.cluster_id,
            place=place,
            shards=[BackupShard(shard, parts) for shard in range(settings.shards)],
            scratch=parts.storage.directory.backup_path,
            keep=settings.backup.keep,
            bytes_per_s=settings.backup.bytes_per_second,
            background=self.background,
            now_ms=base.clock.wall_ms,
        )
