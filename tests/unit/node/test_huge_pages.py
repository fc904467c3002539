"""Huge pages: which memory is collapsed, and that its content stays."""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from codeq_cluster.node.huge_pages import PAGE_BYTES, areas, collapse

MAPS = """\
00400000-00a00000 r--p 00000000 08:01 1234                               /usr/bin/python3.11
00a00000-01000000 rw-p 00600000 08:01 1234                               /usr/bin/python3.11
01100000-01900000 rw-p 00000000 00:00 0                                  [heap]
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
7f0000500000-7f0000700000 rw-p 00000000 00:00 0
7f0000a00000-7f0001000000 r--p 00000000 00:00 0
7f0001000000-7f0001600000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0                          [stack]
"""


def test_whole_huge_pages_of_the_heap_are_collapsed() -> None:
    """No file's memory, none that is shared or read only, no part of a page, and no stack."""
    assert [(0x1200000, 0x1800000), (0x7F0000000000, 0x7F0000400000)] == [*areas(MAPS.splitlines())]


def test_a_process_collapses_its_memory_and_keeps_its_content() -> None:
    """The kernel counts as much huge memory as was collapsed, or more; bytes are what they were."""
    content = os.urandom(1 << 16) * (4 * PAGE_BYTES >> 16)
    with mmap.mmap(-1, len(content), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[:] = content
        collapsed = collapse()
        counted = re.search(
            r"AnonHugePages: +(\d+) kB", Path("/proc/self/smaps_rollup").read_text()
        )

        assert content == memory[:]
        assert counted is not None
        assert collapsed <= 1024 * int(counted[1])


def test_a_system_without_a_list_of_memory_collapses_nothing(tmp_path: Path) -> None:
    """A node starts there all the same."""
    assert 0 == collapse(tmp_path / "maps")


def test_a_path_of_any_bytes_is_a_line_of_the_list(tmp_path: Path) -> None:
    """A node whose data directory has such a name starts all the same."""
    line = b"7f0001000000-7f0001600000 rw-s 00000000 00:01 77 "
    maps = tmp_path / "maps"
    maps.write_bytes(line + "/a\u2028b\x85/applied\n".encode() + line + b"/gr\xf6\xdfe/applied\n")

    assert 0 == collapse(maps)
