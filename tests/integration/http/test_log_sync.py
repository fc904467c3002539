"""Log sync: status and metrics of a node show how it syncs its log."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.settings import Durability, LimitSettings, LogSync
from tests.integration.http.client import serving, single

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(
    ("durability", "asked", "said", "metric"),
    [
        (Durability.FSYNC, LogSync.THREAD, "thread", "codeq_log_sync_by_kernel 0.0"),
        (Durability.FSYNC, LogSync.KERNEL, "kernel", "codeq_log_sync_by_kernel 1.0"),
        (Durability.OS, LogSync.THREAD, "none", ""),
    ],
)
async def test_a_node_says_who_syncs_its_log(
    tmp_path: Path, durability: Durability, asked: LogSync, said: str, metric: str
) -> None:
    """All its groups say the same, and a log that is not synced has no metric."""
    settings = single(tmp_path, LimitSettings())
    settings = replace(
        settings,
        raft=replace(settings.raft, durability=durability),
        store=replace(settings.store, sync=asked),
    )
    async with serving(settings) as client:
        status = json.loads((await client.get("raft/status")).body)
        scraped = (await client.get("/metrics", token="")).body.decode()

    lines = [line for line in scraped.splitlines() if line.startswith("codeq_log_sync_by_kernel")]
    assert [said, said] == [group["logSync"] for group in status["groups"]]
    assert ([metric] if metric else []) == lines
