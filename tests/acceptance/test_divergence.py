"""Divergence: a replica whose state differs from its log's is detected, outvoted and rebuilt."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from tests.fakes.spilled_shard import put
from tests.harness.accounting import audit
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, workers
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WITHIN_S = 60.0


@pytest_asyncio.fixture(loop_scope="module")
async def cluster(tmp_path: Path) -> AsyncIterator[LocalCluster]:
    """Run three nodes of two shards; n1 is the preferred leader of the first."""
    async with LocalCluster(tmp_path, shards=2) as running:
        yield running


def falsify(path: Path) -> int:
    """Change a stopped node's first shard on its disk; return its applied index."""
    settings = StoreSettings()
    shard = RocksShard(path / "shard-0", settings=settings, cache=new_cache(settings))
    index = shard.state.applied_index
    put(shard, {b"codeq/no-entry-wrote-this": b"!"}, digest=b"another history!")
    shard.close()
    return index


async def metric(cluster: LocalCluster, node: str, name: str) -> str:
    """Return the lines of one metric."""
    samples = (await cluster.metrics(node)).items()
    return "\n".join(f"{sample} {value}" for sample, value in samples if sample.startswith(name))


@pytest.mark.timeout(240)
@pytest.mark.parametrize("wrong", ["n2", "n1"], ids=["a follower", "the preferred leader"])
async def test_a_replica_with_another_state_is_rebuilt_under_load(
    cluster: LocalCluster, wrong: str
) -> None:
    """The others go on; the replica keeps its log and loses rows that no entry wrote."""
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 8),
        command="diverges",
        cycles_per_s=50.0,
    ) as load:

        async def passed(count: int) -> None:
            upto = len(load.calls) + count

            async def enough() -> bool:
                return len(load.calls) >= upto

            await until(enough, what=f"{count} calls")

        await passed(200)
        load.avoid(wrong)
        assert 0 == await cluster.stop(wrong)
        index = falsify(cluster.nodes[wrong].data_path)
        cluster.start(wrong)

        async def rebuilt() -> bool:
            return 'shard="0"} 1.0' in await metric(cluster, wrong, "codeq_replica_reseeded_total")

        await until(lambda: cluster.status(wrong), what=f"{wrong} started")
        await until(rebuilt, what=f"{wrong} rebuilt")
        await cluster.wait_ready([wrong], within_s=WITHIN_S)
        load.allow(wrong)
        await passed(100)
        drained = await load.drain(within_s=WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())
    await cluster.wait_converged()
    log = cluster.nodes[wrong].log_path.read_text()
    assert 0 == await cluster.stop(wrong)
    settings = StoreSettings()
    shard = RocksShard(
        cluster.nodes[wrong].data_path / "shard-0", settings=settings, cache=new_cache(settings)
    )
    left = shard.state.get(b"codeq/no-entry-wrote-this")
    shard.close()

    assert verdict.clean, str(verdict)
    assert drained
    assert index > 1
    assert left is None
    assert "is not the majority's" in log
