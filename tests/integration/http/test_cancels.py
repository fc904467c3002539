"""Cancels with a grace: who hears of them, when, and how the task ends."""

from __future__ import annotations

import asyncio
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

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
from tests.integration.http.client import Client, eventually

pytestmark = pytest.mark.asyncio(loop_scope="session")

_DONE = {"status": "COMPLETED", "result": {}}
_ASKED = {"graceSeconds": 600, "reason": "withdrawn"}


async def _leased(node: Client, command: str, **fields: object) -> str:
    task = await node.create(command, **fields)
    answer = await node.post("tasks/claim", {"commands": [command], "waitSeconds": 15})
    assert (200, task) == (answer.status, answer.json["id"])
    return task


async def _cancel(node: Client, task: str, **said: object) -> dict[str, Any]:
    answer = await node.post(f"tasks/{task}/cancel", said)
    assert 200 == answer.status
    return answer.json


async def _shown(node: Client, task: str) -> dict[str, Any]:
    return (await node.get(f"tasks/{task}")).json


async def test_a_heartbeat_says_that_its_task_is_to_end(node: Client) -> None:
    """With the reason and the deadline, beyond which no lease goes; a result counts until then."""
    task = await _leased(node, "asked")
    before = (await node.post(f"tasks/{task}/heartbeat", {"extendSeconds": 60})).json
    asked = await _cancel(node, task, **_ASKED)
    after = (await node.post(f"tasks/{task}/heartbeat", {"extendSeconds": 3600})).json
    why = (await node.get(f"tasks/{task}/explain")).json
    told = (await _shown(node, task))["cancel"]
    ended = await node.post(f"tasks/{task}/result", _DONE)

    assert "cancel" not in before
    assert {"status": "cancelling", "id": task, "deadline": told["deadline"]} == asked
    assert {"reason": "withdrawn", "deadline": asked["deadline"]} == told == after["cancel"]
    assert asked["deadline"] == after["leaseUntil"]
    assert "withdrawn" in why["message"]
    assert (200, "COMPLETED") == (ended.status, (await _shown(node, task))["status"])


@pytest.mark.parametrize("verb", ["nack", "abandon"])
async def test_a_task_that_is_given_back_ends(node: Client, verb: str) -> None:
    """Nobody gets it again, however many attempts are left."""
    task = await _leased(node, f"given-{verb}")
    await _cancel(node, task, **_ASKED)
    answer = await node.post(f"tasks/{task}/{verb}", {})
    shown = await _shown(node, task)

    assert "cancelled" == answer.json["status"]
    assert ("FAILED", "CANCELLED") == (shown["status"], shown["error"])
    assert "withdrawn" == shown["cancel"]["reason"]


async def test_a_second_cancel_hurries_and_a_bare_one_ends(node: Client) -> None:
    """The deadline comes nearer, and never moves away."""
    task = await _leased(node, "hurried")
    first = await _cancel(node, task, graceSeconds=600)
    later = await _cancel(node, task, graceSeconds=6000)
    sooner = await _cancel(node, task, graceSeconds=60)
    last = await _cancel(node, task)
    beat = await node.post(f"tasks/{task}/heartbeat", {})

    assert first["deadline"] == later["deadline"] > sooner["deadline"]
    assert {"status": "cancelled", "id": task} == last
    assert (409, "lease-lost") == (beat.status, beat.json["code"])


async def test_a_task_that_nobody_holds_is_cancelled_at_once(node: Client) -> None:
    """The reason stays with it."""
    task = await node.create("unheld")
    answer = await _cancel(node, task, **_ASKED)
    why = (await node.get(f"tasks/{task}/explain")).json

    assert "cancelled" == answer["status"]
    assert ("cancelled", "it was cancelled: withdrawn") == (why["reason"], why["message"])


async def test_a_waiting_heartbeat_hears_of_it_once(node: Client) -> None:
    """Its other leases go on; a worker that says it knows waits for other news."""
    task, other = await _leased(node, "waiting"), await _leased(node, "waiting-too")
    leases: list[dict[str, object]] = [{"id": task}, {"id": other}]
    body: dict[str, object] = {"leases": leases, "waitSeconds": 25}
    waiting = asyncio.ensure_future(node.post("tasks/batch/heartbeats", body))
    asked = await _cancel(node, task, **_ASKED)
    [mine, others] = (await waiting).json["leases"]
    again = (await node.post("tasks/batch/heartbeats", body)).json["leases"]
    leases[0]["knowsCancel"] = True
    waiting = asyncio.ensure_future(node.post("tasks/batch/heartbeats", body))
    await _cancel(node, other)
    [known, lost] = (await waiting).json["leases"]
    await node.post(f"tasks/{task}/result", _DONE)

    assert {"reason": "withdrawn", "deadline": asked["deadline"]} == mine["cancel"]
    assert "cancel" not in others
    assert mine["cancel"] == again[0]["cancel"] == known["cancel"]
    assert "lease-lost" == lost["code"]


async def test_what_waits_for_a_cancelled_task_is_cancelled_with_it(node: Client) -> None:
    """On every shard, all the way down, whatever it asks for; without that it would run."""
    parent = await _leased(node, "root")
    after = [{"id": parent, "runIf": "ended"}]
    children = [await node.create("leaf", dependsOn=after) for _ in range(4)]
    ended = [{"id": children[0], "runIf": "ended"}]
    grandchild = await node.create("leaf", dependsOn=ended)
    await _cancel(node, parent, dependents=True, **_ASKED)
    waits = await _shown(node, children[0])
    await node.post(f"tasks/{parent}/nack", {})
    for task in (*children, grandchild):
        shown = await eventually(
            lambda task=task: _shown(node, task), lambda shown: shown["status"] == "FAILED"
        )
        assert "CANCELLED" == shown["error"]
        assert shown["cancel"]["reason"].startswith("cancelled with task ")

    assert "PENDING" == waits["status"]


async def test_a_task_that_is_to_end_does_not_park(node: Client) -> None:
    """It would sleep beyond its deadline; recording a step goes on."""
    task = await _leased(node, "sleepy")
    await _cancel(node, task, **_ASKED)
    step = await node.post(f"tasks/{task}/steps", {"name": "one", "value": 1})
    parked = await node.post(f"tasks/{task}/park", {"step": "nap", "forSeconds": 5})
    await node.post(f"tasks/{task}/nack", {})

    assert 200 == step.status
    assert (409, "cancelling") == (parked.status, parked.json["code"])


async def test_a_cancel_is_bounded(node: Client) -> None:
    """A wrong grace is refused and changes nothing; a long reason is cut."""
    task = await _leased(node, "measured")
    wrong = [
        (await node.post(f"tasks/{task}/cancel", {"graceSeconds": seconds})).json["code"]
        for seconds in (-1, 86_401)
    ]
    untouched = await _shown(node, task)
    await _cancel(node, task, graceSeconds=86_400, reason="x" * 9000)
    reason = (await _shown(node, task))["cancel"]["reason"]
    await _cancel(node, task)

    assert ["out-of-range"] * 2 == wrong
    assert "cancel" not in untouched
    assert {"x"} == set(reason)
    assert len(reason) < 9000


async def test_a_grace_waits_until_every_node_knows_it(tmp_path: Path) -> None:
    """On data of release 0.1.0 the answer names the upgrade; a bare cancel is taken."""
    with tarfile.open(STORED / "0.1.0" / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    clock = MovedClock(json.loads((STORED / "0.1.0" / EXPECTED).read_text())["made_ms"])
    async with settled(settings_of(Places(tmp_path)), clock) as (_, node):
        task, other = await _leased(node, "early"), await node.create("early")
        early = [
            (await node.post(f"tasks/{task}/cancel", said)).json.get("code")
            for said in ({"graceSeconds": 1}, {"reason": "x"}, {"dependents": True})
        ]
        bare = await node.post(f"tasks/{other}/cancel")
        await node.post("admin/cluster/upgrade", {}, token=OPERATOR)
        late = await eventually(
            lambda: node.post(f"tasks/{task}/cancel", _ASKED), lambda answer: answer.status != 503
        )

    assert ["upgrade-under-way"] * 3 == early
    assert (200, "cancelled") == (bare.status, bare.json["status"])
    assert (200, "cancelling") == (late.status, late.json["status"])
