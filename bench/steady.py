"""Steady: run cycles or creates at a fixed rate until standard input closes; print each request.

The client knows all nodes and asks them in turn. If a connection is refused it asks the next node,
since nothing was sent. It retries nothing else.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import msgspec
import uvloop

from tests.harness.http import Broken, HttpClient, Refused

_ROOT = Path(__file__).parent.parent
_LEASE_S = 120
_WAIT_S = 5
_TIMEOUT_S = 30.0
_CLAIMS_MAX = 20  # The most claims in one cycle: other cycles may have taken the available tasks.


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """The load to offer.

    Attributes:
        kind: `cycle` (create, claim, result) or `create`.
        urls: Base URLs, asked in turn.
        tokens: Pairs of a producer's and a worker's token, used in turn.
        per_s: Operations started per second, evenly spaced.
        in_flight_max: The most unfinished operations; beyond it an operation is skipped and
            counted.
        payload_bytes: The approximate size of a payload.
        webhooks: Of the tasks, in turn; empty for none.
    """

    kind: str
    urls: list[str]
    tokens: list[tuple[str, str]]
    command: str
    per_s: float
    in_flight_max: int = 1000
    payload_bytes: int = 100
    webhooks: list[str] = []


class Request(msgspec.Struct, frozen=True, array_like=True):
    """One request.

    Attributes:
        ended_s: When its answer was complete, monotonic seconds of the machine.
        took_ms: Duration since its due time (a create) or since the previous answer.
        failure: Empty if the request succeeded.
    """

    operation: str
    ended_s: float
    took_ms: float
    failure: str = ""


class Seen(msgspec.Struct, kw_only=True):
    """The measurements.

    Attributes:
        cycles: Duration of each successful cycle, from its due time.
        held_back: Operations skipped because too many were unfinished.
        refused: Connections refused by a node; the request went to the next one.
        late_ms_max: The longest time between a request's due time and its start, caused by the
            generator or the machine it shares. It is part of the request's latency.
    """

    requests: list[Request] = []
    cycles: list[Request] = []
    held_back: int = 0
    refused: int = 0
    late_ms_max: float = 0.0


class Running:
    """A running generator; `seen` is set once it was stopped."""

    def __init__(self, process: asyncio.subprocess.Process, said: IO[bytes]) -> None:
        self._process = process
        self._said = said

    async def stop(self) -> Seen:
        """Stop offering, let requests end, and return the measurements.

        Raises:
            RuntimeError: The generator failed.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        if await self._process.wait():
            raise RuntimeError(f"the generator ended with {self._process.returncode}")
        self._said.seek(0)
        return msgspec.json.decode(self._said.read(), type=Seen)

    async def end(self) -> None:
        """Kill it."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()


@asynccontextmanager
async def running(steady: Steady) -> AsyncIterator[Running]:
    """Run a generator in its own process."""
    with tempfile.TemporaryFile() as said:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.steady", msgspec.json.encode(steady).decode()),
            stdin=asyncio.subprocess.PIPE,
            stdout=said,
            cwd=_ROOT,
        )
        generator = Running(process, said)
        try:
            yield generator
        finally:
            await generator.end()


class _Load:
    def __init__(self, steady: Steady, http: HttpClient) -> None:
        self.seen = Seen()
        self._steady = steady
        self._http = http
        self._turn = itertools.count()
        self._in_flight = 0
        payload = {"text": "x" * steady.payload_bytes}
        task: dict[str, object] = {"command": steady.command, "payload": payload}
        tasks = [task | {"webhook": each} for each in steady.webhooks] or [task]
        self._creates = itertools.cycle([msgspec.json.encode(each) for each in tasks])
        self._claim = msgspec.json.encode(
            {"commands": [steady.command], "leaseSeconds": _LEASE_S, "waitSeconds": _WAIT_S}
        )

    async def run(self, enough: asyncio.Event) -> Seen:
        """Offer load until told to stop, and let requests end."""
        steady = self._steady
        step = self._cycle if steady.kind == "cycle" else self._one
        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                due_s = begun_s + number / steady.per_s
                await asyncio.sleep(due_s - time.monotonic())
                if enough.is_set():
                    break
                late_ms = (time.monotonic() - due_s) * 1000
                self.seen.late_ms_max = max(self.seen.late_ms_max, late_ms)
                if self._in_flight >= steady.in_flight_max:
                    self.seen.held_back += 1
                    continue
                self._in_flight += 1
                tokens = steady.tokens[number % len(steady.tokens)]
                group.create_task(self._counted(step, tokens, due_s))
        return self.seen

    async def _counted(
        self,
        step: Callable[[tuple[str, str], float], Awaitable[bool]],
        tokens: tuple[str, str],
        due_s: float,
    ) -> None:
        try:
            if await step(tokens, due_s):
                self.seen.cycles.append(_request(self._steady.kind, due_s))
        finally:
            self._in_flight -= 1

    async def _one(self, tokens: tuple[str, str], due_s: float) -> bool:
        created = await self._post("create", "/tasks", tokens[0], next(self._creates), due_s)
        return created is not None

    async def _cycle(self, tokens: tuple[str, str], due_s: float) -> bool:
        if not await self._one(tokens, due_s):
            return False
        worker = tokens[1]
        for _ in range(_CLAIMS_MAX):
            begun_s = time.monotonic()
            raw = await self._post("claim", "/tasks/claim", worker, self._claim, begun_s)
            if raw is None:
                return False
            if raw:
                break
        else:
            return False
        task = msgspec.json.decode(raw)
        path = f"/tasks/{task['id']}/result"
        body = {"status": "COMPLETED", "result": {"ok": 1}, "leaseToken": task["leaseToken"]}
        encoded = msgspec.json.encode(body)
        ended = await self._post("result", path, worker, encoded, time.monotonic())
        return ended is not None

    async def _post(
        self, operation: str, path: str, token: str, body: bytes, due_s: float
    ) -> bytes | None:
        """Return the answer's body: empty for 204, None for a failure."""
        urls = self._steady.urls
        first = next(self._turn)
        failure = "no node takes a connection"
        raw: bytes | None = None
        for number in range(first, first + len(urls)):
            url = urls[number % len(urls)]
            try:
                answer = await self._http.send(
                    "POST", url, f"/v1/codeq{path}", token=token, body=body
                )
            except Refused:
                self.seen.refused += 1
                continue
            except Broken as error:
                failure = f"{error} at {url}"
            else:
                raw = answer.body
                failure = "" if answer.status < 300 else f"{answer.status} {raw[:80]!r}"
            break
        self.seen.requests.append(_request(operation, due_s, failure))
        return None if failure else raw


def _request(operation: str, due_s: float, failure: str = "") -> Request:
    now_s = time.monotonic()
    return Request(operation, round(now_s, 4), round((now_s - due_s) * 1000, 2), failure)


async def _main(steady: Steady) -> Seen:
    enough = asyncio.Event()
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with HttpClient(timeout_s=_TIMEOUT_S) as http, asyncio.TaskGroup() as group:
        offering = group.create_task(_Load(steady, http).run(enough))
        await reader.read()
        enough.set()
        return await offering


if __name__ == "__main__":
    asked = msgspec.json.decode(sys.argv[1], type=Steady)
    sys.stdout.buffer.write(msgspec.json.encode(uvloop.run(_main(asked))))
