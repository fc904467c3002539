"""Imports over HTTP: tasks of another cluster, imported into a running one."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace as with_settings
from itertools import islice
from pathlib import Path

import pytest
from msgspec.structs import replace

from codeq_cluster.api.http.bodies import import_bytes_max
from codeq_cluster.codec.arrivals import TASKS_MAX, Arrivals, encode_arrivals
from codeq_cluster.core import task_ids
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.items import Delivery, Pause, Topic
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Result, State, Task
from codeq_cluster.settings import BudgetSettings, LimitSettings, RaftSettings
from tests.integration.http.client import Answer, Client, serving, single
from tests.integration.http.operating import walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

BACKUP = "20260131T123000000Z-5f0c4a2e"
DAY_MS = 24 * 3600 * 1000
MIB = 2**20


def arrived(command: str, *, key: str = "", payload: str = '{"n": 1}', **fields: object) -> Arrival:
    """Return a task as another cluster has it: ready for an hour."""
    since_ms = time.time_ns() // 1_000_000 - 3_600_000
    task_id = task_ids.task_id("acme", os.urandom(16))
    while key and shard_of(task_id, 2) != shard_of(f"acme/{key}", 2):
        task_id = task_ids.task_id("acme", os.urandom(16))
    task = Task(
        id=task_id,
        tenant="elsewhere",
        command=command,
        priority=5,
        max_attempts=3,
        created_ms=since_ms,
        updated_ms=since_ms,
        state=State.READY,
        seq=since_ms << 20,
        ready_ms=since_ms,
        idempotency_key=key,
    )
    return Arrival(task=replace(task, **fields), payload=payload)


def completed(command: str, *, payload: str = '{"n":1}', body: str = '{"ok":true}') -> Arrival:
    """Return an ended task whose callback is dead, so that nothing is sent."""
    ready = arrived(command, payload=payload)
    now_ms = ready.task.updated_ms
    task = replace(
        ready.task,
        state=State.DONE,
        seq=0,
        attempts=1,
        endings=1,
        has_result=True,
        retain_until_ms=now_ms + DAY_MS,
        webhook="https://example.com/done",
    )
    result = Result(task_id=task.id, status="COMPLETED", body=body, completed_ms=now_ms)
    delivery = Delivery(
        tenant=task.tenant,
        id=f"{task.id}.1",
        task_id=task.id,
        command=command,
        url=task.webhook,
        created_ms=now_ms,
        died_ms=now_ms,
        expires_ms=now_ms + DAY_MS,
        error="HTTP 500",
    )
    return replace(ready, task=task, result=result, deliveries=((delivery, result),))


async def post(
    node: Client, *tasks: Arrival, items: tuple[Topic | Pause, ...] = (), query: str = "", **to: str
) -> Answer:
    """Send tasks and items as `codeq-cluster import` does."""
    body = encode_arrivals(Arrivals(tasks, items))
    tenant = to.get("tenant", "acme")
    return await node.post(f"admin/import?backup={BACKUP}&tenant={tenant}{query}", body)


async def test_imported_tasks_are_served(node: Client) -> None:
    """Imported tasks are read, claimed, counted, replayed and audited like local ones."""
    first, keyed, done = arrived("moved"), arrived("moved", key="moved/1"), completed("moved")
    made = await node.create("moved", priority=5)
    before = len(await imports_on_record(node))
    answer = await post(node, first, keyed, done)
    noted = (await imports_on_record(node))[: -before or None]
    again = await post(node, first, keyed, done)
    silent = len(await imports_on_record(node)) == before + len(noted)
    [queue] = [q for q in await queues(node) if q["command"] == "moved"]
    read = await node.get(f"tasks/{done.task.id}/result")
    replayed = await node.post(
        "tasks", {"command": "moved", "payload": {"n": 1}, "idempotencyKey": "moved/1"}
    )
    dead = await walked(node, "admin/deliveries?status=dead&limit=500", "deliveries")
    claimed = [(await node.claim("moved"))["id"] for _ in range(3)]

    assert (200, 3, 0) == (answer.status, answer.json["imported"], answer.json["present"])
    assert (0, 3) == (again.json["imported"], again.json["present"])
    assert (3, 0) == (queue["ready"], queue["inProgress"])
    assert {"ok": True} == read.json["result"]["result"]  # type: ignore[index]
    assert "true" == replayed.headers["x-codeq-idempotent-replay"]
    assert keyed.task.id == replayed.json["id"]
    assert f"{done.task.id}.1" in {each["id"] for each in dead}
    assert silent
    assert ["3 tasks"] == [each["detail"] for each in noted]
    assert {("w", BACKUP)} == {(each["actor"], each["target"]) for each in noted}
    assert {first.task.id, keyed.task.id} == set(claimed[:2])
    assert made == claimed[2]
    for task_id in claimed:
        ended = await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
        assert 200 == ended.status, ended


async def test_an_import_is_one_record_with_its_counts(node: Client) -> None:
    """However many parts and shards it has; the page of the list does not matter."""
    before = len(await imports_on_record(node))
    topic = Topic(tenant="", id="parts", name="parts")
    first = await post(node, *(arrived("parts") for _ in range(64)), items=(topic,))
    goes_on = f"&record={first.json['record']}"
    await post(node, *(arrived("parts") for _ in range(36)), query=goes_on)
    noted = (await imports_on_record(node))[: -before or None]
    short = (await node.get("admin/audit?limit=1")).json["records"]

    assert ["100 tasks, 1 policy or subscription"] == [each["detail"] for each in noted]
    assert noted == short


async def test_an_import_adds_to_no_other_record(node: Client) -> None:
    """The record that it names could be of another action, which it must not hide."""
    await node.send("PUT", "admin/topics/untouched", b"{}")
    [put] = (await node.get("admin/audit?limit=1")).json["records"]
    await post(node, arrived("hides"), query=f"&record={put['id']}")
    records = await walked(node, "admin/audit?limit=500", "records")
    wrong = await post(node, arrived("hides"), query="&record=newest")

    assert put in records
    assert put["id"] not in {each["id"] for each in records if each["action"] == "task.import"}
    assert (400, "invalid-query") == (wrong.status, wrong.json["code"])


async def imports_on_record(node: Client) -> list[dict[str, str]]:
    """Return the audit's import records, the newest first."""
    records = await walked(node, "admin/audit?limit=500", "records")
    return [each for each in records if each["action"] == "task.import"]


async def queues(node: Client) -> list[dict[str, object]]:
    """Return how many tasks each queue holds."""
    answer = await node.get("admin/queues")
    found: list[dict[str, object]] = json.loads(answer.body)
    return found


async def test_policies_come_before_tasks(node: Client) -> None:
    """A queue that was paused in the backup is paused here when its tasks arrive."""
    pause = Pause(tenant="elsewhere", id="halted", by="op", since_ms=1)
    answer = await post(node, arrived("halted"), items=(pause,))
    shown = await node.get("admin/queues/halted")
    resumed = await node.post("admin/queues/halted/resume")

    assert (1, 1) == (answer.json["imported"], answer.json["itemsImported"])
    assert shown.json["paused"] is True
    assert resumed.json["changed"] is True


async def test_a_dry_run_says_what_would_be(node: Client) -> None:
    """A dry run changes nothing."""
    task = arrived("dry")
    answer = await post(node, task, query="&dryRun=true")
    read = await node.get(f"tasks/{task.task.id}")

    assert (1, True, 404) == (answer.json["imported"], answer.json["dryRun"], read.status)


async def test_an_impossible_task_refuses_the_whole_import(node: Client) -> None:
    """One invalid task refuses its whole request, with the reason."""
    good = arrived("refused")
    task = good.task
    bad = [
        replace(good, task=replace(task, id="a.b")),
        replace(good, task=replace(task, id="a/b")),
        replace(good, task=replace(task, command="no spaces")),
        replace(good, task=replace(task, state=State.LEASED)),
        replace(good, payload="{"),
        replace(good, task=replace(task, priority=11)),
        replace(good, task=replace(task, uploads=("a/b",))),
    ]
    answers = [await post(node, good, each) for each in bad]
    answers.append(await post(node, items=(Topic(tenant="", id="a/b", name="a/b"),)))
    answers.append(await post(node, items=(Topic(tenant="", id="a", name="a", weight=0),)))
    where = f"admin/import?backup={BACKUP}&tenant=acme"
    answers += [await node.post(where, body) for body in (b"", b"{}", b"\x01", b"\x02\x92\x90\x90")]

    assert [400] * len(answers) == [each.status for each in answers]
    assert {"invalid-body"} == {each.json["code"] for each in answers}
    assert 404 == (await node.get(f"tasks/{task.id}")).status


async def test_an_import_must_state_backup_tenant_and_flags(node: Client) -> None:
    """Backup, tenant and flags must be given, and the number of tasks is bounded."""
    task = arrived("meant")
    other = await post(node, task, tenant="zeta")
    default = await post(node, task, tenant="_")
    silent = await node.post(f"admin/import?backup={BACKUP}", b"")
    nameless = await node.post("admin/import?backup=latest&tenant=acme", b"")
    flagged = await post(node, task, query="&dryRun=perhaps")
    many = await post(node, *(arrived("meant") for _ in range(TASKS_MAX + 1)))
    most = import_bytes_max(RaftSettings().entry_bytes_max)
    large = await node.post(f"admin/import?backup={BACKUP}&tenant=acme", bytes(most + 1))
    worker = await node.send(
        "POST", f"admin/import?backup={BACKUP}&tenant=acme", b"", token="narrow"
    )

    assert "the token is of tenant acme, not of zeta" == other.error
    assert [(403, "other-tenant")] * 3 == [
        (each.status, each.json["code"]) for each in (other, default, silent)
    ]
    assert ["invalid-query"] * 2 == [each.json["code"] for each in (nameless, flagged)]
    assert (400, "invalid-body") == (many.status, many.json["code"])
    assert f"more than {TASKS_MAX} tasks" in str(many.error)
    assert (413, "body-too-large") == (large.status, large.json["code"])
    assert 401 == worker.status


async def test_a_task_of_several_entries_comes_in_two(node: Client) -> None:
    """Callbacks come before their task; one that fits into no entry is named and left out."""
    text = '"' + "x" * int(1.2 * MIB) + '"'
    large = completed("heavy", payload=text, body=text)
    too_large = completed("heavy", payload=text, body='"' + "x" * int(2.5 * MIB) + '"')
    small = [arrived("light") for _ in range(20)]
    answer = await post(node, *small[:10], large, too_large, *small[10:])
    dead = await walked(node, "admin/deliveries?status=dead&limit=500", "deliveries")
    again = await post(node, *small, large)

    assert (200, 21) == (answer.status, answer.json["imported"]), answer.body
    assert [too_large.task.id] == answer.json["tooLarge"]
    assert f"{large.task.id}.1" in {each["id"] for each in dead}
    assert (21, 0) == (again.json["present"], again.json["imported"])


async def test_entries_smaller_than_a_part_are_filled_bit_by_bit(tmp_path: Path) -> None:
    """An operation that writes too much is halved until it fits."""
    settings = single(tmp_path, LimitSettings(max_body_bytes=8192))
    settings = with_settings(settings, raft=with_settings(settings.raft, entry_bytes_max=16_384))
    items = tuple(Topic(tenant="xyz", id=f"t{n}" * 20, name=f"T{n}" * 20) for n in range(60))
    async with serving(settings) as node:
        tasks = [arrived("many", payload='"' + "x" * 3000 + '"') for _ in range(40)]
        answer = await post(node, *tasks, items=items)
        found = await queues(node)

    assert (200, 40) == (answer.status, answer.json["imported"]), answer.body
    assert 60 == answer.json["itemsImported"]
    assert [40] == [each["ready"] for each in found]


async def test_a_budget_stops_an_import(tmp_path: Path) -> None:
    """Tasks beyond the quota are left out, and are imported when there is room."""
    settings = with_settings(
        single(tmp_path, LimitSettings()), budgets=BudgetSettings(ready_tasks=3)
    )
    async with serving(settings) as node:
        # All tasks are on one shard: it knows its own usage at once, and another shard's only
        # later.
        some = (arrived("few") for _ in range(100))
        tasks = list(islice((each for each in some if not shard_of(each.task.id, 2)), 5))
        first = (await post(node, *tasks)).json
        for _ in range(2):
            await node.claim("few")
        second = (await post(node, *tasks)).json

    assert (3, 2, "readyTasks") == (first["imported"], first["left"], first["limit"])
    assert (2, 3, 0) == (second["imported"], second["present"], second["left"])


async def test_a_topic_without_its_limit_is_left_out_and_said(node: Client) -> None:
    """Once the limit is there, the same part brings the topic."""
    topic = Topic(
        tenant="xyz", id="bounded", name="bounded", rule_seq=9, pinned="@bank", limit="bank"
    )
    first = await post(node, items=(topic,))
    missing = await node.get("admin/topics/bounded")
    await node.send("PUT", "admin/limits/bank", b'{"maxRunning":2}')
    second = await post(node, items=(topic,))
    brought = await node.get("admin/topics/bounded")

    assert (0, ["bounded@bank"]) == (first.json["itemsImported"], first.json["topicsApart"])
    assert 404 == missing.status
    assert (1, []) == (second.json["itemsImported"], second.json["topicsApart"])
    assert "bank" == brought.json["flow"]["limit"]
