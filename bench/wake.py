"""Wake: how long a waiting claim takes to get a task created on another node."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.harness.client import ClientAnswer, RecordingClient

# Long enough that the claim is waiting and the cluster is idle again.
_SETTLE_S = 0.03
_WAIT_S = 20


@dataclass(slots=True)
class Wakes:
    """The measurements: ms from sending each create, and failures."""

    seconds: float = 0.0
    latency_ms: dict[str, list[float]] = field(default_factory=lambda: {"wake": [], "create": []})
    failed: dict[str, int] = field(default_factory=dict)


async def wakes(
    client: RecordingClient, *, rounds: int, producer: str, workers: Sequence[str], command: str
) -> Wakes:
    """Create tasks on one node, one at a time, while a worker waits for each on another node.

    Args:
        client: Connected to all nodes.
        rounds: The number of tasks.
        producer: Its token.
        workers: Their tokens, used in turn.
        command: A queue that nothing else uses.
    """
    seen, nodes = Wakes(), list(client.urls)
    begun_s = time.perf_counter()
    for n in range(rounds):
        worker, (at, made_on) = workers[n % len(workers)], _two(nodes, n)
        waiting = asyncio.create_task(_claimed(client, at, worker, command))
        await asyncio.sleep(_SETTLE_S)
        sent_s = time.perf_counter()
        created = await client.create(made_on, producer, command)
        created_s = time.perf_counter()
        claimed_s, claimed = await waiting
        seen.latency_ms["wake"].append(1000 * (claimed_s - sent_s))
        seen.latency_ms["create"].append(1000 * (created_s - sent_s))
        answers = {"create": created, "claim": claimed}
        if claimed.body:
            answers["result"] = await client.finish(at, worker, claimed.body, {})
        for name, answer in answers.items():
            if answer.status not in {200, 202}:
                what = f"{name}: {answer.status}"
                seen.failed[what] = seen.failed.get(what, 0) + 1
    seen.seconds = time.perf_counter() - begun_s
    return seen


async def _claimed(
    client: RecordingClient, node: str, token: str, command: str
) -> tuple[float, ClientAnswer]:
    answer = await client.claim(node, token, [command], leaseSeconds=120, waitSeconds=_WAIT_S)
    return time.perf_counter(), answer


def _two(nodes: Sequence[str], n: int) -> tuple[str, str]:
    """Return a pair of different nodes; every ordered pair has its turn."""
    count = len(nodes)
    if count == 1:
        return nodes[0], nodes[0]
    first = n % count
    return nodes[first], nodes[(first + 1 + n // count % (count - 1)) % count]
