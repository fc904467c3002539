"""Small disk: a directory with little room, on a file system of its own where that may be made."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


class SmallDisk:
    """What can be done to the room below a directory.

    Attributes:
        real: It is a file system of its own, which answers "No space left on device". Without one
            the size of a file is limited, process by process: refused the same way, by other words.
    """

    def __init__(self, path: Path, *, real: bool, pid: Callable[[], int]) -> None:
        self.path = path
        self.real = real
        self._pid = pid
        self._ballast = path / "ballast"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Leave so much room, no more and no less, from whatever there was, at one step.

        Without a file system of its own, files may grow to that size.
        """
        if not self.real:
            _, most = resource.prlimit(self._pid(), resource.RLIMIT_FSIZE)
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (leave_bytes, most))
            return
        there = os.statvfs(self.path)
        with self._ballast.open("ab") as ballast:
            before = ballast.tell()
            size = max(1, before + there.f_bavail * there.f_frsize - leave_bytes)
            if size < before:
                ballast.truncate(size)
            else:
                os.posix_fallocate(ballast.fileno(), 0, size)

    def free(self) -> None:
        """Give the room back."""
        if self.real:
            self._ballast.unlink(missing_ok=True)
        else:
            _, most = resource.prlimit(self._pid(), resource.RLIMIT_FSIZE)
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def small_disk(path: Path, *, size_mib: int, pid: Callable[[], int]) -> Iterator[SmallDisk]:
    """Mount a file system in memory at a directory, where this process may.

    Args:
        path: Made if it is missing.
        size_mib: Of the file system.
        pid: Names the process that uses it, once there is one.
    """
    path.mkdir(parents=True, exist_ok=True)
    how = _root()
    options = ["-t", "tmpfs", "-o", f"size={size_mib}m,uid={os.getuid()},mode=700", "tmpfs"]
    real = how is not None and _ran([*how, "mount", *options, str(path)])
    try:
        yield SmallDisk(path, real=real, pid=pid)
    finally:
        if real:
            assert how is not None
            _ran([*how, "umount", "--lazy", str(path)])


def _root() -> list[str] | None:
    if os.getuid() == 0:
        return []
    sudo = shutil.which("sudo")
    return [sudo, "-n"] if sudo else None


def _ran(command: list[str]) -> bool:
    ended = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - fixed words
    return ended.returncode == 0
