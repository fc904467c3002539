"""Backups: a running cluster is backed up, and restored elsewhere under other names."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.backup.catalogue import found
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.manifest import MANIFEST
from codeq_cluster.core.sharding import shard_of
from tests.harness.accounting import RecordedOutcome
from tests.harness.client import RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.commands import command
from tests.harness.node_process import ADMIN_TOKEN, OPERATOR_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
BEFORE = 120  # The number of tasks acknowledged before the backup is requested.
NAMES = ("berta", "carla", "doris")


async def told(*arguments: object) -> Any:
    """Run a command that succeeds, and return the JSON it prints."""
    done = await command(*arguments, "--json")
    assert 0 == done.code, done.err
    return done.document


def shards_of(home: Path) -> list[str]:
    """Return the paths of the shards in a data directory."""
    return sorted(each.name for each in home.glob("shard-*"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def old(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes with four shards, each with a directory for backups."""
    home = tmp_path_factory.mktemp("old")
    settings = {"backup": {"directory": str(home / "backups")}}
    async with LocalCluster(home, shards=4, settings=settings) as running:
        yield running


def backups_of(cluster: LocalCluster) -> Path:
    """Return the directory of the cluster's backups."""
    return cluster.nodes["n1"].directory.parent / "backups"


async def load(client: RecordingClient, node: str, name: str, stop: asyncio.Event) -> None:
    """Create and finish tasks through a node until told to stop."""
    while not stop.is_set():
        await client.create(node, PRODUCER_TOKEN, name)
        claimed = await client.claim(node, WORKER, [name])
        if claimed.outcome is RecordedOutcome.OK and claimed.body:
            await client.finish(node, WORKER, claimed.body, {"of": name})


async def depths(client: RecordingClient, node: str) -> dict[str, dict[str, int]]:
    """Return the counters of the queues."""
    queues = await client.done("GET", node, "/admin/queues", ADMIN_TOKEN)
    return {each["command"]: each for each in queues}


async def listed(client: RecordingClient, node: str, queue: str, status: str) -> list[str]:
    """Return the ids of a queue's tasks of one status."""
    ids: list[str] = []
    cursor = ""
    while True:
        path = f"/admin/tasks?command={queue}&status={status}&limit=500&cursor={cursor}"
        page = await client.done("GET", node, path, ADMIN_TOKEN)
        ids += [each["id"] for each in page["tasks"]]
        cursor = page.get("cursor", "")
        if not cursor:
            return ids


async def test_a_cluster_goes_on_elsewhere_with_other_names_and_fewer_shards(
    old: LocalCluster, tmp_path: Path
) -> None:
    """Every task acknowledged before the backup exists once and can be finished."""
    async with RecordingClient(old.urls, trust=old.trust) as client:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(load(client, node, "busy", stop)) for node in old.nodes]
            created: dict[str, Mapping[str, Any]] = {}
            for n in range(BEFORE):
                node = f"n{n % 3 + 1}"
                fields = {"payload": {"n": n}, "idempotencyKey": f"order/{n}", "priority": n % 10}
                made = await client.created(node, PRODUCER_TOKEN, "kept", **fields)
                created[made["id"]] = made
            held = await client.claimed("n2", WORKER, ["kept"], leaseSeconds=3600)
            finished = await client.claimed("n3", WORKER, ["kept"])
            await client.finished("n3", WORKER, finished, {"of": "kept"})
            taken = await told(
                *("backup", "create", "--url", old.nodes["n2"].url, "--token", OPERATOR_TOKEN)
            )
            stop.set()
        assert all(each.done() for each in loads)
    assert ("DONE", "n2") == (taken["status"], taken["node"])
    place = backups_of(old)
    of_node = await told(*("backup", "ls", "--url", old.nodes["n3"].url, "--token", OPERATOR_TOKEN))
    assert [taken["id"]] == [each["id"] for each in of_node["backups"]]
    assert (await told("backup", "verify", taken["id"], "--in", place))["tasks"] >= BEFORE

    new = LocalCluster(tmp_path, shards=2, names=NAMES, settings={"clusterId": "elsewhere"})
    for name, node in new.nodes.items():
        restored = await told(
            *("restore", "--from", place, "--into", node.data_path, "--shards", 2),
            *("--cluster-id", "elsewhere", "--node-id", name),
        )
        assert (0, 2) == (restored["forgottenKeys"], restored["shards"])
        assert ["shard-0", "shard-1"] == shards_of(node.data_path)
    async with new, RecordingClient(new.urls, trust=new.trust) as client:
        await new.wait_converged()
        for task_id, task in created.items():
            read = await client.done("GET", NAMES[0], f"/tasks/{task_id}", PRODUCER_TOKEN)
            assert task["payload"] == read["payload"]
            assert shard_of(task_id, 2) == read["shard"]
        fields = {"payload": {"n": 7}, "idempotencyKey": "order/7", "priority": 7}
        again = await answered(
            partial(client.create, NAMES[1], PRODUCER_TOKEN, "kept", **fields), repeatable=True
        )
        assert again.replayed
        assert again.body["id"] in created

        # The counters agree with the lists.
        for queue, depth in (await depths(client, NAMES[2])).items():
            waiting = await listed(client, NAMES[1], queue, "PENDING")
            leased = await listed(client, NAMES[1], queue, "IN_PROGRESS")
            assert (
                len(waiting),
                len(leased),
            ) == (depth["ready"] + depth["delayed"], depth["inProgress"])
        assert [held["id"]] == await listed(client, NAMES[0], "kept", "IN_PROGRESS")

        # The lease continues under its token, and each waiting task is delivered once.
        await client.finished(NAMES[0], WORKER, held, {"of": "held"})
        rest = set(created) - {held["id"], finished["id"]}
        while rest:
            claimed = await client.claimed(NAMES[len(rest) % 3], WORKER, ["kept"])
            rest.remove(claimed["id"])
            await client.finished(NAMES[0], WORKER, claimed, {})
        result = await client.done(
            "GET", NAMES[2], f"/tasks/{finished['id']}/result", PRODUCER_TOKEN
        )
        assert {"of": "kept"} == result["result"]["result"]

        # A restored node that dies comes back, and the others go on meanwhile.
        await new.kill(NAMES[0])
        await client.created(NAMES[1], PRODUCER_TOKEN, "kept")
        new.start(NAMES[0])
        await new.wait_ready()
        await new.wait_converged()


async def test_nodes_made_with_other_flags_do_not_serve_together(tmp_path: Path) -> None:
    """Their digests differ, so they do not form a cluster, and the log says why."""
    backups = tmp_path / "backups"
    settings = {"backup": {"directory": str(backups)}}
    async with (
        LocalCluster(tmp_path / "one", nodes=1, shards=1, settings=settings) as one,
        RecordingClient(one.urls) as client,
    ):
        await client.created("n1", PRODUCER_TOKEN, "c", idempotencyKey="k")
        taken = await told(
            *("backup", "create", "--url", one.nodes["n1"].url, "--token", OPERATOR_TOKEN)
        )
    names = ("n1", "n2", "n3")
    # Entering a cluster whose nodes are present would wait until they are ready: these never are.
    new = LocalCluster(tmp_path / "three", shards=1, absent=names)
    for name, node in new.nodes.items():
        flags = ("--forget-keys",) if name == "n3" else ()
        await told(
            *("restore", "--from", backups, "--id", taken["id"], "--into", node.data_path),
            *("--node-id", name, *flags),
        )

    async def told_why() -> bool:
        return "hold different data" in new.nodes["n1"].log_path.read_text()

    async with new:
        for name in names:
            new.start(name)
        await until(told_why, what="the reason in the log of the first node")
        assert dict.fromkeys(names, False) == {name: await new.ready(name) for name in names}


async def test_a_node_killed_in_the_middle_leaves_no_backup(tmp_path: Path) -> None:
    """After a restart, the node's next backup is complete."""
    settings = {"backup": {"directory": str(tmp_path / "backups"), "bytesPerSecond": 65_536}}
    place = BackupDirectory(tmp_path / "backups")
    async with (
        LocalCluster(tmp_path, nodes=1, shards=2, settings=settings) as cluster,
        RecordingClient(cluster.urls) as client,
    ):
        for _ in range(30):
            await client.created("n1", PRODUCER_TOKEN, "c", payload="x" * 100_000)
        begun = await client.done("POST", "n1", "/admin/backup", OPERATOR_TOKEN)

        async def writing() -> bool:
            return bool(place.backups())

        await until(writing, what="a file of the backup")
        await cluster.kill("n1")
        left = found(place)

        assert [(begun["id"], "incomplete")] == [(each.id, each.problem) for each in left]
        verified = await command("backup", "verify", "--in", tmp_path / "backups")
        assert 1 == verified.code
        assert "there is no complete backup" in verified.err
        cluster.nodes["n1"].config_path.write_text(
            cluster.nodes["n1"].config_path.read_text().replace("65536", "1073741824")
        )
        cluster.start("n1")
        await cluster.wait_ready()
        assert not (cluster.nodes["n1"].data_path / "backup").exists()
        taken = await told(
            *("backup", "create", "--url", cluster.nodes["n1"].url, "--token", OPERATOR_TOKEN)
        )
        assert ("DONE", 30) == (taken["status"], taken["tasks"])
        kept = [each for each in found(place) if each.manifest is not None]
        assert [taken["id"]] == [each.id for each in kept]
        assert MANIFEST in place.backups()[taken["id"]]


async def test_a_stopped_node_can_be_looked_into(tmp_path: Path) -> None:
    """Tasks, counters, rows and log are shown; while the node runs, the command refuses."""
    async with LocalCluster(tmp_path, nodes=1, shards=2) as cluster:
        data = cluster.nodes["n1"].data_path
        async with RecordingClient(cluster.urls) as client:
            ids: set[str] = set()
            # At least one task is on each shard.
            while len(ids) < 6 or {shard_of(each, 2) for each in ids} != {0, 1}:
                # A key decides the shard of its task; tasks without one stay together for a while.
                key = f"k{len(ids)}"
                made = await client.created(
                    "n1", PRODUCER_TOKEN, "c", payload={"n": len(ids)}, idempotencyKey=key
                )
                ids.add(made["id"])
        running = await command("inspect", data)
        await cluster.stop("n1")
        before = {each: each.stat().st_mtime_ns for each in data.rglob("*") if each.is_file()}
        summary = await told("inspect", data)
        tasks = (await told("inspect", data, "--tasks"))["tasks"]
        queues = (await told("inspect", data, "--queues"))["queues"]
        items = (await told("inspect", data, "--items"))["items"]
        entries = (await told("inspect", data, "--log", "--shard", 0))["log"]
        row = await told("inspect", data, "--key", f"codeq/payload/{tasks[0]['id']}")
        nothing = await command("inspect", data, "--key", "codeq/payload/none")
        tables = await command("inspect", data)
        after = {each: each.stat().st_mtime_ns for each in data.rglob("*") if each.is_file()}

    assert (1, True) == (running.code, "in use by another process" in running.err)
    assert ("acceptance", "n1") == (summary["clusterId"], summary["nodeId"])
    assert [True, True] == [each["applied"] == each["log_last"] for each in summary["shards"]]
    assert {(each, "READY") for each in ids} == {(each["id"], each["state"]) for each in tasks}
    assert len(ids) == sum(each["ready"] for each in queues)
    assert [] == items
    assert {"no-op", "batch"} == {each["kind"] for each in entries}
    assert list(range(1, len(entries) + 1)) == [each["index"] for each in entries]
    assert json.loads(row["value"])["n"] in range(len(ids))
    assert 1 == nothing.code
    assert "node n1 of cluster acceptance, 2 shards" in tables.out
    assert before == after
