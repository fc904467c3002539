"""Monitoring: a real Prometheus on a real cluster fills every panel and reports every fault."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from aiohttp import web

from deploy.grafana.boards.catalogue import BOARDS
from tests.acceptance.prometheus import JOB, RANGE_S, Prometheus, scraping
from tests.harness.certificates import Authority
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.small_disk import SmallDisk, small_disk
from tests.harness.waiting import until
from tests.integration.webhooks.target import listening

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),
    pytest.mark.needs("promtool"),
]

WITHIN_S = 60.0
DISK_MIB = 96
PAUSE_S = 0.02
RULES = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "rules"
SETTINGS = {
    # Small buffers, so that files and levels appear soon.
    "store": {"memtableBytes": 2**20, "minFreeBytes": 0},
    "rateLimit": {"admin": {"requestsPerMinute": 1, "burstSize": 1}},
    "limits": {"requestTimeoutMs": 2000},
    "resultWebhookMaxAttempts": 2,
}
# The load below causes these alerts on purpose.
OF_THE_LOAD = {
    "CodeqDeadLettersGrow",
    "CodeqLeasesExpire",
    "CodeqQueueNotClaimed",
    "CodeqWebhooksFail",
    "CodeqCertificateEnds",
    "CodeqCertificateStale",
}
# Neither the load nor a busy machine can cause these alerts.
OF_THE_NODES = {
    "CodeqItemFailures",
    "CodeqItemsAside",
    "CodeqReplicaOut",
    "CodeqStateDiffered",
    "CodeqDiskFull",
}
# These events do not happen here, so their mean has no value.
NEVER = "codeq_raft_snapshot_seconds"
# A series for each schedule that has missed an instant, each queue with held tasks, and each limit.
NOT_HERE = ("codeq_schedule_missed_total", "codeq_queue_oldest_held_seconds", "codeq_limit_")


@dataclass(slots=True, kw_only=True)
class Stage:
    """A cluster under load and monitoring; n2 has a small disk.

    Attributes:
        unseen: Expressions that returned no series while all was well.
        fired: Alerts that fired meanwhile.
    """

    cluster: LocalCluster
    prometheus: Prometheus
    disk: SmallDisk
    unseen: list[str] = field(default_factory=list)
    fired: set[str] = field(default_factory=set)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    """Run cluster, load and Prometheus, and first observe a cluster without a fault."""
    directory = tmp_path_factory.mktemp("monitored")
    authority = Authority()
    cluster = LocalCluster(
        directory, shards=2, cuttable=True, settings=SETTINGS, authority=authority
    )
    with small_disk(
        cluster.nodes["n2"].data_path, size_mib=DISK_MIB, pid=lambda: cluster.pid("n2")
    ) as disk:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(cluster)
            client = await stack.enter_async_context(
                RecordingClient(cluster.urls, timeout_s=4.0, trust=cluster.trust)
            )
            heard = await stack.enter_async_context(listening(_answer))
            prometheus = await stack.enter_async_context(scraping(cluster, directory))
            await _subscribe(client, heard.url)
            await _schedule(client)
            _spoil_certificates(cluster, authority)
            load = asyncio.create_task(_load(client, heard.url))
            stack.push_async_callback(_end, load)
            made = Stage(cluster=cluster, prometheus=prometheus, disk=disk)
            made.unseen = await _unseen(prometheus)
            made.fired = await prometheus.wait_firing(*OF_THE_LOAD, within_s=WITHIN_S)
            yield made


async def test_every_expression_of_rules_and_dashboards_returns_series(stage: Stage) -> None:
    """Under a load of all operations, each panel and each recorded rule has a series."""
    assert [] == stage.unseen


async def test_trouble_with_tasks_fires_its_alerts_and_no_others(stage: Stage) -> None:
    """Tasks that die, wait or lose leases, webhooks, certificates; no alert about a node fires."""
    assert stage.fired >= OF_THE_LOAD
    assert not stage.fired & OF_THE_NODES


async def test_each_fault_of_the_nodes_fires_its_alert(stage: Stage) -> None:
    """A network cut, a full disk, a damaged one, a killed node and a lost majority."""
    cluster, prometheus = stage.cluster, stage.prometheus

    await prometheus.wait_silent("CodeqNodeCutOff", within_s=WITHIN_S)
    cluster.cut("n3")
    await prometheus.wait_firing("CodeqNodeCutOff", within_s=WITHIN_S)
    cluster.heal("n3")
    await prometheus.wait_silent("CodeqNodeCutOff", within_s=WITHIN_S)

    stage.disk.fill(leave_bytes=2**18)
    # This needs the file system's own figure for free space; otherwise only writes are refused.
    full = ("CodeqDiskFull", "CodeqDiskFills") if stage.disk.real else ("CodeqDiskFull",)
    fired = await prometheus.wait_firing(*full, within_s=WITHIN_S)
    stage.disk.free()
    await prometheus.wait_silent("CodeqDiskFull", within_s=WITHIN_S)
    await cluster.wait_ready(within_s=WITHIN_S)

    _damage(cluster.nodes["n2"].data_path)
    await prometheus.wait_firing("CodeqReplicaOut", within_s=WITHIN_S)

    await prometheus.wait_silent("CodeqNodeDown", within_s=WITHIN_S)
    await cluster.kill("n2")
    await prometheus.wait_firing("CodeqNodeDown", within_s=WITHIN_S)
    # The other two of three nodes go on.
    await prometheus.wait_silent("CodeqShardWithoutLeader", "CodeqRequestsFail", within_s=WITHIN_S)
    await cluster.kill("n3")
    await prometheus.wait_firing("CodeqShardWithoutLeader", "CodeqRequestsFail", within_s=WITHIN_S)

    assert "CodeqReplicaOut" not in fired


async def _unseen(prometheus: Prometheus) -> list[str]:
    """Return the expressions that have no series even after repeated queries."""
    left = [each for each in _expressions() if not any(name in each for name in NOT_HERE)]
    assert len(left) > 100

    async def seen() -> bool:
        nonlocal left
        left = [each for each in left if not await _shows(prometheus, each)]
        return not left

    try:
        await until(seen, what="every expression")
    except AssertionError:
        return left
    return []


async def _shows(prometheus: Prometheus, expression: str) -> bool:
    series = await prometheus.query(expression)
    values = [float(each["value"][1]) for each in series]
    return any(not math.isnan(value) or NEVER in expression for value in values)


def _expressions() -> Iterator[str]:
    """Yield the expressions of panels and variables, and the recorded rules."""
    for board in BOARDS:
        dashboard = board.dashboard.build()
        for panel in dashboard.panels or []:
            for target in getattr(panel, "targets", None) or []:
                yield _filled(target.expr)
        for variable in dashboard.templating.list_val or []:
            chosen = re.fullmatch(r"label_values\((.*), (\w+)\)", str(variable.query))
            if chosen is not None:
                yield _filled(f"count by ({chosen[2]}) ({chosen[1]})")
    for file in RULES.glob("*.yml"):
        for group in yaml.safe_load(file.read_text())["groups"]:
            yield from (rule["record"] for rule in group["rules"] if "record" in rule)


def _filled(expression: str) -> str:
    text = expression.replace("$__rate_interval", f"{RANGE_S}s").replace("$job", JOB)
    return re.sub(r"\$\w+", ".+", text)


async def _answer(request: web.Request) -> web.Response:
    """Refuse requests to /deaf, accept others."""
    return web.Response(status=500 if request.path == "/deaf" else 200)


async def _subscribe(client: RecordingClient, url: str) -> None:
    worker = WORKER_TOKENS["worker-0"]
    body = {"callbackUrl": url, "eventTypes": ["steady"]}
    await client.done("POST", "n1", "/workers/subscriptions", worker, body, repeatable=True)


async def _schedule(client: RecordingClient) -> None:
    plan = {"every": "1s", "overlap": "allow", "task": {"command": "scheduled", "payload": {}}}
    path = "/admin/schedules/often"
    await client.done("PUT", "n1", path, ADMIN_TOKEN, plan, repeatable=True)


def _spoil_certificates(cluster: LocalCluster, authority: Authority) -> None:
    """Give n1 a certificate that expires soon, and n3 invalid files."""
    near, broken = cluster.nodes["n1"].directory, cluster.nodes["n3"].directory
    authority.issue("n1", "127.0.0.1", days=7).write(near / "node.pem", near / "node.key")
    (broken / "node.pem").write_text("no certificate")


def _damage(data: Path) -> None:
    """Flip a byte in every part of every table."""
    for table in data.glob("shard-*/*.sst"):
        with table.open("r+b") as file:
            for place in range(100, table.stat().st_size, 1024):
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 0x5A]))


async def _load(client: RecordingClient, url: str) -> None:
    """Do a little of every operation through every node, without end."""
    begun_s = time.monotonic()
    for number in range(10**9):
        for node in client.urls:
            await _turn(client, node, url, number)
        # Limits the rounds per second, however fast the cluster is.
        ahead_s = begun_s + (number + 1) * PAUSE_S - time.monotonic()
        await asyncio.sleep(max(0.0, ahead_s))


async def _turn(client: RecordingClient, node: str, url: str, number: int) -> None:
    async def create(command: str, **fields: object) -> None:
        await client.create(node, PRODUCER_TOKEN, command, **fields)

    async def claim(command: str, **fields: object) -> dict[str, Any] | None:
        worker = WORKER_TOKENS["worker-0"]
        answer = await client.claim(node, worker, [command], **fields)
        return answer.body if answer.status == 200 else None

    async def finish(command: str) -> None:
        if (task := await claim(command)) is not None:
            await client.finish(node, WORKER_TOKENS["worker-0"], task, {})

    # So large that a few dozen fill a memtable.
    await create("steady", payload="x" * 50_000, webhook=f"{url}/keen")
    await finish("steady")
    await create("unheard", webhook=f"{url}/deaf")
    await finish("unheard")
    if number % 5 == 0:
        await create("unclaimed")
        await create("later", delaySeconds=3600)
        await create("forgotten")
        await claim("forgotten", leaseSeconds=1)
        await create("dying", maxAttempts=1)
        if (task := await claim("dying")) is not None:
            body = {"reason": "no", "leaseToken": task["leaseToken"]}
            path = f"/tasks/{task['id']}/nack"
            await client.call("POST", node, path, WORKER_TOKENS["worker-0"], body)
        await client.call("POST", node, "/admin/tasks/cleanup", ADMIN_TOKEN, {"dryRun": True})


async def _end(load: asyncio.Task[None]) -> None:
    load.cancel()
    try:
        await load
    except asyncio.CancelledError:
        return
