"""The page on clients: every program in it does what it says."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.testing.broker import LocalBroker
from tests.harness.waiting import until
from tests.integration.webhooks.target import listening

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = dict(
    re.findall(
        r"^```python (\w+)\n(.*?)^```$",
        (ROOT / "docs" / "clients.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
)
README_WORKER = re.findall(
    r"^```python[^\n]*\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL
)[0]
ENDS_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every program."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


async def _started(broker: LocalBroker, program: str) -> asyncio.subprocess.Process:
    text = program.replace("http://127.0.0.1:8080", broker.url).replace("dev-token", broker.token)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", text),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )


async def _ran(broker: LocalBroker, program: str) -> str:
    process = await _started(broker, program)
    async with asyncio.timeout(ENDS_WITHIN_S):
        said, _ = await process.communicate()
    assert 0 == process.returncode, said.decode()
    return said.decode()


@pytest.mark.parametrize("worker", [PROGRAMS["worker"], README_WORKER], ids=["page", "readme"])
async def test_producers_get_what_the_worker_returns(broker: LocalBroker, worker: str) -> None:
    """Both interfaces get the result, and Ctrl-C ends the worker with exit code 0."""
    working = await _started(broker, worker)
    try:
        greeting = await _ran(broker, PROGRAMS["producer"])
        counted = await _ran(broker, PROGRAMS["sync"])
        working.send_signal(signal.SIGINT)
        async with asyncio.timeout(ENDS_WITHIN_S):
            said, _ = await working.communicate()
    finally:
        if working.returncode is None:
            working.kill()
            await working.wait()

    assert "hello world\n" == greeting
    assert "250 {'greeting': 'hello number 0'}\n" == counted
    assert 0 == working.returncode, said.decode()


async def test_the_schedules_of_the_page_are_put_run_and_deleted(broker: LocalBroker) -> None:
    """The program does without an event loop what admins do."""
    said = await _ran(broker, PROGRAMS["schedules"])
    async with broker.operator() as operator:
        left = await operator.schedules()

    assert "active\ncreated 7\n" == said
    assert [] == [row for row in left.rows if row["id"] == "hourly-sync"]


async def test_the_worker_of_the_page_runs_both_handlers(broker: LocalBroker) -> None:
    """One handler is a plain function; the other fails a greeting without a name."""
    working = await _started(broker, PROGRAMS["worker"])
    try:
        async with asyncio.timeout(ENDS_WITHIN_S), broker.client() as client:
            shouted = await client.create_and_wait("shout", {"name": "world"})
            failed = await client.create_and_wait("greet", {"name": ""})
    finally:
        working.kill()
        await working.wait()

    assert "WORLD! (attempt 1 of 5)" == shouted.value
    assert (False, "nobody to greet") == (failed.ok, failed.error)


async def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    """The page's tests run in a project of their own, without this one's configuration."""
    (tmp_path / "conftest.py").write_text(PROGRAMS["conftest"])
    (tmp_path / "test_invoices.py").write_text(PROGRAMS["tests"])
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pytest", "-q", "-W", "error", "--rootdir", str(tmp_path)),
        *("-p", "no:cacheprovider", str(tmp_path)),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    ended: list[bytes] = []

    async def has_ended() -> bool:
        out, _ = await process.communicate()
        ended.append(out)
        return True

    await until(has_ended, what="the tests")

    assert 0 == process.returncode, ended[0].decode()
    assert b"1 passed" in ended[0]


def test_every_program_of_the_page_is_run() -> None:
    """Every program on the page is named in a test here."""
    assert {
        "producer",
        "sync",
        "worker",
        "schedules",
        "callback",
        "conftest",
        "tests",
    } == PROGRAMS.keys()


async def test_the_receiver_of_the_page_tells_genuine_callbacks(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """A callback of the broker is read; the same with another body is refused."""
    page: dict[str, Any] = {}
    async with broker.operator() as operator:
        page["KEYS"] = [each["key"] for each in await operator.webhook_keys()]
    exec(PROGRAMS["callback"], page)
    async with listening() as target, broker.client() as client:
        task = await client.create("told", {}, webhook=target.url)
        await client.cancel(task.id)
        await target.arrived(1)
    [heard] = target.heard

    assert 401 == page["received"](heard.headers, heard.body + b" ")
    assert "" == capsys.readouterr().out
    assert 204 == page["received"](heard.headers, heard.body)
    assert "told FAILED CANCELLED\n" == capsys.readouterr().out
