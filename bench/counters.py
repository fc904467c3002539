"""Counters: how often events happened on all nodes, by their metrics and by the kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

# Tables leave out events that are rarer than one in two hundred operations.
_WORTH_TELLING = 0.005
_COMMITTED = "codeq_raft_commit_index"


def of_metrics(texts: Sequence[str]) -> Counter[str]:
    """Return the broker's own counters, summed over nodes and labels.

    Args:
        texts: The metrics of each node of one cluster, in the Prometheus text format.

    Returns:
        Counts by the metric's name without its prefix and suffix. `entries` is the number of
        committed log entries, each counted once and not once per node.
    """
    summed: Counter[str] = Counter()
    committed: dict[str, float] = {}
    for text in texts:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == _COMMITTED:
                    shard = sample.labels["shard"]
                    committed[shard] = max(committed.get(shard, 0.0), sample.value)
                elif sample.name.startswith("codeq_") and sample.name.endswith(
                    ("_total", "_count")
                ):
                    name = sample.name.removeprefix("codeq_").rpartition("_")[0]
                    summed[name.removesuffix("_seconds")] += sample.value
    summed["entries"] = sum(committed.values())
    return summed


def of_kernel(pids: Sequence[int]) -> Counter[str]:
    """Return how often threads went to sleep and how often processes wrote or read, summed."""
    summed: Counter[str] = Counter()
    for pid in pids:
        process = Path(f"/proc/{pid}")
        for thread in process.glob("task/*/status"):
            summed["sleeps"] += _field(thread.read_text(), "voluntary_ctxt_switches:")
        written = (process / "io").read_text()
        summed["write calls"] += _field(written, "syscw:")
        summed["disk KiB"] += _field(written, "write_bytes:") / 1024
    return summed


def per_operation(
    before: Mapping[str, float], after: Mapping[str, float], operations: int
) -> dict[str, float]:
    """Return the differences per operation, the largest first, without rare events."""
    rates = {
        name: (value - before.get(name, 0)) / max(1, operations) for name, value in after.items()
    }
    told = {name: rate for name, rate in rates.items() if rate >= _WORTH_TELLING}
    return dict(sorted(told.items(), key=lambda item: -item[1]))


def _field(text: str, name: str) -> int:
    for line in text.splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    return 0
