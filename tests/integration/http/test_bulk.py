"""Bulk: what each action does to the tasks of a selection, on a real node and on three."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.http.client import Client, eventually
from tests.integration.http.nodes import NAMES, three_nodes
from tests.integration.http.operating import died, finished

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def done(node: Client, action: str, select: dict[str, Any], **more: object) -> dict[str, Any]:
    """Run a job to its end."""
    begun = await node.post("admin/bulk", {"select": select, "action": action, **more})
    assert 202 == begun.status, begun.body
    ended = await eventually(
        lambda: node.get(f"admin/bulk/{begun.json['id']}"),
        lambda answer: answer.json["status"] == "DONE",
    )
    return ended.json


async def counted(node: Client, action: str, **select: object) -> dict[str, Any]:
    """Count what a job would be about."""
    body = {"select": select, "action": action, "dryRun": True}
    if action == "priority":
        body["priority"] = 5
    answer = await node.post("admin/bulk", body)
    assert 200 == answer.status, answer.body
    return answer.json


async def shown(node: Client, task_id: str) -> dict[str, Any]:
    """Return a task."""
    return (await node.get(f"tasks/{task_id}")).json


async def test_each_action_changes_the_tasks_that_it_fits(node: Client) -> None:
    """The others of the selection are left alone, and counted."""
    dead = await died(node, "each", error="boom")
    ended = await finished(node, "each")
    delayed = await node.create("each", delaySeconds=3600)
    ready = await node.create("each")
    select = {"command": "EACH"}
    counts = {
        action: (await counted(node, action, **select))["changes"]
        for action in ("cancel", "requeue", "delete", "priority", "runNow")
    }
    said = await counted(node, "requeue", **select)

    assert {"cancel": 2, "requeue": 1, "delete": 2, "priority": 2, "runNow": 1} == counts
    assert {"PENDING": 2, "DEAD": 1, "COMPLETED": 1} == said["byStatus"]
    assert {"boom": 1} == said["byError"]
    tagged = await done(node, "tag", select, set={"seen": "yes"}, remove=["no"])
    assert (4, 4) == (tagged["selected"], tagged["changed"])
    metrics = (await node.get("/metrics")).body.decode().splitlines()
    assert 'codeq_bulk_parts_running{shard="0"} 0.0' in metrics
    assert 'codeq_bulk_tasks_changed_total{action="tag"} 4.0' in metrics
    assert {"seen": "yes"} == (await shown(node, ended))["tags"]
    assert 2 == (await done(node, "priority", select, priority=7))["changed"]
    assert [7, 7] == [(await shown(node, each))["priority"] for each in (delayed, ready)]
    assert 1 == (await done(node, "runNow", {"tag": ["seen:yes"]}))["changed"]
    assert "DELAYED" not in (await shown(node, delayed))["lastKnownLocation"]
    assert 1 == (await done(node, "requeue", {**select, "status": "DEAD"}))["changed"]
    assert "PENDING" == (await shown(node, dead))["status"]
    cancelled = await done(node, "cancel", {**select, "status": "PENDING"}, reason="moved")
    assert (3, 3) == (cancelled["selected"], cancelled["changed"])
    assert "CANCELLED" == (await shown(node, ready))["error"]
    assert 4 == (await done(node, "delete", select))["changed"]
    assert [404] * 4 == [
        (await node.get(f"tasks/{each}")).status for each in (dead, ended, delayed, ready)
    ]


async def test_lists_and_jobs_select_by_schedule_and_group(node: Client) -> None:
    """And by the time of creation."""
    group = await node.post(
        "groups", {"id": "chosen", "tasks": [{"command": "chosen", "payload": 1}] * 3}
    )
    plan = b'{"every":"300d","task":{"command":"chosen","payload":1}}'
    await node.send("PUT", "admin/schedules/chosen", plan)
    run = (await node.post("admin/schedules/chosen/trigger", {})).json["taskId"]
    members = {task["id"] for task in group.json["tasks"]}
    listed = {
        path: {task["id"] for task in (await node.get(f"admin/tasks?{path}")).json["tasks"]}
        for path in ("group=chosen", "schedule=chosen", "group=chosen&schedule=chosen")
    }
    at = (await shown(node, run))["createdAt"]

    assert [members, {run}, set()] == list(listed.values())
    assert 3 == (await counted(node, "cancel", group="chosen"))["selected"]
    assert 1 == (await counted(node, "cancel", schedule="chosen", createdAfter=at))["selected"]
    assert 0 == (await counted(node, "cancel", schedule="chosen", createdBefore=at))["selected"]
    assert 1 == (await done(node, "cancel", {"schedule": "chosen"}))["changed"]
    assert [400, 400] == [
        (await node.get(f"admin/tasks?{path}")).status for path in ("group=.", "schedule=a/b")
    ]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"action": "cancel"}, "selection-required"),
        ({"action": "cancel", "select": {}}, "selection-required"),
        ({"action": "cancel", "select": {"createdBefore": "2030-01-01T00:00:00Z"}}, None),
        ({"action": "cancel", "select": {"queue": "x"}}, "invalid-select"),
        ({"action": "cancel", "select": {"command": "a/b"}}, "invalid-command"),
        ({"action": "cancel", "select": {"status": "GONE"}}, "invalid-status"),
        ({"action": "cancel", "select": {"tag": ["user"]}}, "invalid-tag"),
        ({"action": "cancel", "select": {"group": "a:b"}}, "invalid-group-id"),
        ({"action": "cancel", "select": {"schedule": "a/b"}}, "invalid-schedule-id"),
        ({"action": "cancel", "select": {"command": "x", "createdAfter": "now"}}, "invalid-query"),
        ({"action": "pause", "select": {"command": "x"}}, "invalid-action"),
        ({"select": {"command": "x"}}, "invalid-action"),
        ({"action": "priority", "select": {"command": "x"}}, "invalid-action"),
        ({"action": "priority", "priority": 10, "select": {"command": "x"}}, "invalid-action"),
        ({"action": "delete", "reason": "x", "select": {"command": "x"}}, "invalid-action"),
        ({"action": "tag", "select": {"command": "x"}}, "invalid-tags"),
        ({"action": "tag", "set": {"a": ""}, "select": {"command": "x"}}, "invalid-tags"),
        ({"action": "cancel", "id": "a/b", "select": {"command": "x"}}, "invalid-bulk-id"),
    ],
)
async def test_what_cannot_be_is_refused(
    node: Client, body: dict[str, object], code: str | None
) -> None:
    """The code says which part of it, and nothing has begun."""
    before = (await node.get("admin/bulk")).json
    answer = await node.post("admin/bulk", body)

    assert (400, code or "selection-required") == (answer.status, answer.json["code"])
    assert before == (await node.get("admin/bulk")).json


async def test_a_name_is_one_job(node: Client) -> None:
    """The same request again is the same job; another one of the name is refused."""
    select = {"command": "nothing-here"}
    first = await done(node, "cancel", select, id="one-job")
    again = await node.post(
        "admin/bulk", {"idempotencyKey": "one-job", "select": select, "action": "cancel"}
    )
    other = await node.post("admin/bulk", {"id": "one-job", "select": select, "action": "delete"})
    stopped = await node.send("DELETE", "admin/bulk/one-job", b"")
    missing = await node.send("DELETE", "admin/bulk/no-job", b"")

    assert (202, first) == (again.status, again.json)
    assert (409, "idempotency-conflict") == (other.status, other.json["code"])
    assert (200, first) == (stopped.status, stopped.json)
    assert [404, 404] == [missing.status, (await node.get("admin/bulk/no-job")).status]


async def test_tenants_have_jobs_of_their_own(node: Client) -> None:
    """A job of one touches no task of another, and the other sees and stops none."""
    task = await node.create("apart", tags={"apart": "x"})
    other = Client(node.port, "other")
    by_tag = await done(other, "cancel", {"tag": ["apart:x"]}, id="theirs")
    by_command = await done(other, "cancel", {"command": "apart"})

    assert [0, 0] == [by_tag["selected"], by_command["selected"]]
    assert "PENDING" == (await shown(node, task))["status"]
    assert 404 == (await node.get("admin/bulk/theirs")).status
    assert 404 == (await node.send("DELETE", "admin/bulk/theirs", b"")).status
    assert "theirs" not in [job["id"] for job in (await node.get("admin/bulk")).json["jobs"]]


async def test_a_job_is_stopped_on_any_node(tmp_path: Path) -> None:
    """What it has done stays, and the rest is left alone; every node shows the same."""
    tasks = [{"command": "stopped", "payload": 1, "tags": {"run": "1"}}] * 100
    async with three_nodes(tmp_path) as nodes:
        first, second, third = (nodes.clients[name] for name in NAMES)
        for _ in range(12):
            made = await first.post("tasks/batch", {"tasks": tasks})
            assert 200 == made.status, made.body
        body = {"id": "stop", "select": {"tag": ["run:1"]}, "action": "cancel"}
        begun = await first.post("admin/bulk", body)
        stopped = await second.send("DELETE", "admin/bulk/stop", b"")
        seen = await third.get("admin/bulk/stop")
        left = await counted(third, "cancel", tag=["run:1"])
        audit = (await first.get("admin/audit")).json["records"]

    assert ("RUNNING", 2) == (begun.json["status"], begun.json["shards"])
    assert (200, "STOPPED", 2) == (
        stopped.status,
        stopped.json["status"],
        stopped.json["shardsEnded"],
    )
    assert stopped.json == seen.json
    assert seen.json["changed"] == left["byStatus"].get("FAILED", 0) < 1200
    assert {"bulk.start", "bulk.stop"} == {each["action"] for each in audit}
