"""What a scrape shows of a node that has done something."""

from __future__ import annotations

import re

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAMES = (
    "codeq_task_created_total",
    "codeq_task_claimed_total",
    "codeq_task_completed_total",
    "codeq_task_processing_latency_seconds_count",
    "codeq_http_request_seconds_count",
    "codeq_raft_is_leader",
    "codeq_raft_term",
    "codeq_raft_commit_index",
    "codeq_raft_applied_index",
    "codeq_raft_log_bytes",
    "codeq_raft_leader_changes_total",
    "codeq_raft_entry_mutations_count",
    "codeq_raft_commit_seconds_count",
    "codeq_raft_fsync_seconds_count",
    "codeq_link_peers_connected",
    "codeq_link_refused_handshakes_total",
    "codeq_link_bad_frames_total",
    "codeq_store_level0_files",
    "codeq_store_memtable_bytes",
    "process_cpu_seconds_total",
    "python_gc_collections_total",
)


async def test_every_metric_of_the_contract_that_applies_is_there(node: Client) -> None:
    """After one task's life, with a value for each."""
    task_id = await node.create("measured")
    await node.claim("measured")
    during = (await node.get("/metrics")).body.decode()
    await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
    scraped = (await node.get("/metrics")).body.decode()

    assert [] == [name for name in NAMES if not re.search(rf"^{name}[ {{]", scraped, re.MULTILINE)]
    assert 'codeq_queue_depth{command="measured",queue="in_progress"} 1.0' in during
    assert 'codeq_dlq_depth{command="measured"} 0.0' in during
    assert 'codeq_task_completed_total{command="measured",status="COMPLETED"} 1.0' in scraped
