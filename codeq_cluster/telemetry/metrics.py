"""Metrics: a node's counts, and the text of a scrape. One registry a node."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from codeq_cluster.core.loops import Loop
from codeq_cluster.telemetry.bulk import BulkMetrics
from codeq_cluster.telemetry.dependencies import DependencyMetrics
from codeq_cluster.telemetry.groups import GroupMetrics
from codeq_cluster.telemetry.loop_metrics import LoopCounter, LoopHistogram
from codeq_cluster.telemetry.scrapes import Scrapes

_LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
_SHORT_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30,
)  # fmt: skip
_LAG_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 600, 3600)
_COUNT_BUCKETS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
_OTHER = "other"
_LABELS_CACHED = 1024  # x about 200 bytes.

log = logging.getLogger(__name__)

Samples = Callable[[], Iterable[tuple[Sequence[str], float]]]
SamplesByName = Callable[[], Iterable[tuple[str, Sequence[str], float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapedMetric:
    """A metric that is read at scrape time.

    Attributes:
        name: Complete; it ends in `_total` if the value only grows.
        text: Its help.
        labels: Their names; a label called `command` is capped.
    """

    name: str
    text: str
    labels: tuple[str, ...]

    def family(self) -> CounterMetricFamily | GaugeMetricFamily:
        """Return the metric without samples."""
        counter = self.name.endswith("_total")
        kind = CounterMetricFamily if counter else GaugeMetricFamily
        return kind(self.name, self.text, labels=self.labels)


class Metrics:
    """Every metric of one node.

    The loop's thread counts events. Present values, such as depths, are read at scrape time from
    the sources that the node registers.

    Attributes:
        scrapes: The text for callers over the network.
        swept: Attempts to delete the artifacts of one upload.
        item_failures: Things that a loop failed at and went on without.
        groups: What becomes of groups.
        bulk: What becomes of bulk jobs.
        rate_limited: Refused requests.
        leader_changes: Of a group.
        entry_mutations: Of entries that this node proposed and applied, as is `commit`.
        fsync: Of synced writes of the log.
        command_label: Returns the label under which a command is counted.
        http: Answered requests by route, method and status; a route is its pattern, never a path.

    Args:
        commands_max: Distinct labels of commands, of schedules, and of limits; the rest is `other`.
    """

    def __init__(self, *, commands_max: int = 200) -> None:
        self.registry = CollectorRegistry()
        self.scrapes = Scrapes(self.scrape)
        self._commands_max = commands_max
        # A command keeps its label for ever; queues ignore case, and so do labels.
        commands: set[str] = set()
        self.command_label = lru_cache(_LABELS_CACHED)(
            lambda command: self._capped(commands, command.lower())
        )
        self._schedules: set[str] = set()
        self._limits: set[str] = set()

        self._created = self._counter("codeq_task_created", "Tasks created.", "command")
        self._imported = self._counter(
            "codeq_task_imported", "Tasks imported from another cluster.", "command"
        )
        self._claimed = self._counter("codeq_task_claimed", "Tasks claimed.", "command")
        self._completed = self._counter(
            "codeq_task_completed", "Tasks that ended.", "command", "status"
        )
        self._latency = self._histogram(
            "codeq_task_processing_latency_seconds",
            "Seconds from a task's creation to its end.",
            ("command", "status"),
            _LATENCY_BUCKETS,
        )
        self._lease_expired = self._counter(
            "codeq_lease_expired", "Leases that expired.", "command"
        )
        self._webhooks = self._counter(
            "codeq_webhook_deliveries",
            "Attempts to deliver to a webhook or a subscription, by outcome.",
            "kind",
            "command",
            "outcome",
        )
        self.swept = self._counter(
            "codeq_artifact_sweeps", "Attempts to delete artifacts that no task needs.", "outcome"
        )
        for outcome in ("success", "failure"):
            self.swept.inc(outcome, by=0)
        self.item_failures = self._counter(
            "codeq_item_failures", "Things that a loop failed at and went on without.", "loop"
        )
        for loop in Loop:
            self.item_failures.inc(loop, by=0)
        self._fired = self._counter("codeq_schedule_fired", "Instants of schedules that fired.")
        self._fired.inc(by=0)
        self._missed = self._counter(
            "codeq_schedule_missed", "Instants of schedules that did not fire.", "schedule"
        )
        self._lag = self._histogram(
            "codeq_schedule_lag_seconds",
            "Seconds from when a run of a schedule was due until it was committed.",
            (),
            _LAG_BUCKETS,
        )
        self.groups = GroupMetrics(self._counter)
        self.dependencies = DependencyMetrics(self._counter)
        self.bulk = BulkMetrics(self._counter)
        self.unique_creates = self._counter(
            "codeq_unique_creates", "Creates with a unique key, by what they did.", "outcome"
        )
        for outcome in ("created", "returned", "replaced", "queued", "rejected"):
            self.unique_creates.inc(outcome, by=0)
        self.rate_limited = self._counter(
            "codeq_rate_limit_hits", "Requests over a rate limit.", "scope", "operation"
        )
        self.http = self._histogram(
            "codeq_http_request_seconds",
            "Seconds from a request's head to its answer, waits included.",
            ("route", "method", "status"),
            _SHORT_BUCKETS,
        )
        self._forward = self._histogram(
            "codeq_forward_seconds",
            "Seconds for an operation that was sent to another node.",
            ("op",),
            _SHORT_BUCKETS,
        )
        self.leader_changes = self._counter(
            "codeq_raft_leader_changes",
            "Times that this node learned of another leader of the shard.",
            "shard",
        )
        self.entry_mutations = self._histogram(
            "codeq_raft_entry_mutations", "Mutations in one log entry.", ("shard",), _COUNT_BUCKETS
        )
        self.commit, self.fsync, self._snapshot = (
            self._histogram(f"codeq_raft_{name}_seconds", text, ("shard",), _SHORT_BUCKETS)
            for name, text in (
                ("commit", "Seconds from an entry's proposal to its application."),
                ("fsync", "Seconds for one synced write of the log."),
                ("snapshot", "Seconds to take or to install a snapshot."),
            )
        )
        GCCollector(self.registry)
        ProcessCollector(registry=self.registry)

    def task_created(self, command: str) -> None:
        """Count a new task; a retry with the same idempotency key does not count."""
        self._created.inc(self.command_label(command))

    def task_imported(self, command: str) -> None:
        """Count a task imported from another cluster."""
        self._imported.inc(self.command_label(command))

    def task_claimed(self, command: str) -> None:
        """Count a delivery."""
        self._claimed.inc(self.command_label(command))

    def task_completed(self, command: str, status: str, latency_s: float) -> None:
        """Count a task's end: status COMPLETED or FAILED, seconds since it was created."""
        label = self.command_label(command)
        self._completed.inc(label, status)
        self._latency.observe(latency_s, label, status)

    def lease_expired(self, command: str) -> None:
        """Count a lease that ran out."""
        self._lease_expired.inc(self.command_label(command))

    def webhook_delivered(self, kind: str, command: str, outcome: str) -> None:
        """Count a delivery attempt."""
        self._webhooks.inc(kind, self.command_label(command), outcome)

    def schedule_fired(self, runs: int, lag_s: float) -> None:
        """Count runs that instants of a schedule have made, the last `lag_s` after it was due."""
        self._fired.inc(by=runs)
        self._lag.observe(lag_s)

    def schedule_missed(self, schedule: str, count: int) -> None:
        """Count instants of a schedule that will not fire."""
        self._missed.inc(self._capped(self._schedules, schedule), by=count)

    def forwarded(self, op: str, seconds: float) -> None:
        """Record an operation that another node carried out."""
        self._forward.observe(seconds, op)

    def snapshot_taken(self, shard: int, seconds: float) -> None:
        """Record a snapshot taken or installed."""
        self._snapshot.observe(seconds, shard)

    def read_at_scrape(self, name: str, text: str, labels: Sequence[str], samples: Samples) -> None:
        """Register a source of present values.

        Args:
            name: Of the metric, as are the text and the labels: see `ScrapedMetric`.
            samples: Called on every scrape; yields label values and the value. Must not block.
        """
        metric = ScrapedMetric(name=name, text=text, labels=tuple(labels))
        self.read_together_at_scrape(
            [metric], lambda: ((name, values, value) for values, value in samples())
        )

    def read_together_at_scrape(
        self, scraped: Sequence[ScrapedMetric], samples: SamplesByName
    ) -> None:
        """Register metrics that share one source.

        Args:
            samples: Called once on every scrape; yields a name, label values and the value. Must
                not block.
        """
        self.registry.register(_Source(self, scraped, samples))

    def shard_opened(self, shard: int) -> None:
        """Start a shard's counters at 0, so that a rate includes the first event."""
        self.leader_changes.inc(shard, by=0)
        for histogram in (self.entry_mutations, self.commit, self.fsync, self._snapshot):
            histogram.begin(shard)

    def capped_label(self, label: str, value: str) -> str:
        """Return the value that a label of a scraped metric gets; callers choose some of them."""
        if label == "command":
            return self.command_label(value)
        return self._capped(self._limits, value) if label == "limit" else value

    def scrape(self) -> bytes:
        """Return everything as Prometheus text."""
        return generate_latest(self.registry)

    def _capped(self, known: set[str], label: str) -> str:
        if label not in known and len(known) >= self._commands_max:
            return _OTHER
        known.add(label)
        return label

    def _counter(self, name: str, text: str, *labels: str) -> LoopCounter:
        counter = LoopCounter(name, text, labels)
        self.registry.register(counter)
        return counter

    def _histogram(
        self, name: str, text: str, labels: Sequence[str], buckets: Sequence[float]
    ) -> LoopHistogram:
        histogram = LoopHistogram(name, text, labels, buckets)
        self.registry.register(histogram)
        return histogram


class _Source(Collector):
    def __init__(
        self, metrics: Metrics, scraped: Sequence[ScrapedMetric], samples: SamplesByName
    ) -> None:
        self._metrics = metrics
        self._scraped = {each.name: each for each in scraped}
        self._samples = samples

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without reading their source, which is not started at registration."""
        for each in self._scraped.values():
            yield each.family()

    def _read(self) -> Iterable[tuple[str, Sequence[str], float]]:
        """Return the samples; none if the source fails, so that a scrape has all others."""
        try:
            return [*self._samples()]
        except Exception:
            log.exception("a metric cannot be read", extra={"metrics": [*self._scraped]})
            self._metrics.item_failures.inc(Loop.SCRAPE)
            return []

    def collect(self) -> Iterator[Metric]:
        """Read the source; add up samples that share a capped label."""
        totals: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in self._scraped}
        for name, values, value in self._read():
            key = tuple(
                self._metrics.capped_label(label, each)
                for label, each in zip(self._scraped[name].labels, values, strict=True)
            )
            totals[name][key] = totals[name].get(key, 0.0) + value
        for name, each in self._scraped.items():
            family = each.family()
            for key, value in totals[name].items():
                family.add_metric(key, value)
            yield family
