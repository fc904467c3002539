"""Generator: it measures real servers in processes of their own, and counts failures."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.floor import floors
from bench.generator import generate, run
from bench.job import Job
from bench.ledger import main
from tests.harness.http import UNANSWERED, Connection, HttpAnswer
from tests.harness.waiting import WITHIN_S


@pytest.fixture
def floor() -> Iterator[tuple[str, int]]:
    """Run the server that does nothing; yield its URL and process id."""
    with floors() as pids:
        yield next(iter(pids.items()))


def test_a_server_that_does_nothing_is_measured(floor: tuple[str, int]) -> None:
    """Every answer in the measured time counts, with its latency and both sides' CPU."""
    url, pid = floor

    seen = generate(
        Job(
            kind="create",
            urls=[url],
            command="c",
            lanes=8,
            seconds=0.5,
            warm_up_s=0.1,
            watched={"nodes": [pid]},
        )
    )

    assert not seen.failed
    assert seen.tasks == seen.requests == seen.latency_ms["create"].count > 100
    assert seen.operations > seen.tasks
    assert 0 < seen.latency_ms["create"].p50 <= seen.latency_ms["create"].max
    assert seen.seconds == pytest.approx(0.5, abs=0.4)
    # Server and client may take turns on one core, and neither can use more CPU than the machine
    # has.
    assert 0 < seen.cpu_s["nodes"] <= seen.seconds * 1.1
    assert 0 < seen.generator_s <= seen.seconds * 1.1


async def test_a_refusal_and_a_lost_connection_are_failures_and_the_lane_goes_on() -> None:
    """One answer in three is a 503 and one a closed connection; the third succeeds."""
    turn = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal turn
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]
                await reader.readexactly(int(length))
                turn += 1
                if turn % 3 == 0:
                    return
                status = b"202 Accepted" if turn % 3 == 1 else b"503 Busy"
                writer.write(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\n{}" % status)
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        seen = await run(
            Job(
                kind="create",
                urls=[f"http://127.0.0.1:{port}"],
                command="c",
                lanes=2,
                seconds=0.5,
                warm_up_s=0.0,
            )
        )

    refused = sum(n for what, n in seen.failed.items() if what.startswith("create 503"))
    unanswered = sum(n for what, n in seen.failed.items() if what.startswith("create 0"))
    assert seen.operations > 5
    assert refused == pytest.approx(seen.operations, abs=2)
    assert unanswered == pytest.approx(seen.operations, abs=2)


async def test_an_answer_that_never_comes_is_given_up() -> None:
    """A request older than the bound ends as unanswered, and its connection is closed."""
    answers: asyncio.Queue[HttpAnswer] = asyncio.Queue()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        connection = await Connection.open(f"http://127.0.0.1:{port}", answers.put_nowait)
        connection.ask(b"POST / HTTP/1.1\r\n\r\n", 100.0)
        connection.give_up(100.0)
        kept = not connection.closed
        connection.give_up(100.1)
        async with asyncio.timeout(WITHIN_S):
            answer = await answers.get()

    assert kept
    assert UNANSWERED == answer.status
    assert connection.closed


def test_the_ledger_measures_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused and accepted creates on one real node give a layer, its counts and a stored run."""
    monkeypatch.setattr("bench.ledger.RESULTS", tmp_path / "results")

    status = main(
        [
            *("--only", "refused", "one-node", "batch-1"),
            *("--rounds", "1", "--seconds", "0.5", "--directory", str(tmp_path)),
        ]
    )

    told = capsys.readouterr().out
    (stored,) = (tmp_path / "results").iterdir()
    assert 0 == status
    assert "behind HTTP: one node, one shard" in told
    assert "raft_fsync" in told
    assert stored.name.endswith("-ledger.json")
