"""Huge pages: the memory of a started node, in fewer pages.

A node does little at a time, in code and objects all over its heap, so the processor looks up one
small page after another. The kernel can copy them into pages of 2 MiB each: a lone create then
takes about 5 % less CPU (ADR 0068).
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PAGE_BYTES: Final = 2 << 20  # Of x86-64, and of arm64 with small pages of 4 KiB.
_MAPS: Final = Path("/proc/self/maps")
_COLLAPSE: Final = 25  # MADV_COLLAPSE, since Linux 6.1.


def collapse(maps: Path = _MAPS) -> int:
    """Let the kernel collapse this process's heap into huge pages, as far as it can.

    It takes up to 0.1 s, once. Nothing else changes: a kernel that refuses leaves all as it was.

    Args:
        maps: Lists this process's memory; another system than Linux has no such file.

    Returns:
        The bytes of the ranges that have huge pages now; 0 without the list.
    """
    try:
        # Paths may be of any bytes but the end of a line.
        found = [*areas(maps.read_text(errors="replace").rstrip("\n").split("\n"))]
    except OSError:
        return 0
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    collapsed = 0
    for start, end in found:
        if advise(start, end - start, _COLLAPSE) == 0:
            collapsed += end - start
    log.debug("heap in huge pages", extra={"bytes": collapsed})
    return collapsed


def areas(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of all whole huge pages in a process's anonymous, writable memory.

    Args:
        maps: Lines of `/proc/PID/maps`.
    """
    for line in maps:
        addresses, permissions, _, _, inode, *name = line.split()
        if permissions != "rw-p" or inode != "0" or name not in ([], ["[heap]"]):
            continue
        start, end = (int(address, 16) for address in addresses.split("-"))
        start, end = -(-start // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
        if start < end:
            yield start, end
