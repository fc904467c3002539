"""Failover: how long creates at a fixed rate wait when the leader is killed, and lost tasks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress

import msgspec

from bench.contenders import Contender
from bench.peers.clients import Client, client_of, fresh_queue
from bench.peers.lanes import first_created

_PER_S = 100
_BEFORE_S = 3.0
_AFTER_S = 5.0
_ATTEMPT_WITHIN_S = 1.0
_PAUSE_S = 0.05
# The longest wait of one create, from its due time.
_ACKNOWLEDGED_WITHIN_S = 90.0
_LANES = 8
_SILENCE_S = 3.0
# Until the first delivery, a broker may still be electing a leader for its consumers.
_FIRST_WITHIN_S = 30.0
# Three times as long as the slowest broker took on this machine.
_DRAINED_WITHIN_S = 120.0


class Failover(msgspec.Struct, frozen=True, kw_only=True):
    """One kill.

    Attributes:
        worst_s: The longest wait of a create for its acknowledgement, from its due time.
        created: Acknowledged creates.
        missing: How many of those no worker got afterwards: lost, or never delivered.
        twice: Tasks that workers got more than once.
    """

    worst_s: float
    created: int
    missing: int
    twice: int


async def failover(contender: Contender) -> Failover:
    """Kill the leader of a fresh queue under load, then claim all created tasks.

    The load goes to the surviving nodes; each create is retried until it is acknowledged.

    Raises:
        TimeoutError: A create was not acknowledged in time.
    """
    queue = fresh_queue()
    await first_created(contender.protocol, contender.addresses, queue)
    leader = await asyncio.to_thread(contender.leader, queue)
    survivors = [url for url in contender.addresses if url != leader]
    client = client_of(contender.protocol)
    await client.connect(survivors, queue=queue, lanes=_LANES, batch=100)
    try:
        waits = await _load(client, contender, leader)
        given = await _drained(client)
    finally:
        await client.close()
    return Failover(
        worst_s=max(waits.values()),
        created=len(waits),
        missing=len(waits.keys() - given.keys()),
        twice=sum(count > 1 for count in given.values()),
    )


async def _load(client: Client, contender: Contender, leader: str) -> dict[int, float]:
    """Return the wait of each create, by its number."""
    waits: dict[int, float] = {}

    async def create(number: int, due_s: float) -> None:
        payload = msgspec.json.encode({"n": number})
        async with asyncio.timeout_at(due_s + _ACKNOWLEDGED_WITHIN_S):
            while True:
                try:
                    async with asyncio.timeout(_ATTEMPT_WITHIN_S):
                        await client.create(number % _LANES, payload, key=str(number))
                    break
                except Exception:  # noqa: BLE001 - each library has its own; the timeout bounds all
                    await asyncio.sleep(_PAUSE_S)
        waits[number] = loop.time() - due_s

    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    async with asyncio.TaskGroup() as group:
        for number in range(round(_PER_S * (_BEFORE_S + _AFTER_S))):
            due_s = begun_s + number / _PER_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            group.create_task(create(number, due_s))
            if number == round(_PER_S * _BEFORE_S):
                group.create_task(asyncio.to_thread(contender.kill, leader))
    return waits


async def _drained(client: Client) -> Counter[int]:
    """Take every task until none is left; return how often each number was delivered."""
    given: Counter[int] = Counter()
    begun_s = time.monotonic()
    deadline_s = begun_s + _DRAINED_WITHIN_S

    async def work(lane: int) -> None:
        while time.monotonic() < deadline_s:
            try:
                handle = await client.claim(lane, within_s=_SILENCE_S)
            except (TimeoutError, OSError):
                if given or time.monotonic() > begun_s + _FIRST_WITHIN_S:
                    return
                await asyncio.sleep(_PAUSE_S)
                continue
            given[msgspec.json.decode(client.payload(handle))["n"]] += 1
            # The broker refuses also if another worker has got the task since; `given` counts that.
            with suppress(OSError):
                await client.finish(lane, handle)

    async with asyncio.TaskGroup() as group:
        for lane in range(_LANES):
            group.create_task(work(lane))
    return given
