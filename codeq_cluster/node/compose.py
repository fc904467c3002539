"""Compose: the composition root: from settings to a running node, and back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from codeq_cluster.api.app import make_app
from codeq_cluster.api.server import HttpServer
from codeq_cluster.artifacts import open_store
from codeq_cluster.auth import Authenticator
from codeq_cluster.backup.job import BackupJobs
from codeq_cluster.backup.open_target import open_place
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.engine import Engine, EngineLimits
from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.broker.polls import Polls
from codeq_cluster.broker.ports import Clock
from codeq_cluster.broker.queries.depths import LocalDepths
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import ShardStatus
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.errors import DataDirectoryRefused, ReleaseTooOld, SafetyViolated, StorageFailed
from codeq_cluster.membership.node_view import NodeMembers
from codeq_cluster.node.artifact_files import ArtifactFiles
from codeq_cluster.node.backup_source import BackupShard
from codeq_cluster.node.disk_guard import out_of_room
from codeq_cluster.node.drain import Drain
from codeq_cluster.node.metrics import register_gauges, register_log_sync, register_tls
from codeq_cluster.node.offers import tell_offers
from codeq_cluster.node.peer_handler import PeerHandler
from codeq_cluster.node.readiness import Readiness
from codeq_cluster.node.recovery import Recovery
from codeq_cluster.node.report import Reporter
from codeq_cluster.node.status import status_of
from codeq_cluster.node.webhook_wiring import WebhookWiring
from codeq_cluster.raft.group import Identity, RaftGroup
from codeq_cluster.raft.io_adapters import DiskThread, GroupLink, LoopTimers
from codeq_cluster.raft.ports import Events, Ports
from codeq_cluster.ratelimit.limiter import BORROW, RateLimiter, RateLimits
from codeq_cluster.routing.ask_all import GATHER, AskAll
from codeq_cluster.routing.leadership import TRANSFER, LeadershipTransfers
from codeq_cluster.routing.router import Router
from codeq_cluster.routing.shard_calls import ShardCalls
from codeq_cluster.settings import BudgetSettings, Durability, LogSync, NodeSettings, TenantBudget
from codeq_cluster.storage.directory import DataDirectory, open_directory
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.rocks import RocksShard, new_cache
from codeq_cluster.storage.shard import Shard
from codeq_cluster.storage.syncers import syncer_of
from codeq_cluster.storage.wal_writer import Syncer
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.history import History
from codeq_cluster.telemetry.tasks import TaskObserver
from codeq_cluster.telemetry.tracing import Tracing, start_tracing
from codeq_cluster.ui.routes import mount
from codeq_cluster.ui.sources import Shared, Sources
from codeq_cluster.webhooks.dns import DnsResolver
from codeq_cluster.webhooks.ssrf_guard.targets import Targets
from codeq_cluster.wire import Mesh, http_certificates, link_certificates
from codeq_cluster.wire.certificates import Certificates
from codeq_cluster.wire.handshake import LinkIdentity

log = logging.getLogger(__name__)

EXIT_REFUSED = 1  # Same as for a refusal at the start.
EXIT_UNSAFE = 70  # The process ends at once: an invariant does not hold.
_COLLECT_AFTER = (20_000, 20, 50)
_NAMES_AT_ONCE = 16  # Concurrent look-ups of webhooks' names, each in a thread.


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Return Unix milliseconds; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""
        return time.monotonic_ns() // 1_000_000


class Node:
    """One node of the cluster.

    Args:
        settings: The node's settings.
        clock: Stamps instants and decides when they are due; None for the machine's. The event
            loop's own time must advance with it.
    """

    def __init__(self, settings: NodeSettings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self.metrics = Metrics(commands_max=settings.metrics_max_commands)
        self._stack = contextlib.AsyncExitStack()
        self._databases: list[RocksShard] = []
        self._syncer: Syncer | None = None
        self._shards: Sequence[Shard] = ()
        self._engines: list[Engine] = []
        self._groups: list[RaftGroup] = []
        self._http: HttpServer | None = None
        self._draining = False
        self._tracing: Tracing | None = None

    @property
    def port(self) -> int:
        """Return the port of the HTTP front end, once started."""
        assert self._http is not None
        return self._http.port

    async def start(self) -> None:
        """Start all parts in order; on failure, stop those that were started.

        Raises:
            DataDirectoryRefused: The data is another node's, another cluster's, locked or damaged.
            ReleaseTooOld: The data has formats that this release does not know.
            OSError: A port is taken.
        """
        try:
            await self._start()
        except StorageFailed as error:
            await self._stack.aclose()
            raise DataDirectoryRefused(f"{error}{self._remedy(error)}") from error
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
            if self._http is not None:
                self._draining = True
                log.info("stopping")
                await asyncio.sleep(self.settings.limits.drain_ms / 1000)
                await self._leaving.give_all_away()
                await self._http.leave()
        finally:
            await self._stack.aclose()

    async def _start(self) -> None:
        settings = self.settings
        stack = self._stack

        # Certificates first: a node that cannot prove its identity must not start.
        watching = Background()
        stack.push_async_callback(watching.stop)
        certificates = self._read_certificates(watching)

        # Spans, if a collector is configured.
        self._start_tracing()

        # The data directory: locked, checked, its incarnation raised by one.
        directory = open_directory(
            settings.data_dir,
            cluster_id=settings.cluster_id,
            node_id=settings.node_id,
            shards=settings.shards,
        )
        stack.callback(directory.close)

        # The databases, one per shard, with one shared block cache, and the write-ahead log in
        # front of them.
        self._shards = self._open_storage(directory).shards

        # The broker's engines, one per shard, and the catalogue that connects them.
        catalogue = Catalogue()
        self._history = History(catalogue.counters, self._now_s)
        waiters = Waiters(waiters_max=settings.limits.waiters_max, claimable=catalogue.claimable)
        self._make_engines(waiters, catalogue)
        self._attach(catalogue, waiters)

        # The link; it carries messages only after its start below.
        self._members = NodeMembers(
            settings, directory, groups=self._groups, replicas=self._engines
        )
        mesh = self._make_mesh(directory)
        forwarder = Router(
            node_id=settings.node_id,
            engines=self._engines,
            calls=mesh,
            tracing=self._tracing,
            took=self.metrics.forwarded,
            is_out=lambda shard: shard in self._upkeep.outages.out,
            peers=self._members.connected,
        )
        transfers = self._serve_peers(mesh)
        gathering = AskAll(node_id=settings.node_id, peers=self._members.connected, calls=mesh)
        self._served[GATHER] = gathering.serve

        # The Raft groups drive the engines; snapshot fetches stop before the groups do.
        self._make_groups(mesh, directory)
        self._leaving = Drain(node_id=settings.node_id, groups=self._groups, replicas=self._engines)
        self._served |= self._upkeep.attach(
            mesh,
            directory,
            hand_over=self._leaving.give_all_away,
            told=waiters.all,
            needed=self._members.needed,
        )
        self._readiness = Readiness(
            groups=self._groups,
            members=self._members,
            outages=self._upkeep.outages,
            entries_in_flight_max=settings.raft.entries_in_flight_max,
        )
        for engine in self._engines:
            engine.on_reload(catalogue.reload)
            engine.on_reload(waiters.all)
        self._served |= self._members.attach(mesh)
        handler = PeerHandler(
            self._groups,
            ShardCalls(self._engines, tracing=self._tracing),
            methods=self._served,
            traced=self._tracing is not None,
        )
        await mesh.start(handler, self._members)
        stack.push_async_callback(mesh.stop)
        watching.spawn(self._members.take_part())

        # The artifact store.
        files = self._open_artifacts()

        # Outgoing calls: the leaders' outbox jobs, and notices.
        background = await WebhookWiring(
            settings.webhooks,
            engines=self._engines,
            stores=self._shards,
            quotas=self._quotas,
            metrics=self.metrics,
            tracing=self._tracing,
            stack=stack,
        ).start(files, catalogue)

        # The broker, for callers.
        broker = Broker(
            shards=forwarder,
            clock=self._clock,
            waiters=waiters,
            background=background,
            status=self.status,
            missing=self.missing,
            files=files,
            artifact_base=settings.artifacts.public_url.rstrip("/"),
        )
        register_gauges(
            self.metrics,
            engines=self._engines,
            groups=self._groups,
            stores=self._databases,
            mesh=mesh,
        )
        authenticator = Authenticator(settings.auth, clock=self._now_s)
        await authenticator.start()
        stack.push_async_callback(authenticator.stop)

        targets = Targets(
            allow_private=settings.webhooks.allow_private,
            lookup=DnsResolver(threads_max=_NAMES_AT_ONCE).addresses,
        )

        # The HTTP server with the page comes last: every request needs the parts above.
        polls = Polls(self._clock.wall_ms)
        app = make_app(
            broker,
            authenticator,
            settings,
            self.metrics,
            quotas=self._quotas,
            tracing=self._tracing,
            targets=targets,
            cluster=transfers,
            members=self._members.members,
            polls=polls,
            artifacts=None if files is None else files.kept,
            backups=self._open_backups(directory, forwarder, catalogue, background),
            now_ms=self._clock.wall_ms,
        )
        mount(app, self._sources(catalogue, polls, gathering, background))
        watching.spawn(self._history.run())
        self._http = HttpServer(
            app,
            host=settings.host,
            port=settings.port,
            limits=settings.limits,
            metrics=self.metrics,
            certificates=self._http_tls,
        )
        register_tls(self.metrics, certificates=certificates, http=self._http)
        await self._open_door(self._http)

    def _now_s(self) -> float:
        """Return Unix seconds."""
        return self._clock.wall_ms() / 1000

    async def _open_door(self, http: HttpServer) -> None:
        await http.start()
        self._stack.push_async_callback(http.stop)
        tell_offers(self.settings)
        log.info("serving", extra={"port": http.port})

    def _sources(
        self, catalogue: Catalogue, polls: Polls, gathering: AskAll, background: Background
    ) -> Sources:
        """Return the page's data sources, on this node and, over the link, on the others."""
        reporter = Reporter(
            self.settings,
            groups=self._groups,
            outages=self._upkeep.outages,
            missing=self.missing,
            started_ms=self._clock.wall_ms(),
        )
        sources = Sources(
            depths=LocalDepths(stores=[store.state for store in self._shards], catalogue=catalogue),
            history=self._history,
            polls=polls,
            gathering=gathering,
            now_ms=self._clock.wall_ms,
            shared=Shared(background),
        )
        sources.offer(reporter.report)
        return sources

    def _read_certificates(self, watching: Background) -> list[Certificates[Any]]:
        settings = self.settings
        self._http_tls = http_certificates(settings.tls)
        self._link_tls = link_certificates(settings.link_tls, node_id=settings.node_id)
        found = [known for known in (self._http_tls, self._link_tls) if known is not None]
        for known in found:
            watching.spawn(known.watch())
        return found

    def _start_tracing(self) -> None:
        settings = self.settings
        self._tracing = start_tracing(settings.tracing, node_id=settings.node_id)
        if self._tracing is not None:
            self._stack.push_async_callback(self._tracing.stop)

    def _open_storage(self, directory: DataDirectory) -> NodeStorage:
        settings = self.settings
        loop = asyncio.get_running_loop()
        cache = new_cache(settings.store)
        for shard in range(settings.shards):
            with self._naming_damage(shard):
                database = RocksShard(
                    directory.shard_path(shard),
                    settings=settings.store,
                    cache=cache,
                    create=not directory.made,
                )
            self._stack.callback(_close, shard, database)
            self._databases.append(database)
        directory.note_made()
        disk = DiskThread(loop)
        syncer = self._syncer = self._make_syncer(disk, loop)
        register_log_sync(self.metrics, syncer)
        storage = NodeStorage(
            self._databases,
            directory,
            executor=disk,
            syncer=syncer,
            timers=LoopTimers(loop),
            took=self.metrics.log_synced,
            on_failed=self._storage_failed,
            held_bytes=settings.store.unspilled_bytes,
        )
        try:
            storage.start()
        except (DataDirectoryRefused, StorageFailed) as error:
            raise DataDirectoryRefused(f"{error}{self._remedy(error)}") from error
        self._stack.callback(storage.stop)
        return storage

    def _make_syncer(self, disk: DiskThread, loop: asyncio.AbstractEventLoop) -> Syncer | None:
        if self.settings.raft.durability is not Durability.FSYNC:
            return None
        return syncer_of(self.settings.store.sync, disk, loop, loop.time)

    def _storage_failed(self, shard: int, error: BaseException) -> None:
        self._upkeep.failed(shard, error)

    def _make_groups(self, mesh: Mesh, directory: DataDirectory) -> None:
        settings = self.settings
        upkeep = Background()
        self._upkeep = Recovery(
            settings,
            stores=self._shards,
            groups=self._groups,
            engines=self._engines,
            background=upkeep,
            metrics=self.metrics,
            fatal=_stop_at_once,
        )
        timers = LoopTimers(asyncio.get_running_loop())
        for shard, engine in enumerate(self._engines):
            group = RaftGroup(
                Identity(shard=shard, node_id=settings.node_id, incarnation=directory.incarnation),
                bootstrap=self._members.founding,
                ports=Ports(
                    store=self._shards[shard].log,
                    writer=self._shards[shard].log,
                    machine=engine,
                    source=engine,
                    link=GroupLink(mesh, shard),
                    timers=timers,
                    random=random.Random(),  # noqa: S311 - spreads elections, guards nothing
                ),
                events=Events(
                    on_fatal=partial(_stop_at_once, shard),
                    on_behind=partial(self._upkeep.behind, shard),
                    on_diverged=partial(self._upkeep.diverged, shard),
                    on_storage_failed=partial(self._upkeep.failed, shard),
                    on_members=self._members.changed,
                ),
                settings=settings.raft,
            )
            engine.attach(group)
            self._groups.append(group)
            self._start_group(shard, group)
            self._stack.callback(group.stop)
            self._stack.callback(engine.stop)
        self._stack.push_async_callback(upkeep.stop)

    def _start_group(self, shard: int, group: RaftGroup) -> None:
        with self._naming_damage(shard):
            group.start()

    @contextlib.contextmanager
    def _naming_damage(self, shard: int) -> Iterator[None]:
        """Add the shard's number and a remedy to an error from opening its store."""
        try:
            yield
        except (DataDirectoryRefused, StorageFailed) as error:
            text = f"shard {shard}: {error}{self._remedy(error)}"
            raise DataDirectoryRefused(text) from error

    def _remedy(self, error: BaseException) -> str:
        if "in use by another process" in str(error) or out_of_room(error):
            return ""
        return f"; see what codeq-cluster repair --data-dir {self.settings.data_dir} finds"

    def _make_engines(self, waiters: Waiters, catalogue: Catalogue) -> None:
        settings = self.settings
        lifecycle = settings.lifecycle
        rules = LifetimeRules(
            backoff_policy=lifecycle.backoff_policy.value,
            backoff_base_ms=lifecycle.backoff_base_seconds * 1000,
            backoff_max_ms=lifecycle.backoff_max_seconds * 1000,
            retention_ms=lifecycle.retention_seconds * 1000,
            dlq_retention_ms=lifecycle.dlq_retention_seconds * 1000,
            audit_retention_ms=lifecycle.audit_retention_seconds * 1000,
            max_attempts_default=lifecycle.max_attempts_default,
            delivery_attempts_max=settings.webhooks.max_attempts,
            delivery_age_max_ms=settings.webhooks.max_age_seconds * 1000,
            delivery_base_ms=settings.webhooks.base_backoff_seconds * 1000,
            delivery_max_ms=settings.webhooks.max_backoff_seconds * 1000,
            # Twice a timeout: recording the upload may take as long as a request, and the upload
            # starts after it.
            sweep_delay_ms=settings.limits.request_timeout_ms + settings.artifacts.timeout_ms,
            budget=_budget(settings.budgets),
            budgets={each.tenant: _budget(each) for each in settings.budgets.tenants},
        )
        limits = EngineLimits(
            operations_max=settings.limits.operations_queued_max,
            bytes_max=settings.limits.operations_queued_bytes_max,
            lease_grace_ms=int(lifecycle.lease_grace_seconds * 1000),
            entry_bytes_max=settings.raft.entry_bytes_max,
        )
        observer = TaskObserver(self.metrics, self._history)
        for shard in range(settings.shards):
            with self._naming_damage(shard):
                engine = Engine(
                    node_id=settings.node_id,
                    shard=shard,
                    shards=settings.shards,
                    store=self._shards[shard].state,
                    rules=rules,
                    limits=limits,
                    clock=self._clock,
                    fraction=random.SystemRandom().random,
                    observer=observer,
                    tracing=self._tracing,
                    catalogue=catalogue,
                    awaited=lambda: waiters.awaited,
                )
            # The catalogue first: woken callers rely on it.
            engine.on_rows(catalogue.rows)
            engine.on_rows(waiters.rows)
            engine.on_leader(partial(self.metrics.leader_changed, shard))
            self._engines.append(engine)

    def _attach(self, catalogue: Catalogue, waiters: Waiters) -> None:
        catalogue.attach(
            [store.state for store in self._shards],
            [partial(_replica, engine) for engine in self._engines],
        )
        catalogue.on_open(
            lambda tenant, queue: waiters.work(
                tenant,
                queue,
                catalogue.claimable(tenant, queue, catalogue.ready(tenant, queue)),
            )
        )

    def _open_artifacts(self) -> ArtifactFiles | None:
        store = open_store(self.settings.artifacts)
        if store is None:
            return None
        self._stack.push_async_callback(store.close)
        return ArtifactFiles(
            store,
            bytes_max=self.settings.limits.max_artifact_bytes,
            timeout_s=self.settings.artifacts.timeout_ms / 1000,
        )

    def _open_backups(
        self,
        directory: DataDirectory,
        forwarder: Router,
        catalogue: Catalogue,
        background: Background,
    ) -> BackupJobs | None:
        settings = self.settings
        place = open_place(settings.backup)
        if place is None:
            return None
        return BackupJobs(
            node_id=settings.node_id,
            cluster_id=settings.cluster_id,
            place=place,
            shards=[
                BackupShard(
                    shard,
                    store,
                    shards=forwarder,
                    catalogue=catalogue,
                    group=self._groups[shard],
                    outages=self._upkeep.outages,
                )
                for shard, store in enumerate(self._shards)
            ],
            scratch=directory.backup_path,
            keep=settings.backup.keep,
            bytes_per_s=settings.backup.bytes_per_second,
            background=background,
            now_ms=self._clock.wall_ms,
        )

    def _make_mesh(self, directory: DataDirectory) -> Mesh:
        settings = self.settings
        return Mesh(
            LinkIdentity(
                node_id=settings.node_id,
                cluster_id=settings.cluster_id,
                incarnation=directory.incarnation,
                secret=settings.cluster_secret.encode(),
                address=self._members.me.link,
            ),
            peers=self._members.links(),
            host=settings.link_host,
            port=settings.link_port,
            settings=settings.link,
            certificates=self._link_tls,
        )

    def _serve_peers(self, mesh: Mesh) -> LeadershipTransfers:
        """Make the parts that answer the other nodes' calls."""
        settings = self.settings
        self._quotas = RateLimiter(
            node_id=settings.node_id,
            nodes=lambda: len(self._members.known()),
            replicas=self._engines,
            calls=mesh,
            limits=RateLimits(settings.rate_limit),
            now_ns=time.monotonic_ns,
            refused=self.metrics.rate_limited,
            took=self.metrics.forwarded,
        )
        transfers = LeadershipTransfers(
            node_id=settings.node_id,
            replicas=self._engines,
            begin=lambda shard, peer: self._groups[shard].transfer(peer),
            calls=mesh,
        )
        self._served = {BORROW: self._quotas.serve, TRANSFER: transfers.serve}
        return transfers

    # -- the node's own state ---------------------------------------------------------------------

    def status(self) -> list[ShardStatus]:
        """Return one status per shard."""
        log_sync = self._log_sync()
        return [
            status_of(group, members=self._members, settings=self.settings, log_sync=log_sync)
            for group in self._groups
        ]

    def _log_sync(self) -> str:
        if self._syncer is None:
            return "none"
        return (LogSync.KERNEL if self._syncer.by_kernel else LogSync.THREAD).value

    def missing(self, *, in_full: bool) -> list[str]:
        """Return why this node is not ready; in full the reasons name directories."""
        if self._draining:
            return ["draining: this node is about to stop"]
        return self._readiness.missing(in_full=in_full)


def _replica(engine: Engine) -> ShardView:
    """Return the view of a shard's applied state; `Engine` replaces it when a leadership ends."""
    return engine.replica


def _budget(bounds: BudgetSettings | TenantBudget) -> Budget:
    return Budget(
        waiting_max=bounds.ready_tasks,
        leased_max=bounds.in_flight,
        bytes_max=bounds.stored_bytes,
    )


def _close(shard: int, store: RocksShard) -> None:
    """Close a store; only log its earlier failure, so that it hides no other error."""
    try:
        store.close()
    except StorageFailed as error:
        log.warning("closing a store failed", extra={"shard": shard, "error": str(error)})


def _stop_at_once(shard: int, error: BaseException) -> None:
    """End the process: continuing could lose, change or misread acknowledged data."""
    if isinstance(error, ReleaseTooOld):
        log.critical("stopping at once: %s", error, extra={"shard": shard})
        logging.shutdown()
        os._exit(EXIT_REFUSED)
    reason = "storage failed" if isinstance(error, StorageFailed) else "an invariant does not hold"
    if isinstance(error, SafetyViolated):
        reason = "the replicated log is not safe to use"
    log.critical(
        "stopping at once: %s", reason, exc_info=error, extra={"shard": shard, "error": str(error)}
    )
    logging.shutdown()
    os._exit(EXIT_UNSAFE)


async def run(settings: NodeSettings, *, ready: Callable[[], None] | None = None) -> None:
    """Run a node until the calling task is cancelled.

    Args:
        settings: The node's settings.
        ready: Called once the node serves; some shards may not have a leader yet.
    """
    node = Node(settings)
    await node.start()
    # Objects made at start-up live as long as the node, so the collector need not check them again.
    # It also checks the rest less often, because most of it is freed without the collector.
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    try:
        if ready is not None:
            ready()
        await asyncio.Event().wait()
    finally:
        await node.stop()
