"""Reports: what a heartbeat says of its task, and who reads it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.settings import LimitSettings
from tests.golden.release import (
    ARCHIVE,
    EXPECTED,
    OPERATOR,
    STORED,
    MovedClock,
    Places,
    settings_of,
)
from tests.golden.release import running as settled
from tests.integration.http.client import Client, eventually, running

pytestmark = pytest.mark.asyncio(loop_scope="session")

_DONE = {"status": "COMPLETED", "result": {}}


async def _claimed(node: Client, command: str, **fields: object) -> dict[str, Any]:
    answer = await node.post("tasks/claim", {"commands": [command], "waitSeconds": 15, **fields})
    assert 200 == answer.status
    return answer.json


async def _beat(node: Client, task: str, **said: object) -> tuple[int, object]:
    answer = await node.post(f"tasks/{task}/heartbeat", {"extendSeconds": 60, **said})
    return answer.status, answer.json.get("code")


async def test_progress_is_shown_until_another_one_comes(node: Client) -> None:
    """A bare heartbeat leaves it, and so does the end of the task."""
    task = await node.create("counted")
    await _claimed(node, "counted")
    silent = (await node.get(f"tasks/{task}")).json
    await _beat(node, task, progress={"done": 3, "total": 10, "note": "größe"})
    first = (await node.get(f"tasks/{task}")).json["progress"]
    await _beat(node, task)
    bare = (await node.get(f"tasks/{task}")).json["progress"]
    await _beat(node, task, progress={"done": 11})
    await node.post(f"tasks/{task}/result", _DONE)
    last = (await node.get(f"tasks/{task}")).json["progress"]

    assert "progress" not in silent
    assert isinstance(first, dict)
    assert isinstance(last, dict)
    assert {"done": 3, "total": 10, "note": "größe"} == {k: first[k] for k in first if k != "at"}
    assert first == bare
    assert {"done": 11} == {k: last[k] for k in last if k != "at"}
    assert last["at"] >= first["at"]


async def test_the_next_delivery_gets_the_last_checkpoint(node: Client) -> None:
    """Exactly as it was sent, after a nack and an abandon; the task itself does not show it."""
    task = await node.create("left")
    first = await _claimed(node, "left")
    await _beat(node, task, checkpoint={"line": 1})
    await _beat(node, task, checkpoint={"line": 12345678901234567890.0})
    await _beat(node, task, checkpoint=None, progress={"done": 1})
    shown = (await node.get(f"tasks/{task}")).json
    await node.post(f"tasks/{task}/nack", {"delaySeconds": 0})
    second = await _claimed(node, "left")
    await node.post(f"tasks/{task}/abandon")
    third = await _claimed(node, "left")
    await node.post(f"tasks/{task}/result", _DONE)

    assert "checkpoint" not in first
    assert "checkpoint" not in shown
    assert {"line": 12345678901234567890.0} == second["checkpoint"] == third["checkpoint"]
    assert {"done": 1, "at": second["progress"]["at"]} == second["progress"]


async def test_a_batch_reports_of_each_task(node: Client) -> None:
    """A refused report does not affect the others; a batch claim hands all checkpoints out."""
    tasks = [await node.create("together") for _ in range(3)]
    for _ in tasks:
        await _claimed(node, "together")
    leases = [
        {"id": task, "progress": {"done": n}, "checkpoint": n} for n, task in enumerate(tasks)
    ]
    bad: list[dict[str, object]] = [
        {"id": tasks[0], "progress": {"done": -1}},
        {"id": tasks[0], "checkpoint": "x" * 70_000},
    ]
    answer = await node.post("tasks/batch/heartbeats", {"leases": [*leases, *bad]})
    for task in tasks:
        await node.post(f"tasks/{task}/abandon")
    claimed: dict[str, object] = {}
    while len(claimed) < 3:
        wanted = {"commands": ["together"], "count": 3, "waitSeconds": 15}
        batch = (await node.post("tasks/claim/batch", wanted)).json["tasks"]
        assert isinstance(batch, list)
        claimed |= {task["id"]: task["checkpoint"] for task in batch}
    for task in tasks:
        await node.post(f"tasks/{task}/result", _DONE)

    kept = answer.json["leases"]
    assert isinstance(kept, list)
    assert [None, None, None, "invalid-progress", "checkpoint-too-large"] == [
        each.get("code") for each in kept
    ]
    assert {task: n for n, task in enumerate(tasks)} == claimed


async def test_a_report_is_bounded(node: Client) -> None:
    """What is too large or no number is refused, and changes nothing."""
    task = await node.create("bounded")
    await _claimed(node, "bounded")
    most = "x" * (65_536 - 2)

    assert (200, None) == await _beat(node, task, checkpoint=most)
    assert (413, "checkpoint-too-large") == await _beat(node, task, checkpoint=most + "x")
    assert (400, "invalid-progress") == await _beat(node, task, progress={"done": -1})
    assert (400, "invalid-progress") == await _beat(node, task, progress={"note": "ü" * 513})
    assert (200, None) == await _beat(node, task, progress={"note": "ü" * 512})
    await node.post(f"tasks/{task}/abandon")
    assert most == (await _claimed(node, "bounded"))["checkpoint"]
    await node.post(f"tasks/{task}/result", _DONE)


async def test_nobody_else_says_anything_of_a_task(node: Client) -> None:
    """Neither another worker of the tenant nor another tenant."""
    task = await node.create("own")
    await _claimed(node, "own")
    said = {"progress": {"done": 7}, "checkpoint": 7}
    mate = await node.post(f"tasks/{task}/heartbeat", said, token="mate")
    other = await node.post(f"tasks/{task}/heartbeat", said, token="other")
    shown = (await node.get(f"tasks/{task}")).json
    await node.post(f"tasks/{task}/result", _DONE)

    assert (403, 404) == (mate.status, other.status)
    assert "progress" not in shown


async def test_a_checkpoint_outlives_its_worker_and_the_node(tmp_path: Path) -> None:
    """After a restart, the delivery that follows an expired lease has it."""
    async with running(tmp_path, LimitSettings()) as node:
        task = await node.create("outlived")
        await _claimed(node, "outlived", leaseSeconds=1)
        answer = await node.post(
            f"tasks/{task}/heartbeat", {"extendSeconds": 1, "checkpoint": {"line": 7}}
        )
        assert 200 == answer.status
    async with running(tmp_path, LimitSettings()) as node:
        again = await _claimed(node, "outlived")

    assert {"line": 7} == again["checkpoint"]
    assert task == again["id"]


async def test_reports_wait_until_every_node_knows_them(tmp_path: Path) -> None:
    """On data of release 0.1.0 the answer names the upgrade; a bare heartbeat is taken."""
    with tarfile.open(STORED / "0.1.0" / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    clock = MovedClock(json.loads((STORED / "0.1.0" / EXPECTED).read_text())["made_ms"])
    async with settled(settings_of(Places(tmp_path)), clock) as (_, node):
        task = await node.create("early")
        await _claimed(node, "early")
        early = [await _beat(node, task, **said) for said in ({"progress": {}}, {"checkpoint": 1})]
        bare = await _beat(node, task, progress=None, checkpoint=None)
        await node.post("admin/cluster/upgrade", {}, token=OPERATOR)
        late = await eventually(
            lambda: _beat(node, task, checkpoint=1), lambda answer: answer[0] != 503
        )

    assert [(503, "upgrade-under-way")] * 2 == early
    assert [(200, None)] * 2 == [bare, late]
