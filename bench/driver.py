"""Driver: a load generator in its own process; reads a scenario, prints its measurements."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec
import uvloop

_WAIT_S = 5
_LEASE_S = 120


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A load to apply.

    Attributes:
        kind: `floor`, `create`, `cycle`, `batch` or `wake`.
        urls: Base URLs, asked in turn.
        lanes: Requests in flight.
        seconds: The measured time, after `warm_up_s`.
        rounds: Of `wake` only: the number of wake-ups.
        batch: Of `batch` only: tasks per request.
        payload_bytes: The approximate size of a payload.
    """

    kind: str
    urls: list[str]
    producer_token: str
    worker_tokens: list[str]
    command: str
    lanes: int = 1
    seconds: float = 5.0
    warm_up_s: float = 1.0
    rounds: int = 0
    batch: int = 100
    payload_bytes: int = 100


class Measured(msgspec.Struct, kw_only=True):
    """The measurements after the warm-up.

    Attributes:
        cycles: Tasks created, or finished if the scenario finishes them.
        seconds: The measured time.
        latencies_us: The time of every answer, by operation.
        failed: Unsuccessful answers, by status.
    """

    cycles: int = 0
    seconds: float = 0.0
    latencies_us: dict[str, list[int]] = {}
    failed: dict[str, int] = {}


class Lanes:
    """A closed loop: every lane sends its next request when the last one is answered."""

    def __init__(self, scenario: Scenario, session: aiohttp.ClientSession) -> None:
        self.measured = Measured()
        self._scenario = scenario
        self._session = session
        self._turn = itertools.count()
        self._measuring = False
        self._over = False
        payload = {"text": "x" * scenario.payload_bytes}
        self._task = {"command": scenario.command, "payload": payload}
        self._create = msgspec.json.encode(self._task)
        self._claim = msgspec.json.encode(
            {
                "commands": [scenario.command],
                "leaseSeconds": _LEASE_S,
                "waitSeconds": _WAIT_S,
            }
        )

    async def run(self) -> Measured:
        """Warm up, measure, let the lanes end, and return the measurements."""
        scenario = self._scenario
        lane = self._lane()
        async with asyncio.TaskGroup() as group:
            for n in range(scenario.lanes):
                group.create_task(self._repeat(lane, n))
            await asyncio.sleep(scenario.warm_up_s)
            self._measuring, begun_s = True, time.perf_counter()
            await asyncio.sleep(scenario.seconds)
            self._measuring, ended_s = False, time.perf_counter()
            self.measured.seconds = ended_s - begun_s
            self._over = True
        return self.measured

    def _lane(self) -> Callable[[int], Awaitable[int]]:
        match self._scenario.kind:
            case "floor" | "create":
                return self._create_one
            case "cycle":
                return self._cycle_one
            case "batch":
                return self._cycle_batch
            case kind:
                raise ValueError(f"no scenario {kind}")

    async def _repeat(self, step: Callable[[int], Awaitable[int]], lane: int) -> None:
        while not self._over:
            done = await step(lane)
            if self._measuring:
                self.measured.cycles += done

    async def _create_one(self, _lane: int) -> int:
        token = self._scenario.producer_token
        task = await self._post("create", "/tasks", token, self._create)
        return int(task is not None)

    async def _cycle_one(self, lane: int) -> int:
        await self._create_one(lane)
        token = self._worker(lane)
        raw = await self._post("claim", "/tasks/claim", token, self._claim)
        if not raw:
            return 0
        task = msgspec.json.decode(raw)
        done = await self._post(
            "result",
            f"/tasks/{task['id']}/result",
            token,
            msgspec.json.encode(
                {"status": "COMPLETED", "result": {"ok": 1}, "leaseToken": task["leaseToken"]}
            ),
        )
        return int(done is not None)

    async def _cycle_batch(self, lane: int) -> int:
        scenario, token = self._scenario, self._worker(lane)
        await self._post(
            "create-batch",
            "/tasks/batch",
            scenario.producer_token,
            msgspec.json.encode({"tasks": [self._task] * scenario.batch}),
        )
        raw = await self._post(
            "claim-batch",
            "/tasks/claim/batch",
            token,
            msgspec.json.encode(
                {
                    "count": scenario.batch,
                    "commands": [scenario.command],
                    "leaseSeconds": _LEASE_S,
                    "waitSeconds": _WAIT_S,
                }
            ),
        )
        if not raw:
            return 0
        held = msgspec.json.decode(raw)["tasks"]
        results = [
            {
                "taskId": task["id"],
                "status": "COMPLETED",
                "result": {"ok": 1},
                "leaseToken": task["leaseToken"],
            }
            for task in held
        ]
        raw = await self._post(
            "result-batch",
            "/tasks/batch/results",
            token,
            msgspec.json.encode({"results": results}),
        )
        if not raw:
            return 0
        answers = msgspec.json.decode(raw)["results"]
        refused = sum("error" in answer for answer in answers)
        if refused:
            self._fail("result-batch item", refused)
        return len(answers) - refused

    def _worker(self, lane: int) -> str:
        tokens = self._scenario.worker_tokens
        return tokens[lane % len(tokens)]

    async def _post(self, name: str, path: str, token: str, body: bytes) -> bytes | None:
        """Return the answer's bytes, empty for 204, None for a failure."""
        urls = self._scenario.urls
        url = urls[next(self._turn) % len(urls)]
        begun_s = time.perf_counter()
        try:
            async with self._session.post(
                f"{url}/v1/codeq{path}", data=body, headers={"Authorization": f"Bearer {token}"}
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self._fail(f"{name}: {type(error).__name__}", 1)
            return None
        if self._measuring:
            took_us = int((time.perf_counter() - begun_s) * 1e6)
            self.measured.latencies_us.setdefault(name, []).append(took_us)
        if response.status >= 300:
            self._fail(f"{name}: {response.status}", 1)
            return None
        return raw

    def _fail(self, what: str, count: int) -> None:
        self.measured.failed[what] = self.measured.failed.get(what, 0) + count


async def wake(scenario: Scenario, session: aiohttp.ClientSession) -> Measured:
    """Measure wake-ups one by one: from sending a create to the claim's answer on another node."""
    measured = Measured(latencies_us={"wake": [], "create": []})
    claim = {"commands": [scenario.command], "leaseSeconds": _LEASE_S, "waitSeconds": 20}
    begun_s = time.perf_counter()
    for n in range(scenario.rounds):
        worker = scenario.worker_tokens[n % len(scenario.worker_tokens)]
        at, made_on = _two(scenario.urls, n)
        waiting = asyncio.create_task(
            _timed(session, f"{at}/v1/codeq/tasks/claim", worker, claim, measured)
        )
        # Long enough for the claim to be waiting, and for the cluster to be idle again.
        await asyncio.sleep(0.03)
        sent_s = time.perf_counter()
        created_s, _ = await _timed(
            session,
            f"{made_on}/v1/codeq/tasks",
            scenario.producer_token,
            {"command": scenario.command, "payload": {}},
            measured,
        )
        claimed_s, task = await waiting
        measured.latencies_us["wake"].append(int((claimed_s - sent_s) * 1e6))
        measured.latencies_us["create"].append(int((created_s - sent_s) * 1e6))
        if task is not None:
            measured.cycles += 1
            await _timed(
                session,
                f"{at}/v1/codeq/tasks/{task['id']}/result",
                worker,
                {"status": "COMPLETED", "result": {}, "leaseToken": task["leaseToken"]},
                measured,
            )
    measured.seconds = time.perf_counter() - begun_s
    return measured


def _two(urls: Sequence[str], n: int) -> tuple[str, str]:
    """Return two different URLs, every ordered pair in turn."""
    count = len(urls)
    if count == 1:
        return urls[0], urls[0]
    first = n % count
    return urls[first], urls[(first + 1 + n // count % (count - 1)) % count]


async def _timed(
    session: aiohttp.ClientSession,
    url: str,
    token: str,
    body: Mapping[str, object],
    measured: Measured,
) -> tuple[float, dict[str, Any] | None]:
    """Return the instant of the answer and the answer; None for a failure or an empty answer."""
    async with session.post(
        url, data=msgspec.json.encode(body), headers={"Authorization": f"Bearer {token}"}
    ) as response:
        raw = await response.read()
    ended_s = time.perf_counter()
    if response.status not in {200, 202}:
        what = f"{url.rsplit('/', 1)[1]}: {response.status}"
        measured.failed[what] = measured.failed.get(what, 0) + 1
        return ended_s, None
    return ended_s, msgspec.json.decode(raw)


async def _main(scenario: Scenario) -> Measured:
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=30)
    ) as session:
        if scenario.kind == "wake":
            return await wake(scenario, session)
        return await Lanes(scenario, session).run()


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.argv[1], type=Scenario)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_main(asked))))
