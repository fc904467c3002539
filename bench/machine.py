"""Machine: a description of the machine, and the resources that a process uses on it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import RawIOBase
from pathlib import Path
from typing import Self

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FSYNCS = 200
_PROBE_EVERY_S = 0.05


@contextmanager
def scratch(parent: Path | None) -> Iterator[Path]:
    """Yield a new directory below a parent, or below the system's for None; delete it afterwards.

    A parent that is missing is made, and stays.
    A killed node may still write during the deletion, so files that remain are left alone.
    """
    if parent is not None:
        parent.mkdir(parents=True, exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def describe(directory: Path) -> dict[str, object]:
    """Return commit, cores, kernel, Python, and the cost of one fsync on the data's disk."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "changed": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cores": os.cpu_count(),
        "cpu": _cpu_model(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "fsyncMs": round(_fsync_ms(directory), 3),
        "loadBefore": os.getloadavg()[0],
    }


class DiskProbe:
    """Syncs its own file twenty times a second, which shows the disk's delays of any cause.

    Attributes:
        syncs: (end in monotonic seconds, duration in ms) of each sync.
    """

    def __init__(self, directory: Path) -> None:
        self.syncs: list[tuple[float, float]] = []
        self._path = directory / "disk-probe"
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop after the last sync."""
        self._enough.set()
        self._thread.join()

    def slowest(self, from_s: float, to_s: float) -> float:
        """Return the duration of the slowest sync that ended in a span, or 0 if none ended."""
        return max((took_ms for at_s, took_ms in self.syncs if from_s <= at_s < to_s), default=0.0)

    def _run(self) -> None:
        with self._path.open("wb", buffering=0) as file:
            while not self._enough.wait(_PROBE_EVERY_S):
                took_ms = _append(file)
                self.syncs.append((time.monotonic(), took_ms))
        self._path.unlink()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, user and system."""
    return sum(_times(pid)[:2]) / _TICKS_PER_S


def cpu_seconds_exact(pid: int) -> float:
    """Return the CPU time a process has used, of all its threads, to the nanosecond.

    `/proc/PID/stat` counts ticks of 10 ms, and `/proc/PID/schedstat` only the first thread.

    Raises:
        ProcessLookupError: The process does not exist.
    """
    try:
        # The kernel's id for the clock of another process: its number inverted, shifted by three,
        # with 2 for the scheduler's clock (clock_getcpuclockid in the C library).
        return time.clock_gettime(~pid << 3 | 2)
    except OSError as error:
        raise ProcessLookupError(f"no process {pid}") from error


def cpu_seconds_of_family(pid: int) -> float:
    """Return the CPU time of a process and of its children, also of those that have ended.

    Those that have ended are counted in ticks of 10 ms, once the process has waited for them.

    Raises:
        ProcessLookupError: The process does not exist.
    """
    found_s = cpu_seconds_exact(pid)
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has just ended.
            for child in (thread / "children").read_text().split():
                with suppress(ProcessLookupError):  # It has just ended, and is counted below.
                    found_s += cpu_seconds_exact(int(child))
    return found_s + sum(_times(pid)[2:]) / _TICKS_PER_S


def prefer(pids: Sequence[int], *, nice: int) -> None:
    """Give running processes a priority over other work on the machine.

    Raises:
        PermissionError: The user may not.
    """
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), nice)
        # With autogroups, a process's priority counts only within its session; the group has its
        # own.
        group = Path(f"/proc/{pid}/autogroup")
        if nice and group.exists():
            group.write_text(str(nice))


def busy_seconds() -> float:
    """Return the CPU time the whole machine has used, including interrupts and stolen time."""
    with Path("/proc/stat").open() as stream:
        fields = [int(field) for field in stream.readline().split()[1:9]]
    idle, waiting = fields[3:5]
    return (sum(fields) - idle - waiting) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _times(pid: int) -> list[int]:
    """Return the ticks of a process: user and system, and those of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[11:15]]


def _git(*arguments: str) -> str:
    git = shutil.which("git")
    if git is None:
        return ""
    found = subprocess.run(
        [git, *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return found.stdout.strip()


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fsync_ms(directory: Path) -> float:
    """Return the median time to append 1 KiB and sync it."""
    probe = directory / "fsync-probe"
    with probe.open("wb", buffering=0) as file:
        took = [_append(file) for _ in range(_FSYNCS)]
    probe.unlink()
    return sorted(took)[len(took) // 2]


def _append(file: RawIOBase) -> float:
    begun_s = time.perf_counter()
    file.write(b"x" * 1024)
    os.fsync(file.fileno())
    return (time.perf_counter() - begun_s) * 1000
