"""Small disk: a directory with little room, on its own file system if one can be mounted."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_FILLS = 20  # Tries, while the processes on the disk write.


class SmallDisk:
    """Controls the free space below a directory.

    Attributes:
        real: It has its own file system, which answers "No space left on device". Otherwise the
            file size of each process is limited, which fails the same way with another error.
    """

    def __init__(self, path: Path, *, real: bool, pid: Callable[[], int]) -> None:
        self.path = path
        self.real = real
        self._pid = pid
        self._ballast = path / "ballast"

    def fill(self, *, leave_bytes: int = 0) -> None:
        """Leave exactly so much free space, in one step.

        Without its own file system, files may grow to that size.
        """
        if not self.real:
            _, most = resource.prlimit(self._pid(), resource.RLIMIT_FSIZE)
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (leave_bytes, most))
            return
        for _ in range(_FILLS):
            with suppress(OSError):
                self._leave(leave_bytes)
                return
        self._leave(leave_bytes)

    def _leave(self, leave_bytes: int) -> None:
        """Leave so much free space.

        Raises:
            OSError: Another process has taken room meanwhile.
        """
        there = os.statvfs(self.path)
        with self._ballast.open("ab") as ballast:
            before = ballast.tell()
            size = max(1, before + there.f_bavail * there.f_frsize - leave_bytes)
            if size < before:
                ballast.truncate(size)
            else:
                os.posix_fallocate(ballast.fileno(), 0, size)

    def free(self) -> None:
        """Free the space again."""
        if self.real:
            self._ballast.unlink(missing_ok=True)
        else:
            _, most = resource.prlimit(self._pid(), resource.RLIMIT_FSIZE)
            resource.prlimit(self._pid(), resource.RLIMIT_FSIZE, (most, most))


@contextmanager
def small_disk(path: Path, *, size_mib: int, pid: Callable[[], int]) -> Iterator[SmallDisk]:
    """Mount a file system in memory at a directory, if this process may.

    Args:
        path: Created if it is missing.
        size_mib: Of the file system.
        pid: Returns the id of the process that uses it, once there is one.
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
    ended = subprocess.run(command, check=False, capture_output=True)
    return ended.returncode == 0
