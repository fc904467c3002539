"""Costs: how many of the product's functions a lone node calls for one request.

Each bound is a count. Lower it when a request gets cheaper; raise it only for a good reason.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import codeq_cluster
from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import BASE, Answer, Client, read_answer, running

PACKAGE = str(Path(codeq_cluster.__file__).parent)

CYCLES = 100  # The fewest calls of so many, as a busy machine adds some.

# From the request's last byte to the answer's; a resumption after a wait counts as a call. At rest
# they are three fewer each: some more come where other processes keep the processors busy.
CALLS_MAX = {
    "create": 198,
    "claim": 248,
    "heartbeat": 172,
    "result": 202,
    # All four, with the work that a node does once it has answered.
    "cycle": 826,
    # Without the heartbeat; its task goes one after the other with those of its key.
    "keyed create": 241,
    "keyed claim": 280,
    "keyed result": 230,
    # Each of a hundred that one request renews.
    "lease of a batch": 39,
}
LEASES = 100
RENEWALS = 5
# Steps of the interpreter, in the product's functions, for one create until its answer. At rest
# they are 8,076; as with calls, some more come where other processes keep the processors busy.
CREATES = 100
STEPS_MAX = 8_300


class Lane:
    """Sends requests on one connection, and keeps the fewest calls that each kind has cost."""

    def __init__(
        self, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._client = client
        self._reader = reader
        self._writer = writer
        self._calls = 0
        self.fewest: Counter[str] = Counter()

    async def cycle(self) -> None:
        """Create a task, claim it, extend its lease and end it."""
        begun = self._calls
        await self._send("create", "", {"command": "cost", "payload": {"n": 1}})
        claim = {"commands": ["cost"], "leaseSeconds": 60, "waitSeconds": 5}
        task_id = (await self._send("claim", "/claim", claim)).json["id"]
        await self._send("heartbeat", f"/{task_id}/heartbeat", {"extendSeconds": 90})
        result = {"status": "COMPLETED", "result": {"ok": True}}
        await self._send("result", f"/{task_id}/result", result)
        self._keep("cycle", self._calls - begun)

    async def keyed_cycle(self) -> None:
        """Create a task with a key whose queue has a rule, claim it and end it."""
        body = {"command": "keyed", "payload": {"n": 1}, "key": "k1"}
        await self._send("keyed create", "", body)
        claim = {"commands": ["keyed"], "leaseSeconds": 60, "waitSeconds": 5}
        task_id = (await self._send("keyed claim", "/claim", claim)).json["id"]
        result = {"status": "COMPLETED", "result": {"ok": True}}
        await self._send("keyed result", f"/{task_id}/result", result)

    async def renewal(self) -> None:
        """Create tasks, claim them, and renew all their leases in one request."""
        tasks = [{"command": "kept", "payload": {}}] * LEASES
        await self._send("creates", "/batch", {"tasks": tasks})
        claim = {"commands": ["kept"], "count": LEASES, "leaseSeconds": 60, "waitSeconds": 5}
        claimed = (await self._send("claims", "/claim/batch", claim)).json["tasks"]
        assert LEASES == len(claimed)
        leases = [{"id": each["id"], "leaseToken": each["leaseToken"]} for each in claimed]
        begun = self._calls
        kept = await self._send("renewals", "/batch/heartbeats", {"leases": leases})
        self._keep("lease of a batch", (self._calls - begun) // LEASES)
        assert not any("code" in each for each in kept.json["leases"])

    def called(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call of one of the product's functions, as a profiler."""
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            self._calls += 1

    async def _send(self, kind: str, path: str, body: object) -> Answer:
        raw = json.dumps(body).encode()
        head = self._client.head("POST", f"{BASE}/tasks{path}", len(raw), connection="keep-alive")
        begun = self._calls
        self._writer.write(head + raw)
        answer = await read_answer(self._reader)
        self._keep(kind, self._calls - begun)
        assert answer.status in {200, 202}, answer
        return answer

    def _keep(self, kind: str, calls: int) -> None:
        self.fewest[kind] = min(calls, self.fewest.get(kind, calls))


class Steps:
    """Counts the interpreter's steps (bytecode instructions) in the product's functions."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, frame: FrameType, _event: str, _argument: object) -> Any:
        """Follow a call of one of them, as a tracer."""
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.count += event == "opcode"
        return self._step


async def test_a_create_takes_few_steps(tmp_path: Path) -> None:
    """A call that does more costs more, which the number of calls does not show."""
    async with running(tmp_path, LimitSettings()) as client:
        reader, writer = await client.connect()
        raw = b'{"command": "cost", "payload": {"n": 1}}'
        head = client.head("POST", f"{BASE}/tasks", len(raw), connection="keep-alive")
        steps, counts = Steps(), []
        for _ in range(CREATES):
            sys.settrace(steps)
            try:
                writer.write(head + raw)
                answer = await read_answer(reader)
            finally:
                sys.settrace(None)
            assert 202 == answer.status, answer
            counts.append(steps.count)
            steps.count = 0
        writer.close()

    assert min(counts) <= STEPS_MAX, sorted(counts)


async def test_requests_take_few_calls(tmp_path: Path) -> None:
    """No request of a task's life calls more functions than it did."""
    async with running(tmp_path, LimitSettings()) as client:
        rule = b'{"flow": {"perKey": {"maxRunning": 1}}}'
        made = await client.send("PUT", "admin/topics/keyed", rule)
        assert 201 == made.status, made
        reader, writer = await client.connect()
        lane = Lane(client, reader, writer)
        sys.setprofile(lane.called)
        try:
            for _ in range(CYCLES):
                await lane.cycle()
                await lane.keyed_cycle()
            for _ in range(RENEWALS):
                await lane.renewal()
        finally:
            sys.setprofile(None)
        writer.close()
    above = {kind: (lane.fewest[kind], most) for kind, most in CALLS_MAX.items()}

    assert {} == {kind: both for kind, both in above.items() if both[0] > both[1]}
