"""Syncs: how often a cluster syncs its disk, counted by strace if it is installed."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from bench.generator import generate
from bench.job import Job

_CALLS = ("fsync", "fdatasync", "sync_file_range", "msync", "io_submit")
_ATTACHED_WITHIN_S = 5.0
_POLL_S = 0.02


def syncs_per_task(pids: Sequence[int], job: Job) -> float | None:
    """Run a job and return the processes' syncs per task; None without strace.

    Tracing slows every system call down, so this job's rates mean nothing. The count with one lane
    does not depend on the rate.
    """
    strace = shutil.which("strace")
    if strace is None:
        return None
    with tempfile.NamedTemporaryFile(prefix="syncs-") as counted:
        attached = [argument for pid in pids for argument in ("-p", str(pid))]
        tracer = subprocess.Popen(
            [
                *(strace, "-f", "-qq", "-c", "-U", "calls,name"),
                *("-e", f"trace={','.join(_CALLS)}", "-o", counted.name, *attached),
            ]
        )
        try:
            _wait_attached(pids)
            sample = generate(job)
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait()
        return calls(Path(counted.name).read_text()) / max(1, sample.operations)


def calls(table: str) -> int:
    """Return the sum of the calls column in strace's summary."""
    rows = [line.split() for line in table.splitlines()]
    return sum(int(row[0]) for row in rows if len(row) == 2 and row[1] in _CALLS)


def _wait_attached(pids: Sequence[int]) -> None:
    """Return when every process is traced.

    Raises:
        TimeoutError: A process could not be traced, for instance for lack of permission.
    """
    deadline_s = time.monotonic() + _ATTACHED_WITHIN_S
    while not all("TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text() for pid in pids):
        if time.monotonic() > deadline_s:
            raise TimeoutError("strace could not attach to the nodes")
        time.sleep(_POLL_S)
