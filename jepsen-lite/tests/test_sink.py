"""Sink: callers see each kind of failure, and it ends on command."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jepsen_lite.history import Recorder
from jepsen_lite.sink import Sink, SinkFault
from tests.harness.http import Broken, HttpClient, Refused
from tests.harness.waiting import soon

# Unique to this process: others may run these tests at the same time.
ADDRESS = f"127.77.99.{1 + os.getpid() % 250}"
BODY = {"taskId": "t", "status": "COMPLETED", "result": {"n": 1}}


@asynccontextmanager
async def sinking(directory: Path) -> AsyncIterator[Sink]:
    """Start a sink that fails only on command."""
    with Recorder(directory / "history.ndjson") as recorder:
        async with Sink(ADDRESS, recorder, secret="s", seed=1) as sink:
            sink.fails = False
            yield sink


async def call(sink: Sink) -> str:
    """Call it as a node would; return the status, or the kind of error."""
    try:
        async with HttpClient() as client:
            url, _, path = sink.url.rpartition("/")
            answer = await client.send("POST", url, f"/{path}", body=json.dumps(BODY).encode())
            return str(answer.status)
    except Refused:
        return "refused"
    except Broken:
        return "no answer"


@pytest.mark.parametrize(
    ("fault", "seen", "struck"),
    [
        (SinkFault.ERROR, "500", 1),
        (SinkFault.RESET, "no answer", 1),
        (SinkFault.REFUSE, "refused", 0),
    ],
)
async def test_a_sink_fails_as_it_is_told(
    tmp_path: Path, fault: SinkFault, seen: str, struck: int
) -> None:
    """Afterwards the sink takes calls again; only calls answered with 200 count as delivered."""
    async with sinking(tmp_path) as sink:
        await sink.begin(fault)
        during, told = await call(sink), set(sink.told)
        await sink.end()
        after = await call(sink)

        assert (seen, set(), struck) == (during, told, sink.struck)
        assert ("200", {"t"}) == (after, sink.told)


async def test_a_sink_that_hangs_answers_nobody(tmp_path: Path) -> None:
    """A hanging call ends without an answer when the fault ends."""
    async with sinking(tmp_path) as sink:
        await sink.begin(SinkFault.HANG)
        calling = asyncio.create_task(call(sink))

        async def struck() -> bool:
            return sink.struck > 0

        assert await soon(struck, within_s=30)
        assert not calling.done()
        await sink.end()

        assert "no answer" == await calling
        assert not sink.told
