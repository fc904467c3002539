"""Processes: starting servers, waiting until they serve, and stopping them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

READY_WITHIN_S = 60.0
_STOP_WITHIN_S = 30.0
_POLL_S = 0.02
_LOG_CHARACTERS = 2000


def spawn(
    command: Sequence[str], log: Path, settings: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a server in its own session, with its output in a file.

    Ctrl-C at the terminal must reach only the bench, which then stops its servers.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(settings),
            cwd=log.parent,
            start_new_session=True,
        )


def wait_until(
    holds: Callable[[], bool],
    *,
    running: Callable[[], bool],
    logs: Callable[[], Sequence[Path]],
    within_s: float = READY_WITHIN_S,
) -> None:
    """Return when a condition holds.

    Raises:
        RuntimeError: It does not in time, or no process runs any more; with the logs' ends.
    """
    deadline = time.monotonic() + within_s
    while not holds():
        if not running() or time.monotonic() > deadline:
            texts = [(log, log.read_text(errors="replace")) for log in logs() if log.exists()]
            ends = [f"{log}:\n{text[-_LOG_CHARACTERS:]}" for log, text in texts]
            raise RuntimeError("the cluster did not start\n" + "\n".join(ends))
        time.sleep(_POLL_S)


def stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Stop processes with SIGTERM, and after a time limit with SIGKILL."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
    for process in processes:
        try:
            process.wait(_STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def runs(process: subprocess.Popen[bytes] | None) -> bool:
    """Return whether a process has been started and has not ended."""
    return process is not None and process.poll() is None


def get(url: str, token: str = "") -> bytes:
    """Return the body of a GET.

    Raises:
        OSError: There is no answer, or an unsuccessful one.
    """
    with urlopen(Request(url, headers={"Authorization": f"Bearer {token}"}), timeout=5) as answer:
        body: bytes = answer.read()
        return body


def listens(port: int) -> bool:
    """Return whether somebody accepts connections on a loopback port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def is_free(port: int) -> bool:
    """Return whether a loopback port can be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
