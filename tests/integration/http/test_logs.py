"""Logs of tasks over HTTP: written with heartbeats, read in pages, gone with their tasks."""

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


async def _claimed(node: Client, command: str, **fields: object) -> None:
    answer = await node.post("tasks/claim", {"commands": [command], "waitSeconds": 15, **fields})
    assert 200 == answer.status


async def _log(node: Client, task: str, *lines: object, **more: object) -> tuple[int, object]:
    body = {"extendSeconds": 60, "log": lines, **more}
    answer = await node.post(f"tasks/{task}/heartbeat", body)
    return answer.status, answer.json.get("code")


async def _read(node: Client, task: str, query: str = "") -> dict[str, Any]:
    answer = await node.get(f"tasks/{task}/log{query}")
    assert 200 == answer.status
    return answer.json


def _told(log: dict[str, Any]) -> list[tuple[int, int, str]]:
    return [(line["number"], line["attempt"], line["text"]) for line in log["lines"]]


async def test_each_line_has_its_instant_and_its_attempt(node: Client) -> None:
    """Lines of all attempts stand in order, also those of a batch, and after the task's end."""
    task = await node.create("told")
    nothing = await _read(node, task)
    await _claimed(node, "told")
    before = (await node.get(f"tasks/{task}")).json["updatedAt"]
    await _log(node, task, "größe", "")
    await _log(node, task)
    await node.post(f"tasks/{task}/nack", {"delaySeconds": 0})
    await _claimed(node, "told")
    lease = {"id": task, "extendSeconds": 60, "log": ["two\nlines"]}
    await node.post("tasks/batch/heartbeats", {"leases": [lease, {**lease, "log": [7]}]})
    watched = {"id": task, "watchOnly": True, "log": ["not said"]}
    await node.post("tasks/batch/heartbeats", {"leases": [watched]})
    await node.post(f"tasks/{task}/result", {"status": "FAILED", "error": "broken"})
    log = await _read(node, task)

    assert {"lines": [], "written": 0, "dropped": 0} == nothing
    assert [(1, 1, "größe"), (2, 1, ""), (3, 2, "two\nlines")] == _told(log)
    assert (3, 0) == (log["written"], log["dropped"])
    times = [str(line["at"]) for line in log["lines"]]
    assert [str(before), *times] == sorted([str(before), *times])


async def test_a_full_log_drops_its_oldest_lines_and_says_how_many(node: Client) -> None:
    """It is read in pages, each after the last number of the one before."""
    task = await node.create("ringed")
    await _claimed(node, "ringed")
    for part in range(11):
        await _log(node, task, *(f"{20 * part + n}" for n in range(1, 21)))
    whole = await _read(node, task)
    first = await _read(node, task, "?limit=3")
    second = await _read(node, task, "?after=23&limit=3")
    at_end = await _read(node, task, "?after=220")
    beyond = await _read(node, task, "?after=100000")
    await node.post(f"tasks/{task}/result", {"status": "COMPLETED", "result": {}})

    assert [(n, 1, str(n)) for n in range(21, 221)] == _told(whole)
    assert [(220, 20)] * 3 == [
        (each["written"], each["dropped"]) for each in (whole, first, beyond)
    ]
    assert [21, 22, 23, 24, 25, 26] == [n for page in (first, second) for n, _, _ in _told(page)]
    assert [] == at_end["lines"] == beyond["lines"]


async def test_a_log_is_bounded(node: Client) -> None:
    """What is refused changes nothing, and says what to send instead."""
    task = await node.create("narrow")
    await _claimed(node, "narrow")
    answers = [
        await _log(node, task, *["x"] * 21),
        await _log(node, task, "ü" * 513),
        await _log(node, task, "x", progress={"done": -1}),
        await _log(node, task, "ü" * 512),
    ]
    number = await node.post(f"tasks/{task}/heartbeat", {"log": [1]})
    queries = [
        (await node.get(f"tasks/{task}/log{query}")).status
        for query in ("?limit=0", "?limit=201", "?after=-1", "?after=x", "?after=&limit=")
    ]
    log = await _read(node, task)
    await node.post(f"tasks/{task}/result", {"status": "COMPLETED", "result": {}})

    assert [(400, "invalid-log")] * 2 == answers[:2]
    assert [(400, "invalid-progress"), (200, None)] == answers[2:]
    assert 400 == number.status
    assert [400, 400, 400, 400, 200] == queries
    assert ["ü" * 512] == [line["text"] for line in log["lines"]]


async def test_nobody_else_writes_or_reads_a_log(node: Client) -> None:
    """Another worker of the tenant cannot write, and another tenant can do neither."""
    task = await node.create("private")
    await _claimed(node, "private")
    mate = await node.post(f"tasks/{task}/heartbeat", {"log": ["x"]}, token="mate")
    other = await node.post(f"tasks/{task}/heartbeat", {"log": ["x"]}, token="other")
    foreign = await node.get(f"tasks/{task}/log", token="other")
    unknown = await node.get("tasks/0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60/log")
    log = await _read(node, task)
    await node.post(f"tasks/{task}/result", {"status": "COMPLETED", "result": {}})

    assert (403, 404, 404, 404) == (mate.status, other.status, foreign.status, unknown.status)
    assert [] == log["lines"]


async def test_a_log_outlives_the_node(tmp_path: Path) -> None:
    """After a restart it goes on where it was."""
    async with running(tmp_path, LimitSettings()) as node:
        task = await node.create("outlived")
        await _claimed(node, "outlived", leaseSeconds=600)
        await _log(node, task, "before", extendSeconds=600)
    async with running(tmp_path, LimitSettings()) as node:
        assert (200, None) == await _log(node, task, "after")
        log = await _read(node, task)

    assert [(1, 1, "before"), (2, 1, "after")] == _told(log)


async def test_a_patch_begins_an_empty_log_and_goes_on_with_its_numbers(node: Client) -> None:
    """A reader who follows the log misses none of the new lines."""
    task = await node.create("patched", maxAttempts=1)
    await _claimed(node, "patched")
    await _log(node, task, "of the first payload")
    await node.post(f"tasks/{task}/nack", {})
    patch = {"ids": [task], "patch": {"image": "dog.png"}}
    requeued = await node.post("admin/queues/patched/dlq/requeue", patch)
    cleared = await _read(node, task)
    await _claimed(node, "patched")
    await _log(node, task, "of the second")
    log = await _read(node, task, "?after=1")
    await node.post(f"tasks/{task}/result", {"status": "COMPLETED", "result": {}})

    assert 200 == requeued.status, requeued.body
    assert ([], 1, 1) == (cleared["lines"], cleared["written"], cleared["dropped"])
    assert [(2, 1, "of the second")] == _told(log)


async def test_logs_wait_until_every_node_knows_them(tmp_path: Path) -> None:
    """On data of release 0.1.0 the answer names the upgrade; an empty list is a bare heartbeat."""
    with tarfile.open(STORED / "0.1.0" / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    clock = MovedClock(json.loads((STORED / "0.1.0" / EXPECTED).read_text())["made_ms"])
    async with settled(settings_of(Places(tmp_path)), clock) as (_, node):
        task = await node.create("early")
        await _claimed(node, "early")
        early = [await _log(node, task, "x"), await _log(node, task)]
        await node.post("admin/cluster/upgrade", {}, token=OPERATOR)
        late = await eventually(lambda: _log(node, task, "y"), lambda answer: answer[0] != 503)
        log = await _read(node, task)

    assert [(503, "upgrade-under-way"), (200, None), (200, None)] == [*early, late]
    assert [(1, 1, "y")] == _told(log)
