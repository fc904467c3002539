"""Durable steps over HTTP: recorded once, parked without a worker, woken from any node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from codeq_cluster.client.connection import part
from tests.integration.http.client import Client, eventually
from tests.integration.http.nodes import three_nodes

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}


async def begun(node: Client, command: str, **fields: object) -> tuple[str, int]:
    """Create and claim a task; return its id and its lease token."""
    task_id = await node.create(command, **fields)
    claimed = await node.claim(command)
    assert task_id == claimed["id"]
    return task_id, int(str(claimed["leaseToken"]))


async def test_the_next_delivery_gets_what_is_recorded(node: Client) -> None:
    """A step is recorded once, under the lease, and told with its value as it was sent."""
    task_id, token = await begun(node, "order")
    step = {"name": "charge", "value": {"charge": 7.50}, "position": 1, "leaseToken": token}
    first = await node.post(f"tasks/{task_id}/steps", step | {"extendSeconds": 600})
    again = await node.post(f"tasks/{task_id}/steps", step)
    other = await node.post(f"tasks/{task_id}/steps", step | {"value": 8})
    nothing = await node.post(f"tasks/{task_id}/steps", {"name": "mail"})
    stale = await node.post(f"tasks/{task_id}/steps", {"name": "x", "leaseToken": token + 1})
    await node.post(f"tasks/{task_id}/abandon", {"leaseToken": token})
    claimed = await node.claim("order")
    listed = await node.get(f"tasks/{task_id}/steps")

    assert (200, 200, 200) == (first.status, again.status, nothing.status)
    assert first.json["step"] == again.json["step"]
    assert str(first.json["leaseUntil"]) <= str(again.json["leaseUntil"])
    assert (409, "step-conflict") == (other.status, other.json["code"])
    assert (409, "lease-lost") == (stale.status, stale.json["code"])
    steps = claimed["steps"]
    assert isinstance(steps, list)
    assert [("charge", {"charge": 7.5}, 1), ("mail", None, 0)] == [
        (each["name"], each["value"], each.get("position", 0)) for each in steps
    ]
    assert {"steps": steps, "signals": []} == listed.json
    assert "steps" not in (await node.get(f"tasks/{task_id}")).json


async def test_a_parked_task_says_what_it_waits_for(node: Client) -> None:
    """It is delayed, costs no attempt, and a signal wakes it with its payload."""
    task_id, token = await begun(node, "return")
    wait = {"step": "return", "signal": "return", "forSeconds": 600, "leaseToken": token}
    parked = await node.post(f"tasks/{task_id}/park", wait)
    again = await node.post(f"tasks/{task_id}/park", wait)
    task = (await node.get(f"tasks/{task_id}")).json
    explained = (await node.get(f"tasks/{task_id}/explain")).json
    other = await node.post(f"tasks/{task_id}/signals/else", {"payload": 1})
    none = await node.post("tasks/claim", {"commands": ["return"]})
    key = {"payload": {"why": "too small"}, "idempotencyKey": "r-7"}
    sent = await node.post(f"tasks/{task_id}/signals/return", key)
    twice = await node.post(f"tasks/{task_id}/signals/return", key)
    conflict = await node.post(f"tasks/{task_id}/signals/return", key | {"payload": 2})
    claimed = await node.claim("return")

    assert (200, True) == (parked.status, parked.json["parked"])
    assert parked.json == again.json
    assert ("DELAYED_ZSET", "return") == (task["lastKnownLocation"], task["parkedAt"])
    assert 0 == task["attempts"]
    assert "history" not in task
    assert "parked" == explained["reason"]
    assert "signal return" in str(explained["message"])
    assert (200, 204, {"replay": False}) == (other.status, none.status, sent.json)
    assert {"replay": True} == twice.json
    assert (409, "idempotency-conflict") == (conflict.status, conflict.json["code"])
    steps = claimed["steps"]
    assert isinstance(steps, list)
    assert [{"why": "too small"}] == [each["value"] for each in steps]
    assert "open" not in steps[0]
    signals = (await node.get(f"tasks/{task_id}/steps")).json["signals"]
    assert [("else", False), ("return", True)] == [
        (each["name"], each.get("read", False))
        for each in signals  # type: ignore[attr-defined]
    ]


async def test_a_cancelled_task_waits_for_nothing(node: Client) -> None:
    """Its wait is not shown as open."""
    task_id, token = await begun(node, "withdrawn")
    wait = {"step": "nap", "forSeconds": 600, "leaseToken": token}
    await node.post(f"tasks/{task_id}/park", wait)
    cancelled = await node.post(f"tasks/{task_id}/cancel")
    ended = await node.get(f"tasks/{task_id}/steps")

    assert 200 == cancelled.status
    assert [("nap", False)] == [(each["name"], "open" in each) for each in ended.json["steps"]]


async def test_a_wait_that_is_over_goes_on_at_once(node: Client) -> None:
    """A signal that came before, an instant that is past, and no time at all hold nobody up."""
    task_id, _ = await begun(node, "eager")
    await node.post(f"tasks/{task_id}/signals/go")
    answers = [
        await node.post(f"tasks/{task_id}/park", {"step": "a", "signal": "go"}),
        await node.post(f"tasks/{task_id}/park", {"step": "b", "until": "2001-01-01T00:00:00Z"}),
        await node.post(f"tasks/{task_id}/park", {"step": "c", "forSeconds": 0, "signal": "go"}),
    ]
    ended = await node.post(f"tasks/{task_id}/result", DONE)

    assert [(200, False)] * 3 == [(each.status, each.json["parked"]) for each in answers]
    assert all(each.json["leaseUntil"] for each in answers)
    assert [True, False, False] == [
        "value" in each.json["step"]  # type: ignore[operator]
        for each in answers
    ]
    assert 200 == ended.status


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("steps", {"value": 1}, "invalid-step"),
        ("steps", {"name": ""}, "invalid-step"),
        ("steps", {"name": "n" * 129}, "invalid-step"),
        ("steps", {"name": "n", "value": "x" * 65_536}, "step-too-large"),
        ("steps", {"name": "n", "extendSeconds": 10**6}, "out-of-range"),
        ("steps", {"name": "n", "position": -1}, "out-of-range"),
        ("park", {"step": "n"}, "invalid-park"),
        ("park", {"signal": "n"}, "invalid-step"),
        ("park", {"step": "n", "until": "tomorrow"}, "invalid-until"),
        ("park", {"step": "n", "until": "2026-01-01T00:00:00Z", "forSeconds": 1}, "invalid-park"),
        ("park", {"step": "n", "forSeconds": 31_622_401}, "out-of-range"),
        ("park", {"step": "n", "signal": "two words"}, "invalid-signal"),
        ("signals/two%20words", {}, "invalid-signal"),
        ("signals/n", {"idempotencyKey": "k" * 2000}, "invalid-idempotency-key"),
        ("signals/n", {"payload": "x" * 65_536}, "step-too-large"),
    ],
)
async def test_what_cannot_be_recorded_is_refused(
    node: Client, path: str, body: dict[str, object], code: str
) -> None:
    """Each refusal has its code, and nothing of it is done."""
    task_id, _ = await begun(node, "refused")
    refused = await node.post(f"tasks/{task_id}/{path}", body)
    listed = await node.get(f"tasks/{task_id}/steps")
    await node.post(f"tasks/{task_id}/result", DONE)

    assert (413 if "too-large" in code else 400, code) == (refused.status, refused.json["code"])
    assert {"steps": [], "signals": []} == listed.json


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_signal_named_like_a_step_in_a_path_arrives(node: Client, name: str) -> None:
    """No path can hold such a name, so `~` stands before it."""
    task_id, token = await begun(node, "dotted")
    wait = {"step": "w", "signal": name, "leaseToken": token}
    await node.post(f"tasks/{task_id}/park", wait)
    sent = await node.post(f"tasks/{task_id}/signals/{part(name)}", {"payload": 1})
    claimed = await node.claim("dotted")
    await node.post(f"tasks/{task_id}/result", DONE)

    assert 200 == sent.status, sent.body
    assert task_id == claimed["id"]


async def test_an_ended_task_and_another_tenants_take_no_signal(node: Client) -> None:
    """The first is a conflict, the second does not exist."""
    task_id, _ = await begun(node, "ended")
    await node.post(f"tasks/{task_id}/result", DONE)
    ended = await node.post(f"tasks/{task_id}/signals/go")
    unknown = await node.post("tasks/0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60/signals/go")
    unlisted = await node.get("tasks/0c8a2f4e-6d1b-4f7a-9b3c-5e2d8f1a7c60/steps")

    assert (409, "already-terminal") == (ended.status, ended.json["code"])
    assert (404, 404) == (unknown.status, unlisted.status)


async def test_any_node_records_and_wakes(tmp_path: Path) -> None:
    """A signal to one node wakes the claim that waits at another one; time does, too."""
    async with three_nodes(tmp_path) as nodes:
        first, second, third = nodes.clients.values()
        task_id, _ = await begun(first, "far")
        await second.post(f"tasks/{task_id}/steps", {"name": "a", "value": 1})
        await third.post(f"tasks/{task_id}/park", {"step": "w", "signal": "go"})
        body = {"commands": ["far"], "waitSeconds": 10}
        waiting = asyncio.create_task(second.post("tasks/claim", body))
        await first.post(f"tasks/{task_id}/signals/go", {"payload": 7})
        claimed = await waiting
        assert 200 == claimed.status
        assert [("a", 1), ("w", 7)] == [
            (each["name"], each["value"])
            for each in claimed.json["steps"]  # type: ignore[attr-defined]
        ]

        await first.post(f"tasks/{task_id}/park", {"step": "s", "forSeconds": 1})
        again = await eventually(
            lambda: third.post("tasks/claim", {"commands": ["far"], "waitSeconds": 5}),
            lambda answer: answer.status == 200,
        )
        assert ["a", "w", "s"] == [
            each["name"]
            for each in again.json["steps"]  # type: ignore[attr-defined]
        ]
        assert 1 == again.json["attempts"]
