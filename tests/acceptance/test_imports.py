"""Imports: a tenant moves into a cluster that serves, whatever dies on the way."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.config import without_settings
from codeq_cluster.settings import environment
from codeq_cluster.testing.accounting import Outcome, audit
from codeq_cluster.testing.client import Client
from codeq_cluster.testing.cluster import (
    ADMIN_TOKEN,
    PRODUCER_TOKEN,
    WORKER_TOKENS,
    LocalCluster,
    until,
)
from codeq_cluster.testing.load import Load, workers

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
TASKS = 6000
BATCH = 100
DONE = 20
CYCLES_PER_S = 20.0
WITHIN_S = 60.0
DRAINED_WITHIN_S = 30.0


@asynccontextmanager
async def command(*arguments: object) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a command of the program; it has ended after the block, at the latest."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "codeq_cluster.cli.main", *map(str, arguments)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=without_settings(environment()),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def told(*arguments: object) -> dict[str, Any]:
    """Run a command that succeeds, and return the JSON it prints."""
    async with command(*arguments, "--json") as process:
        said, noted = await process.communicate()
        assert process.returncode == 0, noted.decode()
        answer: dict[str, Any] = json.loads(said)
        return answer


async def filled(home: Path) -> tuple[Path, dict[str, str]]:
    """Fill a cluster of one node and four shards, and export its tenant.

    Returns:
        Where the export is, and the status of each task.
    """
    settings = {"backup": {"directory": str(home / "backups")}}
    async with (
        LocalCluster(home, nodes=1, shards=4, settings=settings) as old,
        Client(old.urls) as client,
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
            made = await client.call("POST", "n1", "/tasks/batch", PRODUCER_TOKEN, {"tasks": tasks})
            assert made.outcome is Outcome.OK, made
            for each in made.body["results"]:
                status[each["task"]["id"]] = each["task"]["status"]
        for _ in range(DONE):
            claimed = await client.claim("n1", WORKER, ["moved"])
            finished = await client.finish("n1", WORKER, claimed.body, {"of": "old"})
            assert finished.outcome is Outcome.OK, finished
            status[claimed.body["id"]] = "COMPLETED"
        held = await client.claim("n1", WORKER, ["moved"], leaseSeconds=3600)
        status[held.body["id"]] = "IN_PROGRESS"
        await told("backup", "create", "--url", old.nodes["n1"].url, "--token", ADMIN_TOKEN)
    exports = home / "exports"
    await told(
        *("backup", "export", "--in", home / "backups", "--to", exports, "--tenant", "_"),
    )
    return exports, status


async def listed(client: Client, node: str) -> dict[str, str]:
    """Return the status of every moved task, by walking the list; each is in it once."""
    found: list[tuple[str, str]] = []
    cursor = ""
    while True:
        path = f"/admin/tasks?command=moved&limit=500&cursor={cursor}"
        answer = await client.call("GET", node, path, ADMIN_TOKEN)
        assert answer.outcome is Outcome.OK, answer
        found += [(each["id"], each["status"]) for each in answer.body["tasks"]]
        cursor = answer.body.get("cursor", "")
        if not cursor:
            assert len(dict(found)) == len(found)
            return dict(found)


@pytest.mark.timeout(280)
async def test_a_tenant_moves_into_a_cluster_that_serves(tmp_path: Path) -> None:
    """Under load the import is killed, then a node is: in the end every task is there, once."""
    exports, expected = await filled(tmp_path / "old")
    async with (
        LocalCluster(tmp_path / "new", shards=2) as new,
        Client(new.urls) as client,
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
        assert await listed(client, "n1") == {}
        async with command(*move) as process:
            await until(lambda: arrived(TASKS // 10), within_s=WITHIN_S, what="a part of it")
            process.kill()
            assert await process.wait() == -9
        some = len(await listed(client, "n1"))
        async with command(*move, "--json") as process:
            await until(lambda: arrived(some + TASKS // 10), within_s=WITHIN_S, what="some more")
            load.avoid("n3")
            await new.kill("n3")
            said, noted = await asyncio.wait_for(process.communicate(), WITHIN_S)
            assert process.returncode == 0, noted.decode()
        done = json.loads(said)
        new.start("n3")
        await new.wait_ready(["n3"])
        load.allow("n3")
        again = await told(*move)
        depth = await client.depth("n2", ADMIN_TOKEN, "moved")
        found = await listed(client, "n3")
        replayed = await client.create(
            *("n3", PRODUCER_TOKEN, "moved"),
            payload={"n": 7, "fill": "x" * 500},
            idempotencyKey="moved/7",
        )
        drained = await load.drain(within_s=DRAINED_WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())
        await new.wait_converged()

    count = Counter(expected.values())
    assert (would["imported"], would["dryRun"]) == (TASKS, True)
    assert TASKS // 10 <= some < TASKS
    assert done["imported"] + done["present"] == TASKS
    assert (again["imported"], again["present"]) == (0, TASKS)
    assert found == expected
    assert (depth["ready"] + depth["delayed"], depth["inProgress"]) == (count["PENDING"], 1)
    assert depth["delayed"] == TASKS // 50
    assert replayed.replayed
    assert replayed.body["id"] in expected
    assert verdict.clean, str(verdict)
    assert drained
