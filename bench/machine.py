"""Machine: where a figure was measured, and what a process costs there."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FSYNCS = 200


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


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


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
    """Return the median time to append 1 KiB and have it on disk."""
    probe = directory / "fsync-probe"
    took: list[float] = []
    with probe.open("wb", buffering=0) as file:
        for _ in range(_FSYNCS):
            begun_s = time.perf_counter()
            file.write(b"x" * 1024)
            os.fsync(file.fileno())
            took.append(time.perf_counter() - begun_s)
    probe.unlink()
    return sorted(took)[len(took) // 2] * 1000
