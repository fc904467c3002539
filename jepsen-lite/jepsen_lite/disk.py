"""Disk: the shim between a node and its data directory, its faults, and what a power cut leaves."""

from __future__ import annotations

import hashlib
import mmap
import os
import shutil
import struct
import subprocess
from enum import IntEnum
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "native" / "disk.c"
_PAGE_BYTES = 4096


class DiskFault(IntEnum):
    """What the shim does to writes and syncs; the numbers are those of the C source."""

    NONE = 0
    ERROR = 1
    FULL = 2
    SLOW = 3
    LIE = 4


class ShimFailed(RuntimeError):
    """The shim cannot be built on this machine; the text says why."""


def shim() -> Path:
    """Return the shared library, built if need be.

    Raises:
        ShimFailed: There is no compiler, or it refused.
    """
    text = SOURCE.read_bytes()
    directory = Path.home() / ".cache" / "jepsen-lite"
    library = directory / f"disk-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(made), str(SOURCE), "-ldl", "-lpthread"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ShimFailed("no gcc") from error
    if done.returncode:
        raise ShimFailed(f"gcc: {done.stderr.strip()[:300]}")
    made.replace(library)
    return library


class Disk:
    """One node's disk.

    Args:
        data: The node's data directory, which need not exist yet.
        beside: Where the durable image and the control page are kept.
    """

    def __init__(self, data: Path, beside: Path) -> None:
        self._data = data.resolve()
        self._image = beside.resolve() / "image"
        self._control = beside.resolve() / "disk.control"
        beside.mkdir(parents=True, exist_ok=True)
        self._image.mkdir(exist_ok=True)
        self._control.write_bytes(bytes(_PAGE_BYTES))
        with self._control.open("r+b") as opened:
            self._page = mmap.mmap(opened.fileno(), _PAGE_BYTES)

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to run on this disk, beside the library itself."""
        return {
            "JL_DISK_ROOT": str(self._data),
            "JL_DISK_IMAGE": str(self._image),
            "JL_DISK_CONTROL": str(self._control),
        }

    @property
    def struck(self) -> int:
        """Calls that were refused, delayed or lied about, since the beginning."""
        return int(struct.unpack_from("=Q", self._page, 16)[0])

    @property
    def syncs(self) -> int:
        """Calls for a sync, since the beginning: that the shim sees anything at all."""
        return int(struct.unpack_from("=Q", self._page, 8)[0])

    def fault(self, fault: DiskFault, *, delay_ms: int = 0) -> None:
        """Let a fault begin, or end with `NONE`."""
        struct.pack_into("=II", self._page, 0, fault, delay_ms)

    def cut_power(self) -> int:
        """Put what was synced in place of what was written; the node must be dead.

        Returns:
            How many bytes of files were lost.
        """
        written = _bytes_of(self._data)
        shutil.rmtree(self._data, ignore_errors=True)
        shutil.copytree(self._image, self._data)
        return written - _bytes_of(self._data)


def _bytes_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
