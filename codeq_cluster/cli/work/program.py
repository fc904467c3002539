"""Program: an executable file as a worker's handler, with the payload on its standard input."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Raw

from codeq_cluster.cli.support.flags import raw_json
from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.client import Fail, HandlerUnfit, Retry, Task

EXIT_FAILED = 100  # The task has failed for good; any other code but 0 fails only the attempt.

_OUTPUT_BYTES_MAX: Final = 2**20  # The broker's default bound on a result.
_REASON_BYTES: Final = 1000  # Of the end of standard error; the broker keeps 1024 characters.
_PIPE_S_MAX: Final = 2.0  # For a program that has ended while its own child holds its pipes.
_TERMINATION_S_MAX: Final = 5.0  # From SIGTERM to SIGKILL.

_VARIABLES = {
    "CODEQ_TASK_ID": "id",
    "CODEQ_TASK_COMMAND": "command",
    "CODEQ_TASK_ATTEMPT": "attempts",
    "CODEQ_TASK_MAX_ATTEMPTS": "maxAttempts",
    "CODEQ_TASK_PRIORITY": "priority",
    "CODEQ_TASK_CREATED_AT": "createdAt",
    "CODEQ_TASK_TENANT": "tenantId",
    "CODEQ_TASK_LEASE_TOKEN": "leaseToken",
    "TRACEPARENT": "traceParent",
    "TRACESTATE": "traceState",
}


def executable(path: str) -> str:
    """Return the full path of a program, found as a shell finds it.

    Raises:
        Usage: It does not exist or may not be run.
    """
    found = shutil.which(path) or shutil.which(os.path.join(os.curdir, path))  # noqa: PTH118
    if found is not None:
        return os.path.abspath(found)  # noqa: PTH100, without following links
    if os.path.exists(path):  # noqa: PTH110
        raise UsageRefused(f"--handler {path}: not executable; allow it with chmod +x")
    raise UsageRefused(f"--handler {path}: no such program; name an executable file")


class Program:
    """Runs a program once per task; a handler for `Worker`.

    It gets the payload's JSON text on standard input and the task in variables. Exit 0 completes
    the task with its standard output, as JSON or else as a JSON string. Exit 100 fails it for good,
    and any other end returns it; both keep the end of standard error as the reason. Its standard
    error is also copied to ours.

    It has its own process group: Ctrl-C at the terminal is for the worker to handle. When the
    handler is cancelled, the group gets SIGTERM, and SIGKILL after five seconds.
    """

    def __init__(self, path: str, *, environment: Mapping[str, str]) -> None:
        """Prepare it.

        Args:
            path: An executable file.
            environment: The program's variables beside the task's own.
        """
        self._path = path
        self._environment = dict(environment)

    async def __call__(self, task: Task[Raw]) -> Raw:
        """Run it; raises the exceptions that `Worker` expects of a handler."""
        try:
            transport, process = await self._started(task)
        except OSError as error:
            raise HandlerUnfit(
                f"{self._path} cannot be run ({error.strerror or error}); "
                "it needs to be executable and to begin with #! and an interpreter"
            ) from error
        try:
            output, errors = await _exchange(transport, process, task.record.payload)
        finally:
            await _end(transport, process)
        code = transport.get_returncode()
        assert code is not None
        return _result(code, output, errors)

    async def _started(self, task: Task[Raw]) -> tuple[asyncio.SubprocessTransport, _Process]:
        loop = asyncio.get_running_loop()
        starting = asyncio.ensure_future(
            loop.subprocess_exec(
                lambda: _Process(loop),
                self._path,
                env=self._environment | _variables(task),
                start_new_session=True,
            )
        )
        # If the start were cancelled half-way, asyncio would wait for the program's children
        # without end.
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            with suppress(OSError):
                await _end(*await starting)
            raise


class _Process(asyncio.subprocess.SubprocessStreamProtocol):
    """The pipes of a program and its end; asyncio's own `wait` waits for the pipes as well."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(limit=2**16, loop=loop)
        self.ended = asyncio.Event()

    def process_exited(self) -> None:
        super().process_exited()
        self.ended.set()


async def _exchange(
    transport: asyncio.SubprocessTransport, process: _Process, payload: str
) -> tuple[bytes | None, str]:
    """Feed the program until it ends; return its output, None if it is too much."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    output, errors = bytearray(), bytearray()
    async with asyncio.TaskGroup() as pipes:
        feeding = pipes.create_task(_feed(process.stdin, payload.encode()))
        reading = pipes.create_task(_keep(process.stdout, output))
        passing = pipes.create_task(_pass_on(process.stderr, errors))
        ending = pipes.create_task(_ended(process))
        await asyncio.wait({ending, reading}, return_when=asyncio.FIRST_COMPLETED)
        if len(output) > _OUTPUT_BYTES_MAX:
            _signal(transport, signal.SIGKILL)
        await ending
        feeding.cancel()
        await asyncio.wait({reading, passing}, timeout=_PIPE_S_MAX)
        reading.cancel()
        passing.cancel()
    kept = bytes(output) if len(output) <= _OUTPUT_BYTES_MAX else None
    return kept, errors.decode(errors="replace").strip()


def _variables(task: Task[Raw]) -> dict[str, str]:
    fields = msgspec.to_builtins(task.record)
    found = {name: fields.get(field, "") for name, field in _VARIABLES.items()}
    return {
        # A variable cannot contain a NUL; ids and names of a task never do.
        name: str(value)
        for name, value in found.items()
        if value != ""
    }


def _result(code: int, output: bytes | None, errors: str) -> Raw:
    if output is None:
        raise Retry(f"standard output has more than {_OUTPUT_BYTES_MAX} bytes")
    if code == 0:
        return _as_json(output)
    if code == EXIT_FAILED:
        raise Fail(errors or f"exit code {code}")
    ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
    raise Retry(f"{ended}: {errors}" if errors else ended)


def _as_json(output: bytes) -> Raw:
    """Return the output itself if it is JSON, or else as a JSON string."""
    text = output.decode(errors="replace").strip()
    try:
        return raw_json(text)
    except (ValueError, RecursionError):
        return Raw(json.dumps(text).encode())


async def _feed(stdin: asyncio.StreamWriter, payload: bytes) -> None:
    try:
        stdin.write(payload)
        await stdin.drain()
    except (BrokenPipeError, ConnectionResetError):
        # A program need not read its payload.
        pass
    finally:
        stdin.close()


async def _keep(stdout: asyncio.StreamReader, output: bytearray) -> None:
    """Read to the end, or until the output is too long."""
    while len(output) <= _OUTPUT_BYTES_MAX and (piece := await stdout.read(2**16)):
        output += piece


async def _pass_on(stderr: asyncio.StreamReader, tail: bytearray) -> None:
    """Copy to our own standard error, and keep the end."""
    while piece := await stderr.read(2**16):
        sys.stderr.buffer.write(piece)
        sys.stderr.flush()
        tail += piece
        del tail[:-_REASON_BYTES]


async def _ended(process: _Process) -> None:
    await process.ended.wait()


async def _end(transport: asyncio.SubprocessTransport, process: _Process) -> None:
    """End the whole process group."""
    if not process.ended.is_set():
        _signal(transport, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERMINATION_S_MAX):
                await process.ended.wait()
    _signal(transport, signal.SIGKILL)
    await process.ended.wait()
    transport.close()


def _signal(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    # The whole group may have ended already.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(transport.get_pid(), number)
