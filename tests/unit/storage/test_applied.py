"""Applied: the numbers outlive the process, and a torn slot counts as unknown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from codeq_cluster.storage.applied import AppliedFile
from tests.harness.small_disk import small_disk

PROGRAM = """
import sys
from pathlib import Path
from codeq_cluster.storage.applied import AppliedFile
file = AppliedFile(Path(sys.argv[1]), shards=3)
for index in range(1, 1001):
    file.note(1, index)
print("noted", flush=True)
sys.stdin.read()
"""


def test_noted_numbers_are_there_after_a_kill(tmp_path: Path) -> None:
    """The numbers survive a kill without a sync, and none is made."""
    path = tmp_path / "applied"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "noted\n" == process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)

    file = AppliedFile(path, shards=3)

    assert (0, 1000, 0) == (file.of(0), file.of(1), file.of(2))
    file.close()


@pytest.mark.parametrize("left", [None, 16])
def test_a_full_disk_is_an_error_at_the_opening(tmp_path: Path, left: int | None) -> None:
    """Every note has its room then; an earlier release may have left a file without blocks."""
    with small_disk(tmp_path / "disk", size_mib=1, pid=os.getpid) as disk:
        path = disk.path / "applied"
        if left is not None:
            path.touch()
            os.truncate(path, left)
        disk.fill()

        with pytest.raises(OSError, match=r"No space left|File too large"):
            AppliedFile(path, shards=3)
        disk.free()
        file = AppliedFile(path, shards=3)
        file.note(2, 7)
        assert (0, 0, 7) == (file.of(0), file.of(1), file.of(2))
        file.close()


def test_a_damaged_slot_says_nothing(tmp_path: Path) -> None:
    """Half of a number could stand for an entry that nobody has applied."""
    path = tmp_path / "applied"
    file = AppliedFile(path, shards=2)
    file.note(0, 7)
    file.note(1, 8)
    file.close()
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)

    again = AppliedFile(path, shards=2)

    assert (0, 8) == (again.of(0), again.of(1))
    again.close()
