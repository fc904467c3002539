"""Slow monitoring: Prometheus reports slow disks, restless leaders and a node left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from jepsen_lite.disk import Disk, DiskFault
from jepsen_lite.shims import shim
from tests.acceptance.prometheus import Prometheus, scraping
from tests.harness.certificates import Authority
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import OPERATOR_TOKEN, PRODUCER_TOKEN, NodeProcess

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    pytest.mark.needs("promtool", "gcc"),
]

WITHIN_S = 90.0
SHARDS = 2
SYNC_MS = 1500
SLOW = ("CodeqDiskSlow", "CodeqCommitsSlow", "CodeqWritesStall")
SETTINGS = {
    # Small buffers, so that a slow disk holds up their flushes soon.
    "store": {"memtableBytes": 2**20, "minFreeBytes": 0},
    # A follower acknowledges after one sync or two, and the leader must stay meanwhile.
    "raft": {"electionMS": 4000, "fallbackMS": 6000},
}


class SlowedCluster(LocalCluster):
    """A local cluster whose disks can be slowed down."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, shards=SHARDS, settings=SETTINGS, authority=Authority())
        self.disks = {
            node.id: Disk(node.data_path, node.directory / "disk") for node in self.nodes.values()
        }

    def _environment(self, node: NodeProcess) -> dict[str, str]:
        preloaded = {"LD_PRELOAD": str(shim("disk"))}
        return super()._environment(node) | self.disks[node.id].environment | preloaded

    def slow_down(self, delay_ms: int) -> None:
        """Delay every sync by so much; 0 ends that."""
        for disk in self.disks.values():
            disk.fault(DiskFault.SLOW if delay_ms else DiskFault.NONE, delay_ms=delay_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A cluster under monitoring, and its client."""

    cluster: SlowedCluster
    prometheus: Prometheus
    client: RecordingClient


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Run the cluster and Prometheus."""
    directory = tmp_path_factory.mktemp("slowed")
    async with (
        SlowedCluster(directory) as cluster,
        RecordingClient(cluster.urls, timeout_s=30.0, trust=cluster.trust) as client,
        scraping(cluster, directory) as prometheus,
    ):
        yield Stage(cluster=cluster, prometheus=prometheus, client=client)


@asynccontextmanager
async def again(lanes: int, act: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Repeat an act until the end of the block, in so many lanes at once."""

    async def lane() -> None:
        while True:
            await act()

    tasks = [asyncio.create_task(lane()) for _ in range(lanes)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


async def test_a_slow_disk_fires_its_alerts_until_it_is_fast_again(stage: Stage) -> None:
    """Syncs, commits and RocksDB's own files wait for the disks of all nodes."""
    cluster, prometheus = stage.cluster, stage.prometheus

    def create(payload: str = "") -> Awaitable[object]:
        return stage.client.create("n1", PRODUCER_TOKEN, "slow", payload=payload)

    # Without any writes there would be nothing to judge.
    async with again(1, create):
        await prometheus.wait_silent(*SLOW, within_s=WITHIN_S)
        cluster.slow_down(SYNC_MS)
        try:
            async with again(48, partial(create, "x" * 50_000)):
                await prometheus.wait_firing(*SLOW, within_s=WITHIN_S)
        finally:
            cluster.slow_down(0)
        await prometheus.wait_silent(*SLOW, within_s=WITHIN_S)


async def test_leaders_that_change_again_and_again_fire_an_alert(stage: Stage) -> None:
    """The alert ends with the changes."""

    async def transfer() -> None:
        # Refused while a transfer is in progress.
        await stage.client.call(
            "POST", "n1", "/admin/cluster/transfer", OPERATOR_TOKEN, {"shard": 0}
        )

    await stage.prometheus.wait_silent("CodeqLeaderUnstable", within_s=WITHIN_S)
    async with again(1, transfer):
        await stage.prometheus.wait_firing("CodeqLeaderUnstable", within_s=WITHIN_S)
    await stage.prometheus.wait_silent("CodeqLeaderUnstable", within_s=WITHIN_S)


async def test_a_frozen_node_lags_until_it_has_caught_up(stage: Stage) -> None:
    """The others go on meanwhile, and the node lacks more entries every second."""
    cluster, prometheus = stage.cluster, stage.prometheus

    def create() -> Awaitable[object]:
        return stage.client.create("n1", PRODUCER_TOKEN, "lag")

    await prometheus.wait_silent("CodeqReplicaLags", within_s=WITHIN_S)
    async with again(16, create):
        await cluster.pause("n3")
        await prometheus.wait_firing("CodeqReplicaLags", within_s=WITHIN_S)
        cluster.resume("n3")
        await prometheus.wait_silent("CodeqReplicaLags", within_s=WITHIN_S)
