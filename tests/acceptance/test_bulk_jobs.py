"""Bulk jobs over dead leaders: exactly the selection is touched, each task of it once."""

from __future__ import annotations

import pytest

from codeq_cluster.client import BulkAction, BulkRecord, Client, NewTask, Operator, TaskSelection
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, BOTH_TOKEN
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEANT = 4000
OTHERS = 400
MINE, THEIRS = {"user": "42"}, {"user": "43"}


async def test_a_job_cancels_exactly_its_selection_over_two_killed_leaders(
    cluster: LocalCluster,
) -> None:
    """Those of another tag stay, and so do those that were created after it had begun."""
    urls = list(cluster.urls.values())
    async with (
        Client(urls, token=BOTH_TOKEN, deadline_s=30) as client,
        Operator(urls, token=ADMIN_TOKEN, deadline_s=30) as operator,
    ):
        select, action = TaskSelection(tags=MINE), BulkAction(action="cancel", reason="left us")
        await client.create_many([NewTask("bulk-kills", 1, tags=MINE)] * MEANT)
        await client.create_many([NewTask("bulk-kills", 1, tags=THEIRS)] * OTHERS)
        before = await operator.count_bulk(select, action)
        begun = await operator.start_bulk(select, action, job_id="leave")
        for shard in range(2):
            victim = await cluster.leader_of(shard)
            await cluster.kill(victim)
            await cluster.leader_of(shard, among=[each for each in cluster.nodes if each != victim])
            cluster.start(victim)
            await cluster.wait_ready()
        late = await client.create_many([NewTask("bulk-kills", 1, tags=MINE)] * 100)

        async def ended() -> BulkRecord | None:
            job = await operator.bulk_job("leave")
            return job if job.status == "DONE" else None

        job = await until(ended, within_s=60, what="the end of the job")
        again = await operator.start_bulk(select, action, job_id="leave")
        mine = await operator.count_bulk(select, action)
        theirs = await operator.count_bulk(TaskSelection(tags=THEIRS), action)
        records = [each for each in (await operator.audit()).rows if each["target"] == "leave"]

    assert (MEANT, MEANT) == (before.selected, before.changes)
    assert "RUNNING" == begun.status
    assert (MEANT, False) == (job.changed, job.incomplete)
    assert job == again
    assert {"FAILED": MEANT, "PENDING": len(late)} == mine.by_status
    assert {"CANCELLED": MEANT} == mine.by_error
    assert {"PENDING": OTHERS} == theirs.by_status
    assert 1 == sum(each["action"] == "bulk.start" for each in records)
    assert MEANT == sum(
        int(each["detail"].split()[0]) for each in records if each["action"] == "bulk.cancel"
    )
    await cluster.wait_converged()
