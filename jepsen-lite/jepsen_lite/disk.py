"""Disk: the shim between a node and its data directory, for disk faults and power cuts."""

from __future__ import annotations

import shutil
import struct
import time
from enum import IntEnum
from pathlib import Path

from jepsen_lite.shims import control_page


class DiskFault(IntEnum):
    """The shim's faults in writes and syncs; the numbers are those of the C source."""

    NONE = 0
    ERROR = 1
    FULL = 2
    SLOW = 3
    LIE = 4


class Disk:
    """One node's disk.

    Args:
        data: The node's data directory, which need not exist yet.
        beside: Holds the durable image and the control page.

    Attributes:
        mended_s: When writes last stopped failing, in monotonic seconds.
    """

    def __init__(self, data: Path, beside: Path) -> None:
        self._data = data.resolve()
        self._image = beside.resolve() / "image"
        self._control = beside.resolve() / "disk.control"
        beside.mkdir(parents=True, exist_ok=True)
        self._image.mkdir(exist_ok=True)
        self._page = control_page(self._control)
        self.mended_s = float("-inf")

    @property
    def environment(self) -> dict[str, str]:
        """The environment for a process on this disk, beside the library itself."""
        return {
            "JL_DISK_ROOT": str(self._data),
            "JL_DISK_IMAGE": str(self._image),
            "JL_DISK_CONTROL": str(self._control),
        }

    @property
    def struck(self) -> int:
        """Calls refused, delayed or falsely confirmed since the start."""
        return int(struct.unpack_from("=Q", self._page, 16)[0])

    @property
    def syncs(self) -> int:
        """Sync calls since the start; any at all prove that the shim intercepts calls."""
        return int(struct.unpack_from("=Q", self._page, 8)[0])

    @property
    def refuses(self) -> bool:
        """Whether writes fail now."""
        [mode] = struct.unpack_from("=I", self._page, 0)
        return mode in (DiskFault.ERROR, DiskFault.FULL)

    def fault(self, fault: DiskFault, *, delay_ms: int = 0) -> None:
        """Start a fault, or end it with `NONE`."""
        if self.refuses:
            self.mended_s = time.monotonic()
        struct.pack_into("=II", self._page, 0, fault, delay_ms)

    def wipe(self) -> None:
        """Delete everything, including synced data; the node must be dead."""
        shutil.rmtree(self._data, ignore_errors=True)
        shutil.rmtree(self._image, ignore_errors=True)
        self._image.mkdir()

    def cut_power(self) -> int:
        """Replace all files by their synced contents; the node must be dead.

        Returns:
            How many bytes of files were lost.
        """
        written = _bytes_of(self._data)
        shutil.rmtree(self._data, ignore_errors=True)
        shutil.copytree(self._image, self._data)
        return written - _bytes_of(self._data)


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
