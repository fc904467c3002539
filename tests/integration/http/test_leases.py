"""Batches of heartbeats: a worker renews all of its leases at once, and hears of a lost one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.core.sharding import shard_of
from tests.integration.http.client import OPERATOR, Answer, Client
from tests.integration.http.nodes import three_nodes

pytestmark = pytest.mark.asyncio(loop_scope="session")

_BATCH = "tasks/batch/heartbeats"
_DONE = {"status": "COMPLETED", "result": {}}


async def _leased(node: Client, command: str, count: int) -> list[dict[str, Any]]:
    """Create and claim tasks, on every shard; return the leases as a batch has them."""
    tasks = [
        {"command": command, "payload": {}, "idempotencyKey": f"{command}-{n}"}
        for n in range(count)
    ]
    await node.post("tasks/batch", {"tasks": tasks})
    claimed: list[dict[str, Any]] = []
    while len(claimed) < count:
        wanted = {"commands": [command], "count": count, "waitSeconds": 15}
        tasks = (await node.post("tasks/claim/batch", wanted)).json["tasks"]
        assert isinstance(tasks, list)
        claimed += tasks
    return [{"id": task["id"], "leaseToken": task["leaseToken"]} for task in claimed]


def _heard(answer: Answer) -> list[tuple[bool, object]]:
    """Return for each lease whether it has a new end, and its error's code."""
    leases = answer.json["leases"]
    assert isinstance(leases, list)
    return [("leaseUntil" in each, each.get("code")) for each in leases]


async def _end(node: Client, leases: list[dict[str, Any]]) -> None:
    for lease in leases:
        await node.post(f"tasks/{lease['id']}/result", _DONE)


async def test_leases_are_renewed_together_and_answered_one_by_one(node: Client) -> None:
    """A refused one does not affect the others, and has the error of the single route."""
    *leases, fifth = await _leased(node, "kept", 5)
    stale = {"id": fifth["id"], "leaseToken": fifth["leaseToken"] + 1}
    odd: list[object] = [{"id": "no/id"}, {"id": "unheard-of"}, {"extendSeconds": 5}, 7, stale]
    again = [{**leases[1], "extendSeconds": 10**9}, leases[1]]
    answer = await node.post(
        _BATCH, {"leases": [{**leases[0], "extendSeconds": 3000}, *leases[1:], *odd, *again]}
    )
    foreign = await node.post(_BATCH, {"leases": leases[:1]}, token="mate")
    strange = await node.post(_BATCH, {"leases": leases[:1]}, token="other")
    task = (await node.get(f"tasks/{leases[0]['id']}")).json
    await _end(node, [*leases, fifth])

    assert 200 == answer.status
    assert [(True, None)] * 4 == _heard(answer)[:4]
    assert [None] * 4 + [False] * 7 == [each.get("retryable") for each in answer.json["leases"]]  # type: ignore[attr-defined]
    assert [
        "not-found",
        "not-found",
        "not-found",
        "invalid-body",
        "lease-lost",
        "out-of-range",
        "duplicate-lease",
    ] == [code for _, code in _heard(answer)[4:]]
    assert answer.json["leases"][0]["leaseUntil"] == task["leaseUntil"]  # type: ignore[index]
    assert [(False, "not-owner")] == _heard(foreign)
    assert [(False, "not-found")] == _heard(strange)


async def test_a_batch_is_bounded(node: Client) -> None:
    """A thousand leases are renewed in one request, and one more is refused."""
    unheard_of = [{"id": f"unheard-of-{number}"} for number in range(1001)]
    most = await node.post(_BATCH, {"leases": unheard_of[:1000]})
    beyond = await node.post(_BATCH, {"leases": unheard_of})
    none = await node.post(_BATCH, {"leases": []})

    assert [(False, "not-found")] * 1000 == _heard(most)
    assert (400, "batch size exceeds maximum of 1000") == (beyond.status, beyond.error)
    assert (400, "invalid body") == (none.status, none.error)


async def test_a_waiting_batch_hears_of_a_cancelled_task(node: Client) -> None:
    """The answer names that lease, and so does the next one; the others are renewed."""
    leases = await _leased(node, "heard", 3)
    waiting = asyncio.ensure_future(node.post(_BATCH, {"leases": leases, "waitSeconds": 15}))
    await node.depth("heard")
    await node.post(f"tasks/{leases[1]['id']}/cancel")
    answer = await waiting
    again = await node.post(_BATCH, {"leases": leases[1:], "waitSeconds": 15})
    await _end(node, [leases[0], leases[2]])

    assert [(True, None), (False, "lease-lost"), (True, None)] == _heard(answer)
    assert [(False, "lease-lost"), (True, None)] == _heard(again)


async def test_a_lease_can_be_watched_without_being_renewed(node: Client) -> None:
    """It keeps its end, and the answer says only that it is still held, or why it is not."""
    leases = await _leased(node, "watched", 2)
    only = [{**lease, "watchOnly": True} for lease in leases]
    before = (await node.get(f"tasks/{leases[0]['id']}")).json
    held = await node.post(_BATCH, {"leases": only})
    after = (await node.get(f"tasks/{leases[0]['id']}")).json
    await node.post(f"tasks/{leases[1]['id']}/cancel")
    lost = await node.post(_BATCH, {"leases": only})
    await _end(node, leases[:1])

    assert [(False, None)] * 2 == _heard(held)
    assert before == after
    assert [(False, None), (False, "lease-lost")] == _heard(lost)


async def test_every_node_takes_a_batch_and_hears_what_others_do(tmp_path: Path) -> None:
    """Leases of two shards, led wherever, and leaders that change while a batch waits."""
    async with three_nodes(tmp_path) as nodes:
        first, *others = nodes.clients.values()
        leases = await _leased(first, "spread", 20)
        assert {0, 1} == {shard_of(lease["id"], 2) for lease in leases}
        others_lease = await _leased(first, "untouched", 1)
        longer = asyncio.ensure_future(
            others[0].post(_BATCH, {"leases": others_lease, "waitSeconds": 15})
        )
        for at, by in ((others[0], others[1]), (others[1], first), (first, others[0])):
            body = {"leases": leases, "waitSeconds": 15}
            waiting = asyncio.ensure_future(at.post(_BATCH, body))
            await at.depth("spread")
            for shard in range(2):
                to = next(name for name, each in nodes.clients.items() if each is by)
                moved = {"shard": shard, "to": to}
                answer = await first.post("admin/cluster/transfer", moved, token=OPERATOR)
                assert 200 == answer.status, answer
            assert not waiting.done()
            cancelled = leases.pop()
            assert 200 == (await by.post(f"tasks/{cancelled['id']}/cancel")).status
            heard = _heard(await waiting)

            assert [(True, None)] * len(leases) + [(False, "lease-lost")] == heard
            assert not longer.done(), "the wait was over before it heard of the cancel"
        await first.post(f"tasks/{others_lease[0]['id']}/cancel")
        assert [(False, "lease-lost")] == _heard(await longer)
