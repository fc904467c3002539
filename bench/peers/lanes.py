"""Lanes over a client library: the loops of `bench.lanes`, as tasks that await its answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from bench.job import Job
from bench.lanes import Tally
from bench.peers.clients import Client, client_of

# Allowed at the end for lanes whose next task is still held by another lane.
_END_WITHIN_S = 3.0
_FIRST_WITHIN_S = 60.0
_PAUSE_S = 0.1

Step = Callable[[int], Coroutine[Any, Any, None]]


class ClientLanes:
    """The kinds of work that lanes do over one client."""

    def __init__(self, client: Client, job: Job, tally: Tally) -> None:
        self._client = client
        self._tally = tally
        self._batch = job.batch
        self._payload = msgspec.json.encode({"n": 1, "text": "x" * job.payload_bytes})

    def step(self, kind: str) -> Step:
        """Return the work of a kind.

        Raises:
            KeyError: The kind does not exist.
        """
        kinds: dict[str, Step] = {
            "create": self.create,
            "cycle": self.cycle,
            "batch": self.batch,
        }
        return kinds[kind]

    async def repeat(self, step: Step, lane: int) -> None:
        """Do one piece of work after another until the tally is over."""
        while not self._tally.over:
            try:
                await step(lane)
            except (OSError, TimeoutError) as error:
                self._tally.fail(type(error).__name__)
                await asyncio.sleep(_PAUSE_S)

    async def create(self, lane: int) -> None:
        """Create a task."""
        await self._timed("create", self._client.create(lane, self._payload))
        self._tally.done(1)

    async def cycle(self, lane: int) -> None:
        """Create a task, claim one, finish it."""
        await self._timed("create", self._client.create(lane, self._payload))
        handle = await self._timed("claim", self._client.claim(lane))
        await self._timed("result", self._client.finish(lane, handle))
        self._tally.done(1)

    async def batch(self, lane: int) -> None:
        """Create a batch, claim one, finish it."""
        payloads = [self._payload] * self._batch
        await self._timed("create-batch", self._client.create_batch(lane, payloads))
        held = await self._timed("claim-batch", self._client.claim_batch(lane, self._batch))
        if not held:
            self._tally.empty += 1
            return
        await self._timed("result-batch", self._client.finish_batch(lane, held))
        self._tally.done(len(held))

    async def _timed(self, operation: str, answer: Coroutine[Any, Any, Any]) -> Any:
        sent_s = time.perf_counter()
        found = await answer
        self._tally.answered(operation, time.perf_counter() - sent_s)
        return found


@asynccontextmanager
async def client_lanes(job: Job, tally: Tally) -> AsyncIterator[None]:
    """Run the lanes of a job within the block; the tally must be over at its end."""
    await first_created(job.protocol, job.urls, job.command)
    client = client_of(job.protocol)
    await client.connect(job.urls, queue=job.command, lanes=job.lanes, batch=job.batch)
    lanes = ClientLanes(client, job, tally)
    step = lanes.step(job.kind)
    running = [asyncio.create_task(lanes.repeat(step, lane)) for lane in range(job.lanes)]
    try:
        yield
    finally:
        done, late = await asyncio.wait(running, timeout=_END_WITHIN_S)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        await client.close()
    for task in done:
        task.result()


async def first_created(protocol: str, urls: Sequence[str], queue: str) -> None:
    """Create a queue and one task, retrying while the queue has no leader; take the task out.

    Raises:
        TimeoutError: The queue has no leader in time.
    """
    async with asyncio.timeout(_FIRST_WITHIN_S):
        while True:
            client = client_of(protocol)
            try:
                await client.connect(urls, queue=queue, lanes=1, batch=1)
                await client.create(0, b"{}")
                await client.finish(0, await client.claim(0))
            except Exception:  # noqa: BLE001 - each library has its own; the timeout bounds all
                await asyncio.sleep(_PAUSE_S)
            else:
                break
            finally:
                await client.close()
