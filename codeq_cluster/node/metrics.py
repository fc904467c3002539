"""Metrics: gauges that a scrape reads from a node's parts."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from codeq_cluster.api.server import HttpServer
from codeq_cluster.broker.engine.answers import oldest_held_ms
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.queries.depths import plus
from codeq_cluster.core.items import TASK, TIMED_KINDS, aside_kind
from codeq_cluster.core.task import Counters
from codeq_cluster.fair_turns import FairTurns
from codeq_cluster.node.disk_guard import DiskGuard
from codeq_cluster.node.limit_metrics import register_limits
from codeq_cluster.node.store_metrics import register_stores
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.status import GroupStatus
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.wal_writer import Syncer
from codeq_cluster.telemetry import Metrics, ScrapedMetric
from codeq_cluster.telemetry.metrics import Samples
from codeq_cluster.wire import Certificates, Mesh

# Parts of queues whose first held task a scrape looks up: 32 x up to 0.3 ms.
HELD_QUEUES_MAX = 32

Sample = tuple[Sequence[str], float]


def register_gauges(
    metrics: Metrics,
    *,
    engines: Sequence[Engine],
    groups: Sequence[RaftGroup],
    stores: Sequence[RocksShard],
    states: Sequence[StateStore],
    mesh: Mesh,
    now_s: Callable[[], float],
) -> None:
    """Register every gauge of the node; each reads its source at scrape time."""
    for engine in engines:
        metrics.shard_opened(engine.shard)
    register_depths(metrics, engines)
    register_held(metrics, engines, states, now_s=now_s)
    register_limits(metrics, engines)
    _register_asides(metrics, engines)
    metrics.read_at_scrape(
        "codeq_bulk_parts_running",
        "Parts of bulk jobs that go on in the shards that this node leads.",
        ("shard",),
        _each(lambda: {engine.shard: len(engine.view.bulk) for engine in engines if engine.leads}),
    )
    _register_raft(metrics, groups)
    register_stores(metrics, stores)
    _register_link(metrics, mesh)
    metrics.read_at_scrape(
        "codeq_entries_fenced_total",
        "Entries that became no-ops because they were decided in another term.",
        ("shard",),
        _each(lambda: {engine.shard: engine.fenced for engine in engines}),
    )


def _register_asides(metrics: Metrics, engines: Sequence[Engine]) -> None:
    def asides() -> Iterator[Sample]:
        for engine in engines:
            if engine.leads:  # Every node has every shard, so only its leader counts for it.
                kinds = Counter(aside_kind(name) for _, name in engine.view.asides)
                for kind in (TASK, *TIMED_KINDS):
                    yield (str(engine.shard), kind), kinds[kind]

    metrics.read_at_scrape(
        "codeq_items_aside",
        "Tasks and items that are set aside in the shards that this node leads, by kind.",
        ("shard", "kind"),
        asides,
    )


def register_disk_guard(metrics: Metrics, disk_guard: DiskGuard) -> None:
    """Register the metrics of the disk and of replicas that have stepped back."""
    metrics.read_at_scrape(
        "codeq_disk_free_bytes",
        "Free bytes on the disk of the data directory.",
        (),
        _one(lambda: disk_guard.free_bytes),
    )
    metrics.read_at_scrape(
        "codeq_disk_size_bytes",
        "Size in bytes of the disk of the data directory.",
        (),
        _one(lambda: disk_guard.size_bytes),
    )
    metrics.read_at_scrape(
        "codeq_replica_out",
        "1 for each replica of this node that takes no part, by reason.",
        ("shard", "reason"),
        lambda: [((str(shard), out.reason.value), 1.0) for shard, out in disk_guard.out.items()],
    )
    metrics.read_at_scrape(
        "codeq_replica_reseeded_total",
        "Times that a replica's state differed from the majority's and was fetched again.",
        ("shard",),
        _each(lambda: disk_guard.reseeded),
    )


def register_log_sync(metrics: Metrics, syncer: Syncer | None) -> None:
    """Register the metric of who syncs the log; without a syncer it has no sample."""
    metrics.read_at_scrape(
        "codeq_log_sync_by_kernel",
        "1 if the kernel syncs the write-ahead log, 0 if a thread of the node does.",
        (),
        lambda: [] if syncer is None else [((), float(syncer.by_kernel))],
    )


def register_tls(
    metrics: Metrics, *, certificates: Sequence[Certificates[Any]], http: HttpServer
) -> None:
    """Register the metrics of certificates in use and of clients that speak no TLS."""
    metrics.read_at_scrape(
        "codeq_tls_certificate_expiry_seconds",
        "Seconds until the certificate in use expires; negative after that.",
        ("use",),
        lambda: [((known.use,), known.left_s) for known in certificates],
    )
    metrics.read_at_scrape(
        "codeq_tls_certificate_stale",
        "1 if the certificate's files have changed and cannot be loaded.",
        ("use",),
        lambda: [((known.use,), float(known.stale)) for known in certificates],
    )
    metrics.read_at_scrape(
        "codeq_http_failed_handshakes_total",
        "Connections to the https port that did not complete a TLS handshake.",
        (),
        _one(lambda: http.failed_handshakes),
    )


def _register_link(metrics: Metrics, mesh: Mesh) -> None:
    metrics.read_at_scrape(
        "codeq_link_peers_connected",
        "Peers that this node can send to.",
        (),
        _one(lambda: mesh.peers_connected),
    )
    metrics.read_at_scrape(
        "codeq_link_dropped_messages_total",
        "Messages dropped because there was no connection or its queue was full.",
        (),
        _one(lambda: mesh.counters.dropped_messages),
    )
    metrics.read_at_scrape(
        "codeq_link_refused_handshakes_total",
        "Connections refused because their other end did not prove to be a peer, by reason.",
        ("reason",),
        _each(lambda: mesh.counters.refused_handshakes),
    )
    metrics.read_at_scrape(
        "codeq_link_bad_frames_total",
        "Connections closed because of invalid data on them, by reason.",
        ("reason",),
        _each(lambda: mesh.counters.bad_frames),
    )


_DEPTHS = (
    ScrapedMetric(
        name="codeq_queue_depth",
        text="Tasks in the shards that this node leads, by state.",
        labels=("command", "queue"),
    ),
    ScrapedMetric(
        name="codeq_dlq_depth",
        text="Dead letters in the shards that this node leads.",
        labels=("command",),
    ),
)


def register_turns(metrics: Metrics, turns: FairTurns) -> None:
    """Register the metrics of requests in progress."""
    metrics.read_at_scrape(
        "codeq_http_in_progress",
        "Requests in progress, each counted as `limits.requestsInProgress` says.",
        (),
        _one(lambda: turns.in_progress),
    )
    metrics.read_at_scrape(
        "codeq_http_waiting_for_turn",
        "Requests that wait until it is their tenant's turn.",
        (),
        _one(lambda: turns.waiting),
    )


def register_depths(metrics: Metrics, engines: Sequence[Engine]) -> None:
    """Register the task counts of the shards led here."""

    def depths() -> Iterator[tuple[str, Sequence[str], float]]:
        # Every node holds every shard, so only the shard's leader reports its queues. They are
        # added up by label first: there may be thousands of queues, but there are few labels.
        sums: dict[str, Counters] = {}
        for engine in engines:
            if not engine.leads:
                continue
            for (queue, _), counters in engine.replica.counters.items():
                label = metrics.command_label(queue)
                before = sums.get(label)
                sums[label] = counters if before is None else plus(before, counters)
        for label, counters in sums.items():
            for place, count in _places(counters):
                yield "codeq_queue_depth", (label, place), count
            yield "codeq_dlq_depth", (label,), counters.dead

    metrics.read_together_at_scrape(_DEPTHS, depths)


def register_held(
    metrics: Metrics,
    engines: Sequence[Engine],
    states: Sequence[StateStore],
    *,
    now_s: Callable[[], float],
) -> None:
    """Register how long the first held task of each queue waits, as far as a scrape looks.

    It looks at the `HELD_QUEUES_MAX` parts of queues with the most held tasks, and there at the
    first keys.
    """

    def oldest() -> Iterator[Sample]:
        parts = (
            (counters.held, number, queue, tenant)
            for number, engine in enumerate(engines)
            if engine.leads
            for (queue, tenant), counters in engine.replica.counters.items()
            if counters.held
        )
        longest: dict[str, float] = {}
        for _, number, queue, tenant in heapq.nlargest(HELD_QUEUES_MAX, parts):
            since_ms = oldest_held_ms(states[number], queue, tenant)
            label = metrics.command_label(queue)
            waits_s = max(0.0, now_s() - since_ms / 1000) if since_ms else 0.0
            longest[label] = max(longest.get(label, 0.0), waits_s)
        for label, waits_s in longest.items():
            yield (label,), waits_s

    metrics.read_at_scrape(
        "codeq_queue_oldest_held_seconds",
        "Seconds that the first held task waits for its key, in the shards that this node leads.",
        ("command",),
        oldest,
    )


def _places(counters: Counters) -> tuple[tuple[str, int], ...]:
    return (
        ("ready", counters.ready),
        ("delayed", counters.delayed),
        ("in_progress", counters.leased),
        ("dlq", counters.dead),
        ("held", counters.held),
    )


def _register_raft(metrics: Metrics, groups: Sequence[RaftGroup]) -> None:
    for field, text in (
        ("is_leader", "1 if this node leads the shard."),
        ("term", "Current Raft term."),
        ("commit_index", "Index of the last entry that this node knows to be committed."),
        ("applied_index", "Index of the last entry that this node has applied."),
        ("log_bytes", "Bytes of the entries in this node's log."),
    ):
        metrics.read_at_scrape(f"codeq_raft_{field}", text, ("shard",), _of_groups(groups, field))

    def lags() -> Iterator[Sample]:
        for status in _statuses(groups):
            if status.is_leader:
                for peer in status.peers:
                    yield (str(status.shard), peer.id), status.log_last - peer.match_index

    metrics.read_at_scrape(
        "codeq_raft_peer_lag",
        "Entries that a peer still lacks, as its leader knows.",
        ("shard", "peer"),
        lags,
    )

    def refused() -> Iterator[Sample]:
        for status in _statuses(groups):
            for reason, count in status.counters.items():
                yield (str(status.shard), reason), count

    metrics.read_at_scrape(
        "codeq_raft_refused_total",
        "Messages and entries that were dropped or refused, by reason.",
        ("shard", "reason"),
        refused,
    )


def _of_groups(groups: Sequence[RaftGroup], field: str) -> Samples:
    read = attrgetter(field)
    return lambda: [((str(each.shard),), float(read(each))) for each in _statuses(groups)]


def _statuses(groups: Sequence[RaftGroup]) -> Iterator[GroupStatus]:
    return (group.status() for group in groups)


def _one(value: Callable[[], float]) -> Samples:
    """Return the source of a metric without labels."""
    return lambda: [((), float(value()))]


def _each(values: Callable[[], Mapping[Any, float]]) -> Samples:
    """Return the source of a metric whose one label is the key of each value."""
    return lambda: [((str(label),), float(value)) for label, value in values().items()]
