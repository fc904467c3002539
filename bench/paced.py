"""Paced: a load generator with a fixed rate, whatever the answers; prints its measurements."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
import uvloop

from bench.driver import Measured

_LEASE_S = 120
_WAIT_S = 5


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The load to offer.

    Attributes:
        kind: `cycle` (create, claim, result) or `create`.
        urls: Base URLs, asked in turn.
        tokens: One tenant's each, used in turn, for all three routes.
        per_s: Operations started per second, evenly spaced.
        in_flight_max: Started and not ended; beyond it one is skipped and counted as `held back`.
    """

    kind: str
    urls: list[str]
    tokens: list[str]
    command: str
    per_s: float
    seconds: float
    warm_up_s: float = 2.0
    in_flight_max: int = 256


class Paced:
    """An open loop: latency counts from the moment a request was due, not from when it was sent."""

    def __init__(self, pace: Pace, session: aiohttp.ClientSession) -> None:
        self.measured = Measured(seconds=pace.seconds)
        self._pace = pace
        self._session = session
        self._turn = itertools.count()
        self._in_flight = 0
        self._create = msgspec.json.encode({"command": pace.command, "payload": {"text": "x" * 90}})
        self._claim = msgspec.json.encode(
            {"commands": [pace.command], "leaseSeconds": _LEASE_S, "waitSeconds": _WAIT_S}
        )

    async def run(self) -> Measured:
        """Offer load until the time is over, let requests end, and return the measurements."""
        pace = self._pace
        step: Callable[[str, float, bool], Awaitable[bool]] = (
            self._cycle if pace.kind == "cycle" else self._one
        )
        begun_s = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(int((pace.warm_up_s + pace.seconds) * pace.per_s)):
                due_s = begun_s + number / pace.per_s
                await asyncio.sleep(due_s - time.perf_counter())
                counts = due_s >= begun_s + pace.warm_up_s
                if self._in_flight >= pace.in_flight_max:
                    self._fail("held back", counts)
                    continue
                token = pace.tokens[number % len(pace.tokens)]
                self._in_flight += 1
                group.create_task(self._counted(step(token, due_s, counts), counts))
        return self.measured

    async def _counted(self, step: Awaitable[bool], counts: bool) -> None:
        try:
            done = await step
            self.measured.cycles += done and counts
        finally:
            self._in_flight -= 1

    async def _one(self, token: str, due_s: float, counts: bool) -> bool:
        return (
            await self._post("create", "/tasks", token, self._create, due_s=due_s, counts=counts)
            is not None
        )

    async def _cycle(self, token: str, due_s: float, counts: bool) -> bool:
        if not await self._one(token, due_s, counts):
            return False
        now_s = time.perf_counter
        raw = await self._post(
            "claim", "/tasks/claim", token, self._claim, due_s=now_s(), counts=counts
        )
        if not raw:
            return False
        task = msgspec.json.decode(raw)
        path = f"/tasks/{task['id']}/result"
        body = {"status": "COMPLETED", "result": {"ok": 1}, "leaseToken": task["leaseToken"]}
        ended = await self._post(
            "result", path, token, msgspec.json.encode(body), due_s=now_s(), counts=counts
        )
        if counts:
            self._took("cycle", due_s)
        return ended is not None

    async def _post(
        self, name: str, path: str, token: str, body: bytes, *, due_s: float, counts: bool
    ) -> bytes | None:
        """Return the answer's bytes, empty for 204, None for a failure."""
        url = self._pace.urls[next(self._turn) % len(self._pace.urls)]
        try:
            async with self._session.post(
                f"{url}/v1/codeq{path}", data=body, headers={"Authorization": f"Bearer {token}"}
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._fail(f"{name}: {type(error).__name__}", counts)
            return None
        if response.status >= 300:
            self._fail(f"{name}: {response.status}", counts)
            return None
        if counts:
            self._took(name, due_s)
        return raw

    def _took(self, name: str, due_s: float) -> None:
        took_us = int((time.perf_counter() - due_s) * 1e6)
        self.measured.latencies_us.setdefault(name, []).append(took_us)

    def _fail(self, what: str, counts: bool) -> None:
        if counts:
            self.measured.failed[what] = self.measured.failed.get(what, 0) + 1


async def _main(pace: Pace) -> Measured:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30)
    ) as session:
        return await Paced(pace, session).run()


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.argv[1], type=Pace)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_main(asked))))
