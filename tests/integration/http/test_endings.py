"""Endings: exactly one of all possible causes ends an attempt, and its reason is kept."""

from __future__ import annotations

import asyncio

import pytest

from tests.integration.http.client import Client

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUNDS = 30


async def test_of_endings_at_once_one_counts(node: Client) -> None:
    """Results, nacks and an abandon race for one lease, and a heartbeat revives nothing."""
    for number in range(ROUNDS):
        task_id = await node.create("raced")
        await node.claim("raced")
        sent: list[tuple[str, dict[str, object]]] = [
            ("result", {"status": "COMPLETED", "result": {"by": 1}}),
            ("heartbeat", {"extendSeconds": 600}),
            ("result", {"status": "COMPLETED", "result": {"by": 2}}),
            ("nack", {"delaySeconds": 60, "reason": "raced"}),
            ("heartbeat", {"extendSeconds": 600}),
            ("abandon", {}),
        ]
        # Each round starts with a different ending.
        sent = sent[number % len(sent) :] + sent[: number % len(sent)]
        answers = await asyncio.gather(
            *(node.post(f"tasks/{task_id}/{verb}", body) for verb, body in sent)
        )
        won = [
            (verb, body)
            for (verb, body), answer in zip(sent, answers, strict=True)
            if verb != "heartbeat" and answer.status == 200
        ]
        refused = {answer.status for answer in answers} - {200}
        after = (await node.get(f"tasks/{task_id}")).json
        history = after["history"]
        await node.post(f"tasks/{task_id}/cancel")

        assert 1 == len(won), answers
        assert {409} == refused
        assert isinstance(history, list)
        assert 1 == len(history)
        outcome, status, location = {
            "result": ("COMPLETED", "COMPLETED", "NONE"),
            "nack": ("NACKED", "PENDING", "DELAYED_ZSET"),
            "abandon": ("ABANDONED", "PENDING", "PENDING_LIST"),
        }[won[0][0]]
        assert (
            outcome,
            status,
            location,
        ) == (history[0]["outcome"], after["status"], after["lastKnownLocation"])
        if won[0][0] == "result":
            stored = (await node.get(f"tasks/{task_id}/result")).json["result"]
            assert isinstance(stored, dict)
            assert won[0][1]["result"] == stored["result"]


async def test_a_result_sent_again_is_answered_with_the_stored_one(node: Client) -> None:
    """A worker whose answer was lost learns that it succeeded; another worker is refused."""
    task_id = await node.create("answered")
    await node.claim("answered")
    body = {"status": "COMPLETED", "result": {"n": 1}}
    first = await node.post(f"tasks/{task_id}/result", body)
    again = await node.post(f"tasks/{task_id}/result", body)
    batch = await node.post("tasks/batch/results", {"results": [{"taskId": task_id, **body}]})
    other = await node.post(f"tasks/{task_id}/result", {**body, "result": {"n": 2}})
    mate = await Client(node.port, "mate").post(f"tasks/{task_id}/result", body)

    assert (200, 200) == (first.status, again.status)
    assert again.json == first.json
    assert [{"taskId": task_id, "result": first.json}] == batch.json["results"]
    assert (409, "not-in-progress") == (other.status, other.error)
    assert (409, "not-in-progress") == (mate.status, mate.error)


async def test_every_attempt_keeps_who_made_it_and_why_it_ended(node: Client) -> None:
    """Each attempt keeps its own reason, which can be read while the task waits."""
    mate = Client(node.port, "mate")
    task_id = await node.create("tried", maxAttempts=3)
    await node.claim("tried")
    await node.post(f"tasks/{task_id}/nack", {"delaySeconds": 1, "reason": "disk full"})
    waiting = (await node.get(f"tasks/{task_id}")).json["history"]
    await mate.claim("tried", waitSeconds=18)
    await mate.post(f"tasks/{task_id}/abandon")
    await node.claim("tried")
    await node.post(f"tasks/{task_id}/nack", {"reason": "too hot"})
    dead = (await node.get(f"tasks/{task_id}")).json

    assert isinstance(waiting, list)
    assert ["disk full"] == [attempt["error"] for attempt in waiting]
    history = dead["history"]
    assert isinstance(history, list)
    assert [
        ("w", "NACKED", "disk full"),
        ("m", "ABANDONED", None),
        ("w", "NACKED", "too hot"),
    ] == [(each["worker"], each["outcome"], each.get("error")) for each in history]
    assert ("DLQ_SET", "too hot", 3) == (dead["lastKnownLocation"], dead["error"], dead["attempts"])


async def test_a_rejected_task_is_a_dead_letter_whatever_attempts_it_has_left(node: Client) -> None:
    """Its error is the reason; only its holder may reject it, and an admin may requeue it."""
    task_id, nameless = [await node.create("refused", maxAttempts=9) for _ in range(2)]
    early = await node.post(f"tasks/{task_id}/reject", {"reason": "early"})
    claimed = await node.claim("refused")
    token = {"leaseToken": claimed["leaseToken"]}
    stale = await node.post(f"tasks/{task_id}/reject", {"leaseToken": token["leaseToken"] + 1})
    rejected = await node.post(f"tasks/{task_id}/reject", {"reason": "no such customer"} | token)
    again = await node.post(f"tasks/{task_id}/reject", token)
    dead = (await node.get(f"tasks/{task_id}")).json
    await node.claim("refused")
    await node.post(f"tasks/{nameless}/reject")
    unsaid = (await node.get(f"tasks/{nameless}")).json
    await node.post(f"admin/queues/refused/dlq/{task_id}/requeue")
    revived = await node.claim("refused")

    assert ["not-in-progress", "lease-lost", "not-in-progress"] == [
        each.error for each in (early, stale, again)
    ]
    assert (200, {"status": "dlq"}) == (rejected.status, rejected.json)
    assert ("DLQ_SET", "no such customer", 1) == (
        dead["lastKnownLocation"],
        dead["error"],
        dead["attempts"],
    )
    assert "REJECTED" == unsaid["error"]
    assert task_id == revived["id"]
