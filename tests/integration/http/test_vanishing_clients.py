"""Vanishing clients: a client that left while waiting gets no task, and no task is lost."""

from __future__ import annotations

import asyncio
import json
import socket
import struct

import pytest

from tests.integration.http.client import DEADLINE_S, PATIENCE_S, Answer, Client, read_answer

pytestmark = pytest.mark.asyncio(loop_scope="session")

Waiter = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def waiting(node: Client, command: str, *, wait_s: int = 20) -> Waiter:
    """Send a claim that must wait, and return once it waits."""
    body = json.dumps({"commands": [command], "waitSeconds": wait_s}).encode()
    reader, writer = await node.connect()
    writer.write(node.head("POST", "tasks/claim", len(body)) + body)
    await writer.drain()
    # A later request on another connection was answered, so the claim has been read.
    for _ in range(3):
        await node.depth(command)
    return reader, writer


async def answer_of(waiter: Waiter) -> Answer:
    """Return the answer to a waiting claim."""
    return await asyncio.wait_for(read_answer(waiter[0]), DEADLINE_S)


def reset(waiter: Waiter) -> None:
    """Reset the connection."""
    raw = waiter[1].get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    waiter[1].transport.abort()


@pytest.mark.parametrize("politely", [True, False])
async def test_the_task_goes_to_the_next_waiter(node: Client, politely: bool) -> None:
    """The vanished client's place in the queue of waiters ends with its connection."""
    command = f"next-{politely}".lower()
    gone = await waiting(node, command)
    stays = await waiting(node, command)
    if politely:
        gone[1].close()
    else:
        reset(gone)
    for _ in range(3):
        await node.depth(command)
    task_id = await node.create(command)
    answer = await answer_of(stays)
    depth = await node.depth(command)

    assert (200, task_id, 1) == (answer.status, answer.json["id"], answer.json["attempts"])
    assert (0, 1) == (depth["ready"], depth["inProgress"])


async def test_a_client_that_leaves_as_its_task_comes_loses_no_task(node: Client) -> None:
    """Whichever comes first, the next client can have the task at once."""
    for round_ in range(20):
        command = f"race-{round_}"
        gone = await waiting(node, command, wait_s=20)
        create = asyncio.ensure_future(node.create(command))
        if round_ % 2:
            # Every other round sends the create first.
            await asyncio.sleep(0)
        reset(gone) if round_ % 4 < 2 else gone[1].close()
        task_id = await create
        next_ = await node.post("tasks/claim", {"commands": [command], "waitSeconds": 18})

        assert (200, task_id) == (next_.status, next_.json["id"])
        assert next_.json["attempts"] in (1, 2)


async def test_all_but_one_of_many_waiters_vanish(node: Client) -> None:
    """The remaining client gets the task, and none stays leased to the others."""
    waiters = [await waiting(node, "crowd") for _ in range(8)]
    for waiter in waiters[:-1]:
        reset(waiter)
    task_id = await node.create("crowd")
    answer = await answer_of(waiters[-1])
    depth = await node.depth("crowd")

    assert task_id == answer.json["id"]
    assert (0, 1) == (depth["ready"], depth["inProgress"])


async def test_a_wait_ends_before_the_clients_own_timeout(node: Client) -> None:
    """A client whose timeout equals its wait gets its 204."""
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    # A busy machine may be late once, but not every time.
    async with asyncio.timeout(PATIENCE_S):
        while not took_s or min(took_s) >= 1.0:
            started_s = loop.time()
            answer = await node.post("tasks/claim", {"commands": ["nothing"], "waitSeconds": 1})
            took_s.append(loop.time() - started_s)
            assert (204, b"") == (answer.status, answer.body)

    assert min(took_s) > 0.7


async def test_a_client_that_vanishes_while_waiting_for_a_result_disturbs_nobody(
    node: Client,
) -> None:
    """The other reader is woken by the completion."""
    task_id = await node.create("awaited")
    await node.claim("awaited")
    readers: list[Waiter] = []
    for _ in range(2):
        reader, writer = await node.connect()
        writer.write(node.head("GET", f"tasks/{task_id}/result?waitSeconds=20", 0))
        readers.append((reader, writer))
        await node.depth("awaited")
    reset(readers[0])
    await node.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {"n": 1}})
    answer = await answer_of(readers[1])

    assert 200 == answer.status
    assert {"n": 1} == answer.json["result"]["result"]  # type: ignore[index]
