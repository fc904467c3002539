"""Metrics of a cluster in which every measured event has happened."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from codeq_cluster.settings import RaftSettings, RateLimitSettings, RateSettings
from tests.integration.http.client import Client, eventually
from tests.integration.http.nodes import Nodes, three_nodes
from tests.integration.http.operating import died
from tests.integration.webhooks.target import listening

pytestmark = pytest.mark.asyncio(loop_scope="session")

_STATUS = {"command", "status"}
_SHARD = {"shard"}

# The reference's metrics come first, then ours; a histogram is listed by its count. All but the
# gauges of levels must have counted something.
CONTRACT: dict[str, set[str]] = {
    "codeq_task_created_total": {"command"},
    "codeq_task_claimed_total": {"command"},
    "codeq_task_completed_total": _STATUS,
    "codeq_task_processing_latency_seconds_count": _STATUS,
    "codeq_lease_expired_total": {"command"},
    "codeq_webhook_deliveries_total": {"kind", "command", "outcome"},
    "codeq_rate_limit_hits_total": {"scope", "operation"},
    "codeq_queue_depth": {"command", "queue"},
    "codeq_dlq_depth": {"command"},
    "codeq_subscriptions_active": {"command"},
    "codeq_http_request_seconds_count": {"route", "method", "status"},
    "codeq_raft_is_leader": _SHARD,
    "codeq_raft_term": _SHARD,
    "codeq_raft_commit_index": _SHARD,
    "codeq_raft_applied_index": _SHARD,
    "codeq_raft_log_bytes": _SHARD,
    "codeq_raft_leader_changes_total": _SHARD,
    "codeq_raft_entry_mutations_count": _SHARD,
    "codeq_raft_commit_seconds_count": _SHARD,
    "codeq_raft_fsync_seconds_count": _SHARD,
    "codeq_raft_snapshot_seconds_count": _SHARD,
    "codeq_raft_peer_lag": {"shard", "peer"},
    "codeq_forward_seconds_count": {"op"},
    "codeq_store_level0_files": _SHARD,
    "codeq_store_memtable_bytes": _SHARD,
    "process_cpu_seconds_total": set(),
    "python_gc_collections_total": {"generation"},
}
LEVELS = {"codeq_raft_peer_lag", "codeq_store_level0_files"}

Scrape = dict[str, list[tuple[dict[str, str], float]]]


async def scraped(*clients: Client) -> Scrape:
    """Return the samples of all these nodes, by name, with their labels."""
    samples: Scrape = defaultdict(list)
    for client in clients:
        text = (await client.get("/metrics", token="")).body.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name].append((sample.labels, sample.value))
    return samples


async def everything_measured(nodes: Nodes) -> None:
    """Make every event that the contract's metrics count happen at least once."""
    n1, n2 = nodes.clients["n1"], nodes.clients["n2"]
    async with listening() as target:
        done = await n1.create("measured", webhook=target.url)
        await n2.claim("measured")
        await n2.post(f"tasks/{done}/result", {"status": "COMPLETED", "result": {}})
        await n1.create("measured")
        await n1.claim("measured", leaseSeconds=1)
        await died(n1, "buried")
        # Whichever node is asked, another one leads one of the two shards, so creates are
        # forwarded.
        for _ in range(8):
            await n1.create("waiting")
        await n1.post("workers/subscriptions", {"callbackUrl": target.url})
        for _ in range(2):
            await n1.post("admin/tasks/cleanup")

        async def over() -> bool:
            samples = await scraped(*nodes.clients.values())
            return {"codeq_lease_expired_total", "codeq_webhook_deliveries_total"} <= set(samples)

        await eventually(over)


async def snapshot_fetched(nodes: Nodes) -> None:
    """Delete the data of a node after the others have truncated their logs."""
    await nodes.stop("n3")
    shutil.rmtree(nodes.settings["n3"].data_dir)
    # A log is truncated by four MiB at once.
    for _ in range(24):
        await nodes.clients["n1"].create("large", payload=os.urandom(2**18).hex())
    await nodes.start("n3")
    await nodes.ready("n1", "n2", "n3")


async def test_every_metric_of_the_contract_that_applies_is_there(tmp_path: Path) -> None:
    """On three nodes with all these events, each metric has its name and labels and has counted."""
    limited = RateLimitSettings(admin=RateSettings(requests_per_minute=1, burst_size=1))
    forgetful = RaftSettings(log_bytes_max=2**17)
    async with three_nodes(tmp_path, rate_limit=limited, raft=forgetful) as nodes:
        await everything_measured(nodes)
        await snapshot_fetched(nodes)
        samples = await scraped(*nodes.clients.values())

    labels = {
        name: {frozenset(labels) for labels, _ in samples[name]}
        for name in CONTRACT
        if name in samples
    }
    assert labels == {name: {frozenset(expected)} for name, expected in CONTRACT.items()}
    assert [] == [
        name
        for name in CONTRACT.keys() - LEVELS
        if not any(value > 0 for _, value in samples[name])
    ]
    peers = {labels["peer"] for labels, _ in samples["codeq_raft_peer_lag"]}
    assert peers <= {"n1", "n2", "n3"}
    assert len(peers) >= 2  # Only two while one node leads every shard.
    places = {labels["queue"] for labels, _ in samples["codeq_queue_depth"]}
    assert {"ready", "delayed", "in_progress", "dlq", "held"} == places


async def test_a_scrape_shows_the_current_state(node: Client) -> None:
    """Claimed tasks count as in progress and ended ones as ended; labels are in lower case."""
    task_id = await node.create("Measured-Now")
    await node.claim("Measured-Now")
    during = (await node.get("/metrics")).body.decode()
    await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
    after = (await node.get("/metrics")).body.decode()

    assert 'codeq_queue_depth{command="measured-now",queue="in_progress"} 1.0' in during
    assert 'codeq_dlq_depth{command="measured-now"} 0.0' in during
    assert 'codeq_task_completed_total{command="measured-now",status="COMPLETED"} 1.0' in after
