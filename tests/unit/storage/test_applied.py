"""Applied: the numbers outlive the process, and a torn slot counts as unknown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from codeq_cluster.storage.applied import AppliedFile

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
