"""Full disks: a node without space steps down, the others go on, and it returns with space."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.accounting import audit
from tests.harness.cluster import LocalCluster
from tests.harness.commands import command
from tests.harness.http import HttpClient
from tests.harness.load import Load, workers
from tests.harness.node_process import OPERATOR_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.small_disk import SmallDisk, small_disk
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CYCLES_PER_S = 60.0
WITHIN_S = 60.0
DISK_MIB = 96
RESERVE = 16 * 2**20
SMALL = {"memtableBytes": 2**20, "minFreeBytes": 0}


class Stage:
    """A cluster whose node n2 has a small disk, and n2's reports about itself."""

    def __init__(self, cluster: LocalCluster, disk: SmallDisk) -> None:
        self.cluster = cluster
        self.disk = disk

    def load(self, command: str) -> Load:
        """Return a load over all nodes that leaves the machine some spare time."""
        return Load(
            self.cluster.urls,
            producer_token=PRODUCER_TOKEN,
            worker_tokens=workers(WORKER_TOKENS, 8),
            command=command,
            cycles_per_s=CYCLES_PER_S,
        )

    async def said(self, path: str) -> tuple[int, str]:
        """Return status and text of n2's answer to an operator."""
        async with HttpClient() as http:
            url = self.cluster.urls["n2"]
            answer = await http.send("GET", url, path, token=OPERATOR_TOKEN)
        return answer.status, answer.body.decode()

    async def out(self, *words: str) -> str:
        """Wait until n2 reports not ready with all these reasons; return the text."""

        async def says() -> str | None:
            status, text = await self.said("/readyz")
            return text if status == 503 and all(word in text for word in words) else None

        return await until(says, what=f"n2 out: {words}")

    async def leads(self) -> bool:
        """Return whether n2 leads a shard."""
        shards = await self.cluster.status("n2")
        return shards is not None and any(each.is_leader for each in shards.values())

    async def leads_nothing(self) -> bool:
        """Return whether n2 answers and leads no shard."""
        shards = await self.cluster.status("n2")
        return shards is not None and not any(each.is_leader for each in shards.values())

    async def passed(self, load: Load, count: int) -> None:
        """Wait until this many more calls are answered."""
        upto = len(load.calls) + count

        async def enough() -> bool:
            return len(load.calls) >= upto

        await until(enough, what=f"{count} calls")


@pytest_asyncio.fixture(loop_scope="module")
async def stage(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """Run three nodes of two shards, n2 on a small disk."""
    store = SMALL | getattr(request, "param", {})
    cluster = LocalCluster(tmp_path, shards=2, settings={"store": store})
    with small_disk(
        cluster.nodes["n2"].data_path, size_mib=DISK_MIB, pid=lambda: cluster.pid("n2")
    ) as disk:
        async with cluster:
            yield Stage(cluster, disk)


@pytest.mark.timeout(240)
async def test_a_disk_that_fills_up_under_load_costs_no_task(stage: Stage) -> None:
    """Writes fail for lack of space; the process goes on, and serves again without a restart."""
    cluster = stage.cluster
    pid = cluster.pid("n2")
    async with stage.load("fills-up") as load:
        await until(stage.leads, what="n2 leading the shard it prefers")
        await stage.passed(load, 200)
        load.avoid("n2")
        stage.disk.fill(leave_bytes=2**18)
        text = await stage.out("storage failed")
        metrics = (await stage.said("/metrics"))[1]
        await until(stage.leads_nothing, what="n2 leading nothing")
        await stage.passed(load, 200)
        stage.disk.free()
        await cluster.wait_ready(["n2"], within_s=WITHIN_S)
        load.allow("n2")
        await stage.passed(load, 100)
        drained = await load.drain(within_s=WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())

    assert "No space left on device" in text or not stage.disk.real, text
    assert 'codeq_replica_out{reason="disk-full",shard="' in metrics
    assert verdict.clean, str(verdict)
    assert drained
    assert pid == cluster.pid("n2")
    await cluster.wait_converged()


@pytest.mark.parametrize("stage", [{"minFreeBytes": RESERVE}], indirect=True)
async def test_a_node_steps_back_before_its_disk_is_full(stage: Stage) -> None:
    """It transfers its leaderships before a write fails, and no client notices."""
    cluster = stage.cluster
    if not stage.disk.real:
        # Only a real file system reports its free space; an imitated disk can only refuse writes.
        stage.disk.fill(leave_bytes=0)
        await stage.out("storage failed")
        return
    async with stage.load("steps-back") as load:
        await until(stage.leads, what="n2 leading the shard it prefers")
        await stage.passed(load, 200)
        load.avoid("n2")
        stage.disk.fill(leave_bytes=RESERVE - 2**20)
        text = await stage.out("store.minFreeBytes")
        await stage.passed(load, 100)
        transfer = ("cluster", "transfer", "--shard", "0", "--url", cluster.urls["n2"])
        asked = await command(*transfer, token=OPERATOR_TOKEN, within_s=WITHIN_S)
        stage.disk.fill(leave_bytes=RESERVE + 2**20)
        await stage.passed(load, 100)
        still_out = (await stage.said("/readyz"))[0]
        stage.disk.free()
        await cluster.wait_ready(["n2"], within_s=WITHIN_S)
        load.allow("n2")
        drained = await load.drain(within_s=WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())

    told = re.search(r"(\d+) MiB are free", text)
    assert told is not None, text
    # The node may have used some of the remaining space before it checked.
    assert RESERVE // 2 < int(told[1]) * 2**20 < RESERVE, text
    assert 503 == still_out
    # Its replica hears of no leader; its peers do.
    assert 0 == asked.code, asked.err
    assert verdict.clean, str(verdict)
    assert drained
    assert "storage failed" not in cluster.nodes["n2"].log_path.read_text()
    await cluster.wait_converged()
