"""Snapshots: a node that was away for longer than its peers keep their logs still comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.harness.accounting import RecordedOutcome
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
PAYLOAD = "x" * 200_000
TASKS = 40  # 8 MB, because the log keeps 1 MiB and is truncated by at least 4 MiB.
PACE = 8 * 2**20
# At this pace a snapshot takes a minute, so that even a slow test can kill a node meanwhile.
SLOW_PACE = 2**17


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Run three nodes of one shard that keep a short log."""
    settings = {"raft": {"logBytesMax": 2**20, "keepEntries": 1, "snapshotBytesPerSecond": PACE}}
    async with LocalCluster(tmp_path, shards=1, settings=settings) as running:
        yield running


async def _create(client: RecordingClient, node: str, n: int) -> str:
    payload = {"n": n, "text": PAYLOAD}
    return str((await client.created(node, PRODUCER_TOKEN, "away", payload=payload))["id"])


def _fetches(cluster: LocalCluster, node: str, *, pace: int) -> None:
    """Limit the pace of a node's fetches from its next start on."""
    path = cluster.nodes[node].config_path
    config = yaml.safe_load(path.read_text())
    config["raft"]["snapshotBytesPerSecond"] = pace
    path.write_text(yaml.safe_dump(config))


async def test_a_node_left_behind_takes_a_snapshot_and_serves_again(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """The node has the others' state and votes; the cluster survives the loss of another node."""
    leader = await cluster.leader_of(0)
    away, other = (node for node in cluster.nodes if node != leader)
    early = await _create(client, leader, 0)
    await cluster.wait_converged()
    await cluster.kill(away)
    created = [await _create(client, leader, n) for n in range(TASKS)]
    claimed = await client.claimed(other, WORKER, ["away"], leaseSeconds=3600)
    await client.finished(other, WORKER, claimed, {"of": early})

    cluster.start(away)
    await cluster.wait_ready()
    # A ready node has caught up, and here that required a snapshot.
    assert "snapshot installed" in cluster.nodes[away].log_path.read_text()
    await cluster.wait_converged()

    await cluster.kill(leader)
    new_leader = await cluster.leader_of(0)
    assert new_leader != leader
    for task_id in (early, created[0], created[-1]):
        read = await client.done("GET", away, f"/tasks/{task_id}", PRODUCER_TOKEN)
        assert read["payload"].endswith('x"}')
    assert early == claimed["id"]
    ended = await client.done("GET", away, f"/tasks/{early}", PRODUCER_TOKEN)
    assert "COMPLETED" == ended["status"]


async def test_a_node_killed_while_it_takes_a_snapshot_takes_the_next(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """After a kill at any point, the next start resumes or starts over."""
    leader = await cluster.leader_of(0)
    away = next(node for node in cluster.nodes if node != leader)
    await cluster.kill(away)
    created = [await _create(client, leader, n) for n in range(TASKS)]

    log_path = cluster.nodes[away].log_path
    _fetches(cluster, away, pace=SLOW_PACE)
    for kills in range(3):
        cluster.start(away)

        async def fetching(wanted: int = kills + 1) -> bool:
            return log_path.read_text().count("fetching a snapshot") >= wanted

        await until(fetching, what="a fetch has begun")
        await cluster.kill(away)
    assert "snapshot installed" not in log_path.read_text(), "it was killed too late"
    _fetches(cluster, away, pace=PACE)
    cluster.start(away)
    await cluster.wait_ready()
    await cluster.wait_converged()

    for task_id in (created[0], created[-1]):
        read = await client.task(away, PRODUCER_TOKEN, task_id, stale=True)
        assert read.outcome is RecordedOutcome.OK, read


async def test_a_leader_killed_while_it_serves_a_snapshot_loses_nothing(
    cluster: LocalCluster, client: RecordingClient
) -> None:
    """The fetching node votes for the most complete one and fetches from it."""
    leader = await cluster.leader_of(0)
    away, other = (node for node in cluster.nodes if node != leader)
    await cluster.kill(away)
    created = [await _create(client, leader, n) for n in range(TASKS)]
    log_path = cluster.nodes[away].log_path
    _fetches(cluster, away, pace=SLOW_PACE)
    cluster.start(away)

    async def fetching() -> bool:
        return "fetching a snapshot" in log_path.read_text()

    await until(fetching, what="a fetch has begun")
    await cluster.kill(leader)
    assert "snapshot installed" not in log_path.read_text(), "it was killed too late"
    await cluster.leader_of(0, among=[other])
    await cluster.wait_ready([away, other])

    for task_id in (created[0], created[-1]):
        read = await client.done("GET", away, f"/tasks/{task_id}", PRODUCER_TOKEN)
        assert task_id == read["id"]
    cluster.start(leader)
    await cluster.wait_ready()
    await cluster.wait_converged()
