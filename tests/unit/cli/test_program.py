"""Program: the input of an executable file from a task, and the outcome of its end."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from msgspec import Raw

from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.cli.work.program import Program, executable
from codeq_cluster.client import Fail, HandlerUnfit, Retry, Status, Task, TaskRecord
from tests.harness.waiting import until

_PATH = {"PATH": os.environ["PATH"]}


def _script(directory: Path, text: str) -> str:
    file = directory / "handler"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


def _task(payload: str = "{}") -> Task[Raw]:
    at = datetime(2026, 1, 31, tzinfo=UTC)
    record = TaskRecord(
        id="t1",
        command="greet",
        payload=payload,
        status=Status.IN_PROGRESS,
        attempts=2,
        max_attempts=5,
        lease_token=7,
        created_at=at,
        updated_at=at,
    )
    return Task(record=record, payload=Raw(payload.encode()))


async def _run(directory: Path, text: str, payload: str = "{}") -> str:
    result = await Program(_script(directory, text), environment=_PATH)(_task(payload))
    return bytes(result).decode()


async def _gone(pid: str) -> bool:
    return _has_ended(pid)


def _has_ended(pid: str) -> bool:
    """Return whether a process has ended, even if it was not reaped."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return status.rpartition(")")[2].split()[0] in ("Z", "X")


async def test_the_payload_comes_in_and_json_goes_out_as_it_is(tmp_path: Path) -> None:
    """Digits that a float would lose stay."""
    payload = '{"n": 12345678901234567890.5}'

    assert payload == await _run(tmp_path, "cat", payload)


async def test_the_task_is_in_the_environment(tmp_path: Path) -> None:
    """A program can tell which delivery of which task it has."""
    said = await _run(tmp_path, 'echo "$CODEQ_TASK_ID $CODEQ_TASK_COMMAND $CODEQ_TASK_ATTEMPT"')

    assert "t1 greet 2" == json.loads(said)


@pytest.mark.parametrize(("output", "result"), [("", ""), ("hello", "hello"), ("NaN", "NaN")])
async def test_output_that_is_no_json_is_a_json_string(
    output: str, result: str, tmp_path: Path
) -> None:
    """A shell script need not know JSON."""
    assert result == json.loads(await _run(tmp_path, f"printf '{output}'"))


async def test_a_number_of_any_size_is_json(tmp_path: Path) -> None:
    """Python reads no number of more than 4300 digits, and others do."""
    number = "9" * 5000

    assert number == await _run(tmp_path, f"printf {number}")


async def test_another_exit_code_gives_the_task_back(tmp_path: Path) -> None:
    """The reason is the end of standard error."""
    with pytest.raises(Retry, match=r"^exit code 3: disk full$"):
        await _run(tmp_path, "echo disk full >&2; exit 3")


async def test_exit_code_100_fails_the_task(tmp_path: Path) -> None:
    """The task is not retried."""
    with pytest.raises(Fail, match=r"^no such cat$"):
        await _run(tmp_path, "echo no such cat >&2; exit 100")


async def test_a_signal_is_named(tmp_path: Path) -> None:
    """An operator sees the signal that ended the program."""
    with pytest.raises(Retry, match=r"^signal SIGKILL$"):
        await _run(tmp_path, "kill -9 $$")


async def test_a_program_need_not_read_its_payload(tmp_path: Path) -> None:
    """A payload larger than a pipe does not block its end."""
    assert "done" == json.loads(
        await _run(tmp_path, "exec <&-; echo done", json.dumps("x" * 2**18))
    )


async def test_too_much_output_is_refused(tmp_path: Path) -> None:
    """A program that never stops writing is killed."""
    with pytest.raises(Retry, match="standard output has more than"):
        await _run(tmp_path, "exec yes")


async def test_children_that_a_program_leaves_behind_are_ended(tmp_path: Path) -> None:
    """A child that holds the pipes does not delay the worker and is ended."""
    said = await _run(tmp_path, "sleep 1000 & echo $!")
    await until(partial(_gone, said), what="the child's end")


async def test_a_cancelled_program_is_ended(tmp_path: Path) -> None:
    """A lost lease ends the program and its children."""
    fifo = tmp_path / "pid"
    os.mkfifo(fifo)
    program = Program(_script(tmp_path, f"sleep 1000 & echo $! > {fifo}; wait"), environment=_PATH)
    running = asyncio.create_task(program(_task()))
    pid = (await asyncio.to_thread(fifo.read_text)).strip()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(partial(_gone, pid), what="the child's end")


async def test_a_file_that_cannot_be_run_is_unfit(tmp_path: Path) -> None:
    """No task should die because of a missing interpreter."""
    file = tmp_path / "handler"
    file.write_text("#!/no/such/interpreter\n")
    file.chmod(0o755)
    with pytest.raises(HandlerUnfit, match="cannot be run"):
        await Program(str(file), environment=_PATH)(_task())


def test_a_handler_is_looked_for_before_anything_is_claimed(tmp_path: Path) -> None:
    """The error says what is wrong with the file."""
    plain = tmp_path / "plain"
    plain.write_text("")

    assert executable("sh").endswith("/sh")
    with pytest.raises(UsageRefused, match="chmod"):
        executable(str(plain))
    with pytest.raises(UsageRefused, match="no such program"):
        executable(str(tmp_path / "none"))


@pytest.mark.parametrize("turns", range(6))
async def test_a_program_cancelled_while_it_starts_is_ended(turns: int, tmp_path: Path) -> None:
    """At any point of its start, the cancellation returns and the program is ended."""
    file = tmp_path / "pid"
    program = Program(_script(tmp_path, f"echo $$ > {file}; sleep 1000 & wait"), environment=_PATH)
    running = asyncio.create_task(program(_task()))

    def cancel(after: int) -> None:
        if after:
            running.get_loop().call_soon(cancel, after - 1)
        else:
            running.cancel()

    running.get_loop().call_soon(cancel, turns)
    with pytest.raises(asyncio.CancelledError):
        await running
    begun = await asyncio.to_thread(lambda: file.exists() and file.read_text().strip())

    assert not begun or _has_ended(begun)
