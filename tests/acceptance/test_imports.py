"""Imports: a tenant moves into a running cluster, whichever processes die meanwhile."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.core import task_ids
from tests.harness.accounting import audit
from tests.harness.client import RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.commands import command, commanded
from tests.harness.load import Load, workers
from tests.harness.node_process import ADMIN_TOKEN, OPERATOR_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.partition import LinkProxies
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
ZETA = "acceptance-zeta"
TASKS = 3000
BATCH = 100
DONE = 20
CYCLES_PER_S = 20.0
WITHIN_S = 60.0
DRAINED_WITHIN_S = 90.0


async def told(*arguments: object) -> dict[str, Any]:
    """Run a command that succeeds, and return the JSON it prints."""
    done = await command(*arguments, "--json")
    assert 0 == done.code, done.err
    answer: dict[str, Any] = done.document
    return answer


async def filled(home: Path) -> tuple[Path, dict[str, str]]:
    """Fill a cluster of one node and four shards, and export its tenant.

    Returns:
        The directory of the export, and the status of each task.
    """
    settings = {"backup": {"directory": str(home / "backups")}}
    async with (
        LocalCluster(home, nodes=1, shards=4, settings=settings) as old,
        RecordingClient(old.urls) as client,
    ):
        status: dict[str, str] = {}
        for start in range(0, TASKS, BATCH):
            tasks = [
                {
                    "command": "moved",
                    "payload": {"n": n, "fill": "x" * 500},
                    "idempotencyKey": f"moved/{n}",
                    "priority": n % 10,
                    "delaySeconds": 3600 if n % 50 == 0 else 0,
                }
                for n in range(start, start + BATCH)
            ]
            made = await client.done("POST", "n1", "/tasks/batch", PRODUCER_TOKEN, {"tasks": tasks})
            for each in made["results"]:
                status[each["task"]["id"]] = each["task"]["status"]
        for _ in range(DONE):
            claimed = await client.claimed("n1", WORKER, ["moved"])
            await client.finished("n1", WORKER, claimed, {"of": "old"})
            status[claimed["id"]] = "COMPLETED"
        held = await client.claimed("n1", WORKER, ["moved"], leaseSeconds=3600)
        status[held["id"]] = "IN_PROGRESS"
        await told("backup", "create", "--url", old.nodes["n1"].url, "--token", OPERATOR_TOKEN)
    exports = home / "exports"
    await told(
        *("backup", "export", "--in", home / "backups", "--to", exports, "--tenant", "_"),
    )
    return exports, status


def two_tenants(**settings: object) -> dict[str, object]:
    """Return settings with an admin and a worker of the tenant zeta added to the usual ones."""
    admin = {"token": ZETA, "subject": "zoe", "tenant": "zeta", "scopes": ["codeq:admin"]}
    work = {"token": ZETA, "subject": "zoe", "tenant": "zeta", "eventTypes": ["*"]}
    scopes = ["codeq:claim", "codeq:result"]
    usual = {"token": ADMIN_TOKEN, "subject": "admin", "scopes": ["codeq:admin"]}
    operator = {"token": OPERATOR_TOKEN, "subject": "operator", "scopes": ["codeq:operator"]}
    auth = {
        "tenantFallback": "default",
        "producer": [{"kind": "static", "tokens": [usual, operator, admin]}],
        "worker": [{"kind": "static", "tokens": [work | {"scopes": scopes}]}],
    }
    return {"auth": auth, **settings}


async def listed(client: RecordingClient, node: str) -> dict[str, str]:
    """Return the status of every imported task from the list, in which each appears once."""
    found: list[tuple[str, str]] = []
    cursor = ""
    while True:
        path = f"/admin/tasks?command=moved&limit=500&cursor={cursor}"
        page = await client.done("GET", node, path, ADMIN_TOKEN)
        found += [(each["id"], each["status"]) for each in page["tasks"]]
        cursor = page.get("cursor", "")
        if not cursor:
            assert len(found) == len(dict(found))
            return dict(found)


@pytest.mark.timeout(280)
async def test_a_tenant_moves_into_a_cluster_that_serves(tmp_path: Path) -> None:
    """Under load the import is killed, then a node: in the end every task exists once."""
    exports, expected = await filled(tmp_path / "old")
    async with (
        LocalCluster(tmp_path / "new", shards=2) as new,
        RecordingClient(new.urls) as client,
        Load(
            new.urls,
            producer_token=PRODUCER_TOKEN,
            worker_tokens=workers(WORKER_TOKENS, 8),
            command="busy",
            cycles_per_s=CYCLES_PER_S,
        ) as load,
    ):
        urls = [flag for node in new.nodes.values() for flag in ("--url", node.url)]
        move = ("import", exports, "--tenant", "_", *urls, "--token", ADMIN_TOKEN)

        async def arrived(count: int) -> bool:
            return (await client.depth("n1", ADMIN_TOKEN, "moved"))["ready"] >= count

        would = await told(*move, "--dry-run")
        assert {} == await listed(client, "n1")
        # The command's requests pass through this process, so the import waits while this test is
        # busy.
        relay = LinkProxies(
            {"import": 0} | {each.id: each.http_port for each in new.nodes.values()}
        )
        await relay.start()
        relayed = [
            flag
            for node in new.nodes
            for flag in ("--url", f"http://127.0.0.1:{relay.port('import', node)}")
        ]
        by_relay = ("import", exports, "--tenant", "_", *relayed, "--token", ADMIN_TOKEN)
        async with commanded(*by_relay) as process:
            await until(lambda: arrived(TASKS // 10), what="a part of it")
            process.kill()
            assert -9 == await process.wait()
        await relay.stop()
        some = len(await listed(client, "n1"))
        async with commanded(*move, "--json") as process:
            await until(lambda: arrived(some + TASKS // 10), what="some more")
            load.avoid("n3")
            await new.kill("n3")
            said, noted = await asyncio.wait_for(process.communicate(), WITHIN_S)
            assert 0 == process.returncode, noted.decode()
        done = json.loads(said)
        new.start("n3")
        await new.wait_ready(["n3"])
        load.allow("n3")
        again = await told(*move)
        depth = await client.depth("n2", ADMIN_TOKEN, "moved")
        found = await listed(client, "n3")
        seventh = {"payload": {"n": 7, "fill": "x" * 500}, "idempotencyKey": "moved/7"}
        replayed = await answered(
            partial(client.create, "n3", PRODUCER_TOKEN, "moved", **seventh), repeatable=True
        )
        drained = await load.drain(within_s=DRAINED_WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())
        await new.wait_converged()

    count = Counter(expected.values())
    assert (TASKS, True) == (would["imported"], would["dryRun"])
    assert TASKS // 10 <= some < TASKS
    assert TASKS == done["imported"] + done["present"]
    assert (0, TASKS) == (again["imported"], again["present"])
    assert expected == found
    assert (count["PENDING"], 1) == (depth["ready"] + depth["delayed"], depth["inProgress"])
    assert TASKS // 50 == depth["delayed"]
    assert replayed.replayed
    assert replayed.body["id"] in expected
    assert verdict.clean, str(verdict)
    assert drained


async def ended(*arguments: object) -> tuple[int | None, str]:
    """Run a command; return its exit code and all its output."""
    async with commanded(*arguments) as process:
        said, noted = await process.communicate()
        return process.returncode, f"{said.decode()}{noted.decode()}"


async def test_a_tenant_gets_another_name_and_no_more_than_its_budget(tmp_path: Path) -> None:
    """Omitted tasks are named and the exit code is 1; once there is room they are imported."""
    backups = tmp_path / "backups"
    settings = two_tenants(backup={"directory": str(backups)})
    async with (
        LocalCluster(tmp_path / "old", nodes=1, shards=1, settings=settings) as old,
        RecordingClient(old.urls) as client,
    ):
        ids = set()
        for n in range(3):
            made = await client.created("n1", ADMIN_TOKEN, "named", idempotencyKey=f"k{n}")
            ids.add(task_ids.kept("zeta", made["id"], home=0, shards=1))
        here = ("--url", old.nodes["n1"].url, "--token")
        await told("backup", "create", *here, OPERATOR_TOKEN)
        move = ("import", backups, "--tenant", "_", "--as", "zeta")
        taken = await ended(*move, *here, ZETA, "--json")
        foreign = await ended(*move, *here, ADMIN_TOKEN)
        unknown = await ended("import", backups, "--tenant", "nobody", "--as", "zeta", *here, ZETA)
    settings = two_tenants(budgets={"readyTasks": 2})
    async with (
        LocalCluster(tmp_path / "new", nodes=1, shards=1, settings=settings) as new,
        RecordingClient(new.urls) as client,
    ):
        there = ("--url", new.nodes["n1"].url, "--token", ZETA)
        full = await ended(*move, *there)
        claimed = [await client.claimed("n1", ZETA, ["named"]) for _ in range(2)]
        rest = await told(*move, *there)
        audited = await told("audit", *there)
        read = [await client.done("GET", "n1", f"/tasks/{each}", ZETA) for each in ids]

    assert 0 == taken[0]
    assert (3, 3) == (json.loads(taken[1])["imported"], json.loads(taken[1])["renamed"])
    assert (3, True) == (foreign[0], "is of tenant _, not of zeta" in foreign[1])
    assert (1, True) == (unknown[0], "holds nothing of a tenant nobody" in unknown[1])
    assert 1 == full[0]
    assert "budget readyTasks is used up" in full[1]
    assert re.search(r"^2 +tasks imported", full[1], re.MULTILINE)
    assert {each["id"] for each in claimed} < ids
    assert (1, 2, "zeta") == (rest["imported"], rest["present"], rest["as"])
    assert ["1 task", "2 tasks"] == [each["detail"] for each in audited["records"]]
    assert {"zeta"} == {each["tenantId"] for each in read}
