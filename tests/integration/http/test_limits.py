"""Limits: each limit, set low, accepts values within and refuses others as documented.

`test_stalled_clients.py` covers connections and their timeouts, `test_artifacts.py` covers
artifacts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings, PeerAddress
from tests.integration.http.client import Answer, Client, eventually, single
from tests.integration.http.conftest import Running

LOW = {
    "max_body_bytes": 4096,
    "max_result_bytes": 1024,
    "max_error_bytes": 1024,
    "batch_max": 3,
    "payload_depth_max": 5,
    "idempotency_key_bytes_max": 8,
    "max_attempts_max": 4,
    "lease_seconds_max": 60,
    "delay_seconds_max": 100,
}
TASK = {"command": "c", "payload": 1}
OVERLOADED = (503, "overloaded", "not-applied", True)


def told(answer: Answer) -> tuple[int, object]:
    """Return the compared parts of an answer: status, and code or state."""
    return answer.status, answer.json.get("code", answer.json.get("status"))


async def test_a_task_beyond_a_limit_is_refused(node_with: Running) -> None:
    """A value at the limit is accepted."""
    padding = 4096 - len('{"command": "c", "payload": ""}')
    async with node_with(**LOW) as node:
        for at, beyond, code in (
            ({"payload": "x" * padding}, {"payload": "x" * (padding + 1)}, "body-too-large"),
            ({"payload": [[[[[]]]]]}, {"payload": [[[[[[]]]]]]}, "invalid-body"),
            (
                {"idempotencyKey": "é" * 4},
                {"idempotencyKey": "é" * 4 + "e"},
                "invalid-idempotency-key",
            ),
            ({"maxAttempts": 4}, {"maxAttempts": 5}, "out-of-range"),
            ({"delaySeconds": 100}, {"delaySeconds": 101}, "out-of-range"),
            ({"ttlSeconds": 100}, {"ttlSeconds": 101}, "out-of-range"),
        ):
            taken = await node.post("tasks", TASK | at)
            refused = await node.post("tasks", TASK | beyond)

            assert (202, "PENDING") == told(taken), at
            assert (413 if code == "body-too-large" else 400, code) == told(refused), beyond


async def test_a_result_or_lease_beyond_its_limit_is_refused(node_with: Running) -> None:
    """The worker keeps the task and may send a smaller result."""
    async with node_with(**LOW) as node:
        for at, beyond, code in (
            ({"result": "x" * 1022}, {"result": "x" * 1023}, "result-too-large"),
            ({"error": "é" * 512}, {"error": "é" * 512 + "e"}, "error-too-large"),
        ):
            task_id = await node.create()
            claimed = await node.post("tasks/claim", {"leaseSeconds": 60})
            status = {"status": "FAILED" if "error" in at else "COMPLETED"}
            refused = await node.post(f"tasks/{task_id}/result", status | beyond)
            taken = await node.post(f"tasks/{task_id}/result", status | at)

            assert (200, "IN_PROGRESS") == told(claimed)
            assert (413, code) == told(refused)
            assert (200, status["status"]) == told(taken)

        task_id = await node.create()
        too_long = [
            await node.post("tasks/claim", {"leaseSeconds": 61}),
            await node.post("tasks/claim/batch", {"count": 1, "leaseSeconds": 61}),
            await node.post(f"tasks/{task_id}/heartbeat", {"extendSeconds": 61}),
        ]
        assert [(400, "out-of-range")] * 3 == [told(answer) for answer in too_long]


async def test_a_batch_has_no_more_items_than_its_limit(node_with: Running) -> None:
    """The limit holds for every kind of batch, and the answer names it."""
    async with node_with(**LOW) as node:
        result = {"taskId": "x", "status": "FAILED", "error": "e"}
        full = [
            await node.post("tasks/batch", {"tasks": [TASK] * 3}),
            await node.post("tasks/claim/batch", {"count": 3}),
            await node.post("tasks/batch/results", {"results": [result] * 3}),
        ]
        overfull = [
            await node.post("tasks/batch", {"tasks": [TASK] * 4}),
            await node.post("tasks/claim/batch", {"count": 4}),
            await node.post("tasks/batch/results", {"results": [result] * 4}),
        ]

        assert [200] * 3 == [answer.status for answer in full]
        assert [
            "batch size exceeds maximum of 3",
            "count exceeds maximum of 3",
            "batch size exceeds maximum of 3",
        ] == [answer.error for answer in overfull]


async def test_a_wait_is_no_longer_than_its_limit(node_with: Running) -> None:
    """The wait is shortened, not refused; the requested one would outlast this test."""
    async with node_with(claim_wait_seconds_max=1, result_wait_seconds_max=1) as node:
        claimed = await node.post("tasks/claim", {"waitSeconds": 30})
        task_id = await node.create()
        result = await node.get(f"tasks/{task_id}/result?waitSeconds=60")

        assert (204, b"") == (claimed.status, claimed.body)
        assert (404, "result-not-found") == told(result)


def overload(answer: Answer) -> tuple[int, object, str, bool]:
    """Return the parts of a refusal that a retry needs."""
    headers = answer.headers
    return (
        answer.status,
        answer.json["code"],
        headers["x-outcome"],
        int(headers["retry-after"]) >= 1,
    )


async def test_requests_that_wait_are_bounded_and_leave_others_a_share(node_with: Running) -> None:
    """A token has a quarter of the places, for claims and reads; the waiting ones are served."""
    async with node_with(waiters_max=8) as node:
        task_id = await node.create("read")
        claim = {"commands": ["c"], "waitSeconds": 15}
        claims = [asyncio.ensure_future(node.post("tasks/claim", claim)) for _ in range(3)]
        no_claim = await first_done(claims)
        no_read = await node.get(f"tasks/{task_id}/result?waitSeconds=15")
        neighbour = await node.post("tasks/claim", claim | {"waitSeconds": 1}, token="mine")
        made = {await node.create(), await node.create()}
        claimed = {(await each).json.get("id") for each in claims}
        reads = [
            asyncio.ensure_future(node.get(f"tasks/{task_id}/result?waitSeconds=15"))
            for _ in range(3)
        ]
        one_read_too_many = await first_done(reads)
        await node.claim("read")
        await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": 1})
        read = sorted([(await each).status for each in reads])

        assert 204 == neighbour.status
        assert overload(no_claim) == overload(no_read) == OVERLOADED
        assert overload(one_read_too_many) == OVERLOADED
        assert made | {None} == claimed
        assert [200, 200, 503] == read


async def test_requests_in_progress_are_bounded_and_all_are_served(node_with: Running) -> None:
    """Two tenants send far more than there is room for; large bodies take more of it."""
    async with node_with(requests_in_progress=2) as node:
        large = TASK | {"payload": "x" * 60_000}
        answers = await asyncio.gather(
            *[
                node.post("tasks", body, token=token)
                for token in ("acme", "mine")
                for body in [TASK, large] * 20
            ]
        )

        assert {202} == {answer.status for answer in answers}
        # The scrape itself.
        assert 1 == await node.metric("codeq_http_in_progress")
        assert 0 == await node.metric("codeq_http_waiting_for_turn")


async def test_a_request_that_waits_is_not_in_progress(node_with: Running) -> None:
    """It uses nothing of the loop, so others need not wait for it."""
    async with node_with(requests_in_progress=2, waiters_max=8) as node:
        claim = {"commands": ["c"], "waitSeconds": 15}
        claims = [asyncio.ensure_future(node.post("tasks/claim", claim)) for _ in range(3)]
        # The third finds no place, so the other two wait.
        refused = await first_done(claims)
        in_progress = await node.metric("codeq_http_in_progress")
        made = {await node.create(), await node.create()}

        assert OVERLOADED == overload(refused)
        assert 1 == in_progress  # The scrape itself.
        assert made | {None} == {(await each).json.get("id") for each in claims}


async def test_connections_are_not_all_taken_by_one_tenants_waits(node_with: Running) -> None:
    """A wait holds a connection, so the places are no more than the connections."""
    async with node_with(connections_max=12) as node:
        claim = {"commands": ["c"], "waitSeconds": 15}
        claims = [asyncio.ensure_future(node.post("tasks/claim", claim)) for _ in range(5)]
        done, waiting = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED)
        neighbour = await node.post("tasks/claim", claim | {"waitSeconds": 1}, token="mine")
        made = [await node.create() for _ in waiting]
        claimed = [(await each).json["id"] for each in waiting]

        assert OVERLOADED == overload(next(iter(done)).result())
        assert 204 == neighbour.status
        assert sorted(made) == sorted(claimed)


async def first_done(asked: list[asyncio.Future[Answer]]) -> Answer:
    """Return the first answer; the others are still pending."""
    done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)

    assert (1, 2) == (len(done), len(waiting))
    return done.pop().result()


@pytest.mark.parametrize(
    "limits", [{"operations_queued_max": 2}, {"operations_queued_bytes_max": 4000}]
)
async def test_writers_beyond_the_bound_of_the_queue_are_told_to_retry(
    node_with: Running, limits: dict[str, int]
) -> None:
    """The queue is bounded by number and bytes; only the refused writes were not done."""
    async with node_with(**limits) as node:
        task = {"command": "c", "payload": "x" * 1500}
        answers: list[Answer] = []

        async def refused() -> bool:
            answers.extend(await asyncio.gather(*[node.post("tasks", task) for _ in range(60)]))
            return any(answer.status == 503 for answer in answers)

        await eventually(refused)
        counts = Counter(answer.status for answer in answers)
        depth = await node.depth("c")

        assert {202, 503} == set(counts)
        assert {OVERLOADED} == {overload(answer) for answer in answers if answer.status == 503}
        assert counts[202] == depth["ready"]


async def test_a_request_that_finds_no_leader_ends_in_time(tmp_path: Path) -> None:
    """Two of three nodes are down, and the answer does not wait for them."""
    settings = single(tmp_path / "node", LimitSettings(request_timeout_ms=300))
    absent = tuple(
        PeerAddress(id=name, link="127.0.0.1:1", http="http://127.0.0.1") for name in ("n2", "n3")
    )
    node = Node(replace(settings, peers=(*settings.peers, *absent)))
    await node.start()
    client = Client(node.port)
    try:
        answers = [
            await client.post("tasks", TASK),
            await client.post("tasks/claim", {}),
            await client.get("tasks/some-id"),
        ]
    finally:
        for writer in client.open:
            writer.close()
        await node.stop()

    assert [(503, "no-leader")] * 3 == [told(answer) for answer in answers]
    assert {"no leader for shard"} == {answer.error for answer in answers}
    assert {"1"} == {answer.headers["retry-after"] for answer in answers}
