"""Runbooks: every command of docs/runbooks does what the page says, on real nodes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from codeq_cluster.core.task import Task
from tests.acceptance.poison import rewrite
from tests.acceptance.runbooks import Runbook, controlled
from tests.harness.accounting import RecordedOutcome, audit
from tests.harness.certificates import Authority
from tests.harness.client import RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, workers
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.small_disk import small_disk
from tests.harness.waiting import until
from tests.integration.webhooks.target import listening

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("curl")]

# A rate that leaves the machine time for a starting node.
CYCLES_PER_S = 50.0
# The least load for the test to count, however busy the machine is.
CREATES_MIN = 300
DRAINED_WITHIN_S = 90.0
# Long enough to stop three nodes before a delay of it ends.
_LATER_S = 20


@asynccontextmanager
async def opened(
    name: str, cluster: LocalCluster, *, ca: Path | None = None
) -> AsyncIterator[Runbook]:
    """Yield a runbook for this cluster; in the end all of it must have been run."""
    async with controlled(cluster) as control:
        book = Runbook(name, cluster, control=control, ca=ca)
        yield book
        book.assert_done()


async def test_a_lost_disk_a_lost_node_and_another_in_its_place(tmp_path: Path) -> None:
    """Two pages on one cluster: n2 loses its data under load, then its process, then its place."""
    async with LocalCluster(tmp_path, shards=2) as cluster:
        async with Load(
            cluster.urls,
            producer_token=PRODUCER_TOKEN,
            worker_tokens=workers(WORKER_TOKENS, 4),
            command="lost",
            cycles_per_s=10,
        ) as load:
            load.avoid("n2")
            await cluster.kill("n2")
            damage(cluster.nodes["n2"].data_path)
            async with opened("lost-disk.md", cluster) as book:
                await book.run("See")
                await book.run("See what is damaged")
                await book.run("Set it aside")
                await book.run("Start it empty")
                await book.run("It is over")
            drained = await load.drain(within_s=DRAINED_WITHIN_S)
            verdict = audit(load.calls, await load.final_tasks())
        await cluster.kill("n2")
        cluster.configure("n4")
        async with opened("lost-node.md", cluster) as book:
            await book.run("See")
            await book.run("Bring it back")
            await book.run("It is over")
            await book.run("Or replace it")
        # The new node and one of the original nodes form a majority now.
        await cluster.kill("n1")
        led_by = await cluster.leader_of(0, among=["n3", "n4"])

    assert verdict.clean, str(verdict)
    assert drained
    assert led_by in {"n3", "n4"}


def damage(data: Path) -> None:
    """Flip some bits in a stopped node's data."""
    manifest = next((data / "shard-0").glob("MANIFEST-*"))
    content = bytearray(manifest.read_bytes())
    content[len(content) // 3] ^= 0x5A
    manifest.write_bytes(content)


async def test_a_majority_comes_back_and_when_it_cannot_one_node_goes_on(tmp_path: Path) -> None:
    """The page of a lost quorum: two nodes killed at once, brought back, then lost for good.

    Acknowledged tasks that had reached the survivor exist on every node in the end and are
    processed. The later nodes form a majority without the survivor.
    """
    async with LocalCluster(tmp_path, shards=2) as cluster, RecordingClient(cluster.urls) as client:
        created = [await client.created(node, PRODUCER_TOKEN, "before") for node in cluster.urls]
        await cluster.kill("n2")
        await cluster.kill("n3")
        async with opened("lost-quorum.md", cluster) as book:
            (tmp_path / "n1" / "backup").mkdir()
            await book.run("See")
            await book.run("Bring one back")
            created += [
                await client.created(node, PRODUCER_TOKEN, "later") for node in cluster.urls
            ]
            await cluster.wait_converged()
            for lost in ("n2", "n3"):
                await cluster.kill(lost)
                shutil.rmtree(cluster.nodes[lost].data_path)
            await book.run("If a majority of the disks is gone")
            created.append(await client.created("n1", PRODUCER_TOKEN, "alone"))
            await book.run("Let new nodes come in")
        await cluster.wait_converged()
        await cluster.kill("n1")
        reads = [
            await client.done("GET", "n3", f"/tasks/{each['id']}", PRODUCER_TOKEN)
            for each in created
        ]
        worker = WORKER_TOKENS["worker-0"]
        commands = ["before", "later", "alone"]
        claims = [await client.claimed("n2", worker, commands) for _ in created]

    assert [each["id"] for each in created] == [each["id"] for each in reads]
    assert {each["id"] for each in created} == {each["id"] for each in claims}


async def test_a_full_disk_takes_its_node_out_alone(tmp_path: Path) -> None:
    """The page of a full disk: a node without space steps down and returns; nothing is lost."""
    cluster = LocalCluster(
        tmp_path, settings={"store": {"memtableBytes": 2**20, "minFreeBytes": 0}}
    )
    with small_disk(
        cluster.nodes["n2"].data_path, size_mib=96, pid=lambda: cluster.pid("n2")
    ) as disk:
        async with cluster, RecordingClient(cluster.urls) as client:
            disk.fill(leave_bytes=2**18)
            created = []
            log = cluster.nodes["n2"].log_path

            async def out() -> bool:
                answer = await client.create(
                    "n1", PRODUCER_TOKEN, "large", payload={"fill": "x" * 200_000}
                )
                created.append(answer)
                return "replica is out" in log.read_text()

            await until(out, what="n2 out for want of room")
            async with opened("full-disk.md", cluster) as book:
                await book.run("See")
                await book.run("Make room")
                disk.free()
                await book.run("It is over")
            await cluster.wait_converged()
            kept = [answer for answer in created if answer.outcome is RecordedOutcome.OK]
            reads = [await client.task("n2", PRODUCER_TOKEN, each.body["id"]) for each in kept]

    assert kept
    assert {RecordedOutcome.OK} == {each.outcome for each in reads}


async def test_a_slow_disk_is_found_and_worked_around(cluster: LocalCluster) -> None:
    """The page of a slow disk: figures show it, leaderships move, and the node can be removed."""
    async with opened("slow-disk.md", cluster) as book:
        await until(lambda: _leads(cluster, "n2"), what="n2 leading the shard it prefers")
        await book.run("See which")
        # The test reads at once, because seconds later the node takes its preferred shards back.
        async with asyncio.TaskGroup() as looking:
            looking.create_task(
                until(lambda: _leads_nothing(cluster, "n2"), within_s=90, what="n2 leading nothing")
            )
            await book.run("Take its leaderships away")
        await book.run("Or its node")
    await cluster.wait_converged()


async def _leads(cluster: LocalCluster, node: str) -> bool:
    shards = await cluster.status(node)
    return shards is not None and any(each.is_leader for each in shards.values())


async def _leads_nothing(cluster: LocalCluster, node: str) -> bool:
    shards = await cluster.status(node)
    return shards is not None and not any(each.is_leader for each in shards.values())


async def test_a_rolling_upgrade_fails_no_request(cluster: LocalCluster) -> None:
    """The page of an upgrade, under a load that follows readiness: not one call fails."""
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 8),
        command="upgrade",
        cycles_per_s=CYCLES_PER_S,
    ) as load:
        stopped: list[str] = []

        async def stop(node: str) -> None:
            stopped.append(node)
            load.avoid(node)
            assert 0 == await cluster.stop(node)

        async def start(node: str) -> None:
            cluster.start(node)
            await cluster.wait_ready([node])
            load.allow(node)

        async with controlled(cluster, stop=stop, start=start) as control:
            book = Runbook("upgrade.md", cluster, control=control, ca=None)
            await book.run("Before")
            await book.run("Node by node")
            await book.run("After")
            await book.run("Use the newer formats")
            book.assert_done()
        drained = await load.drain(within_s=DRAINED_WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())
    # Calls in flight at a stop count as failures here too, although the audit would excuse them.
    failed = [call for call in load.calls if call.outcome is not RecordedOutcome.OK]

    assert ["n1", "n2", "n3"] == stopped
    assert verdict.clean, str(verdict)
    assert not failed
    assert drained
    assert load.begun >= CREATES_MIN


async def test_a_backup_brings_everything_back(tmp_path: Path) -> None:
    """The page of backup and restore: data of the backup exists, later data does not."""
    settings = {"backup": {"directory": str(tmp_path / "n1" / "backup")}}
    async with (
        LocalCluster(tmp_path, settings=settings) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        async with opened("backup-and-restore.md", cluster) as book:
            before = await client.created("n1", PRODUCER_TOKEN, "orders")
            await book.run("Back up")
            await book.run("Check")
            after = await client.created("n2", PRODUCER_TOKEN, "orders")
            await book.run("Look into a stopped node")
            await book.run("Restore")
            await book.run("Import one tenant")
        kept = await answered(partial(client.task, "n3", PRODUCER_TOKEN, before["id"]))
        gone = await answered(partial(client.task, "n3", PRODUCER_TOKEN, after["id"]))
        await client.created("n3", PRODUCER_TOKEN, "orders")
        await client.claimed("n1", WORKER_TOKENS["worker-0"], ["orders"])
        await cluster.wait_converged()

    assert (200, 404) == (kept.status, gone.status)


async def test_certificates_and_their_authority_are_replaced(tmp_path: Path) -> None:
    """The page of certificates: the only stop is the one that shows the new ones in use."""
    old, new = Authority("old"), Authority("new")
    believed = tmp_path / "believed.pem"
    believed.write_bytes(old.pem + new.pem)
    async with LocalCluster(tmp_path, authority=old) as cluster:
        for node in cluster.nodes.values():
            for authority, suffix in ((old, "new"), (new, "next")):
                pair = authority.issue(node.id, "127.0.0.1", days=90)
                pair.write(
                    node.directory / f"node.pem.{suffix}", node.directory / f"node.key.{suffix}"
                )
            (node.directory / "ca.pem.new").write_bytes(new.pem)
        async with opened("certificate-rotation.md", cluster, ca=believed) as book:
            await book.run("See")
            await book.run("Renew")
            await book.run("Replace the authority")
            await book.run("It is over")


async def test_tasks_callbacks_and_requests_that_fail_go_on(tmp_path: Path) -> None:
    """Five pages on one cluster: of dead letters, waiting tasks, schedules, callbacks, requests."""
    settings = {"resultWebhookMaxAttempts": 1, "limits": {"requestTimeoutMs": 3000}}
    async with (
        LocalCluster(tmp_path, shards=2, settings=settings) as cluster,
        RecordingClient(cluster.urls) as client,
        receiver() as heard,
    ):
        await _die(client)
        async with opened("dead-letters.md", cluster) as book:
            await book.run("See")
            await book.run("Stop more from dying")
            await book.run("Try them again")
            for _ in range(3):
                await _work(client)
            await book.run("It is over")

        await client.created("n1", PRODUCER_TOKEN, "reports")
        await _lose_a_lease(client)
        await client.created("n2", PRODUCER_TOKEN, "reports")
        await client.done("POST", "n1", "/admin/queues/reports/pause", ADMIN_TOKEN, repeatable=True)
        async with opened("waiting-tasks.md", cluster) as book:
            await book.run("See")
            await book.run("Leases that end")
            await book.run("Let it go on")
            for _ in range(2):
                await _work(client)
            await book.run("Follow-ups that do not come")
            await book.run("It is over")

        nightly = {
            "cron": "30 2 * * *",
            "zone": "Europe/Berlin",
            "task": {"command": "nightly-report", "payload": {}},
        }
        path = "/admin/schedules/nightly-report"
        await client.done("PUT", "n1", path, ADMIN_TOKEN, nightly, repeatable=True)
        async with opened("late-schedules.md", cluster) as book:
            await book.run("See")
            await book.run("Fire what was missed")
            await book.run("It is over")

        heard.status = 500
        await client.created("n1", PRODUCER_TOKEN, "reports", webhook=heard.url)
        await _work(client)
        async with opened("failing-callbacks.md", cluster) as book:
            await book.run("See")
            heard.status = 200
            await book.run("Send them again")
            await book.run("It is over")

        for lost in ("n2", "n3"):
            await cluster.kill(lost)
        refused = await client.create("n1", PRODUCER_TOKEN, "reports")
        async with opened("failing-requests.md", cluster) as book:
            await book.run("See")
            await book.run("It is over")

    assert [500, 200] == heard.answered
    assert 503 == refused.status


async def test_what_is_set_aside_goes_on_once_it_is_mended(tmp_path: Path) -> None:
    """One task's record is poisoned on every disk; its neighbours are served by each leader."""
    async with (
        LocalCluster(tmp_path, shards=1) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        bad = await client.created("n1", PRODUCER_TOKEN, "spoilt", delaySeconds=_LATER_S)
        neighbour = await client.created("n1", PRODUCER_TOKEN, "reports", delaySeconds=_LATER_S)
        await _changed(cluster, bad["id"], lambda task: replace(task, command="a/b"))
        assert neighbour["id"] == (await _claimed(client))["id"]
        await until(partial(_asides, cluster), what="something set aside")

        leader = await cluster.leader(0)
        assert leader is not None
        await cluster.kill(leader)
        other = next(node for node in cluster.nodes if node != leader)
        later = await client.created(other, PRODUCER_TOKEN, "reports", delaySeconds=1)
        task = await client.claimed(other, WORKER_TOKENS["worker-0"], ["reports"])
        assert later["id"] == task["id"]
        cluster.start(leader)
        await cluster.wait_ready()
        async with opened("set-aside.md", cluster) as book:
            await book.run("See")
            await _changed(cluster, bad["id"], lambda task: replace(task, command="spoilt"))
            await book.run("Try again")
            await book.run("It is over")
        read = await client.task("n1", PRODUCER_TOKEN, bad["id"])

    assert "PENDING" == read.body["status"]


async def _changed(cluster: LocalCluster, task_id: str, change: Callable[[Task], Task]) -> None:
    """Change a task's record on the disks of all nodes, and start them again."""
    for node in cluster.nodes:
        assert 0 == await cluster.stop(node)
    rewrite((each.data_path for each in cluster.nodes.values()), task_id, change, shards=1)
    for node in cluster.nodes:
        cluster.start(node)
    await cluster.wait_ready()


async def _asides(cluster: LocalCluster) -> float:
    """Return how many tasks are set aside."""
    name = 'codeq_items_aside{kind="task",shard="0"}'
    return sum([(await cluster.metrics(node)).get(name, 0.0) for node in cluster.nodes])


async def _die(client: RecordingClient) -> None:
    """Let three tasks run out of attempts, for the same reason."""
    for _ in range(3):
        await client.created("n1", PRODUCER_TOKEN, "reports", maxAttempts=1)
        task = await _claimed(client)
        path = f"/tasks/{task['id']}/nack"
        body = {"reason": "exit code 1: no such table", "leaseToken": task["leaseToken"]}
        await client.done("POST", "n1", path, WORKER_TOKENS["worker-0"], body)


async def _lose_a_lease(client: RecordingClient) -> None:
    """Claim a task for a second, and wait until it is ready again."""
    task = await _claimed(client, leaseSeconds=1)

    async def ready() -> bool:
        read = await client.task("n1", PRODUCER_TOKEN, task["id"])
        return read.outcome is RecordedOutcome.OK and read.body["status"] == "PENDING"

    await until(ready, what="the lease over")


async def _work(client: RecordingClient) -> None:
    """Finish the next task."""
    await client.finished("n1", WORKER_TOKENS["worker-0"], await _claimed(client), {})


async def _claimed(client: RecordingClient, **fields: object) -> dict[str, Any]:
    return await client.claimed("n1", WORKER_TOKENS["worker-0"], ["reports"], **fields)


@dataclass(slots=True)
class Receiver:
    """A receiver of webhooks that answers with a set status."""

    url: str = ""
    status: int = 200
    answered: list[int] = field(default_factory=list)

    async def hear(self, _request: web.Request) -> web.Response:
        """Answer a call."""
        self.answered.append(self.status)
        return web.Response(status=self.status)


@asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    """Run a receiver on loopback."""
    made = Receiver()
    async with listening(made.hear) as listener:
        made.url = listener.url
        yield made
