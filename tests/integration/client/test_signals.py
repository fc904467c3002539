"""Signals: a worker's process that is asked to stop."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from codeq_cluster.client import SyncClient, TaskRecord
from codeq_cluster.client.records import State
from codeq_cluster.testing.broker import LocalBroker
from tests.harness.waiting import until

ENDS_WITHIN_S = 60.0

_PROGRAM = """
import asyncio, sys, time
from pathlib import Path
from codeq_cluster.client import Task, Worker

url, token, directory, grace_s = sys.argv[1:]
directory = Path(directory)
worker = Worker([url], token=token, grace_s=float(grace_s), concurrency=2)

@worker.task("coroutine")
async def in_loop(task: Task[int]) -> str:
    (directory / "begun").touch()
    while not (directory / "go-on").exists():
        await asyncio.sleep(0.01)
    return "finished"

@worker.task("thread")
def in_thread(task: Task[int]) -> str:
    (directory / "begun").touch()
    while not (directory / "go-on").exists():
        time.sleep(0.01)
    return "finished"

worker.run()
print("ran to its end")
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test here."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@asynccontextmanager
async def _worker(
    broker: LocalBroker, directory: Path, *, grace_s: float
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the program until it handles a task; kill it if it has not ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _PROGRAM, broker.url, broker.token, str(directory), str(grace_s)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )

    async def has_begun() -> bool:
        return await asyncio.to_thread((directory / "begun").exists)

    try:
        await until(has_begun, what="a handler")
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    async with asyncio.timeout(ENDS_WITHIN_S):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


def _created(broker: LocalBroker, command: str) -> TaskRecord:
    with broker.sync_client() as client:
        return client.create(command, 1)


def _read(broker: LocalBroker, task: TaskRecord) -> TaskRecord:
    with broker.sync_client() as client:
        return client.task(task.id)


@pytest.mark.parametrize("command", ["coroutine", "thread"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_running_task_is_finished(
    broker: LocalBroker, tmp_path: Path, number: signal.Signals, command: str
) -> None:
    """Nothing more is claimed, the result is reported, and the exit code is 0."""
    task = await asyncio.to_thread(_created, broker, command)
    async with _worker(broker, tmp_path, grace_s=30) as process:
        process.send_signal(number)
        assert process.stderr
        told = await process.stderr.readline()
        later = await asyncio.to_thread(_created, broker, command)
        (tmp_path / "go-on").touch()
        code, out, err = await _ended(process)
    after = await asyncio.to_thread(_read, broker, task)

    async def is_ready() -> bool:
        return (await asyncio.to_thread(_read, broker, later)).state is State.READY

    # A claim that was under way may have met it, and gives it back as its caller has gone.
    await until(is_ready, what="the task that came later")
    untouched = await asyncio.to_thread(_read, broker, later)
    with SyncClient(broker.client()) as client:
        await asyncio.to_thread(client.cancel, later.id)

    assert b"nothing more is claimed" in told
    assert (0, "ran to its end\n", "") == (code, out, err)
    assert (State.DONE, 1) == (after.state, after.attempts)
    assert (State.READY, 0) == (untouched.state, untouched.attempts)


@pytest.mark.parametrize("command", ["coroutine", "thread"])
async def test_a_task_that_takes_too_long_is_given_back(
    broker: LocalBroker, tmp_path: Path, command: str
) -> None:
    """The task is ready before its lease ends, and a busy thread does not delay the exit."""
    task = await asyncio.to_thread(_created, broker, command)
    async with _worker(broker, tmp_path, grace_s=0.1) as process:
        process.send_signal(signal.SIGTERM)
        code, out, _ = await _ended(process)
    after = await asyncio.to_thread(_read, broker, task)
    with SyncClient(broker.client()) as client:
        await asyncio.to_thread(client.cancel, task.id)

    assert (0, "ran to its end\n") == (code, out)
    assert (State.READY, "ABANDONED") == (after.state, after.history[0].outcome)


async def test_a_second_signal_does_not_wait(broker: LocalBroker, tmp_path: Path) -> None:
    """A second signal returns the tasks at once."""
    task = await asyncio.to_thread(_created, broker, "coroutine")
    async with _worker(broker, tmp_path, grace_s=600) as process:
        process.send_signal(signal.SIGTERM)
        assert process.stderr
        await process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        code, _, err = await _ended(process)
    after = await asyncio.to_thread(_read, broker, task)
    with SyncClient(broker.client()) as client:
        await asyncio.to_thread(client.cancel, task.id)

    assert 0 == code, err
    assert after.state is State.READY
