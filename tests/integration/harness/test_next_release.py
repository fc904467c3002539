"""Next release: it differs from this one only as declared, and reads all that this one writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from codeq_cluster.codec import entries
from codeq_cluster.codec.entries import Entry, EntryInvalid
from codeq_cluster.codec.levels import LEVEL as THIS_LEVEL
from codeq_cluster.wire.handshake import VERSIONS
from tests.harness.next_release import ENTRY_VERSION, LEVEL, next_release

ENTRY = Entry(epoch=3, ordinal=1, clock_ms=5, seq=6, mutations={b"key": b"value"})
PROGRAM = """
import sys
from codeq_cluster.codec import entries, levels
from codeq_cluster.wire.handshake import VERSIONS
entry = entries.decode(bytes.fromhex(sys.argv[1]))
written = [entries.encode(entry, level=level) for level in (levels.LEVEL - 1, levels.LEVEL)]
assert all(entries.decode(each) == entry for each in written)
print(levels.LEVEL, VERSIONS[1], *(each.hex() for each in written))
"""


def test_the_next_release_writes_its_own_entries_from_its_level_on(tmp_path: Path) -> None:
    """Below its level it writes this release's bytes; above, this release refuses the version."""
    ours = entries.encode(ENTRY, level=THIS_LEVEL)
    where = next_release(tmp_path)
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, ours.hex()],
        cwd=where,
        env={"PYTHONPATH": str(where)},
        capture_output=True,
        check=True,
        text=True,
    )
    level, link, before, after = said.stdout.split()

    assert (LEVEL, VERSIONS[1] + 1) == (int(level), int(link))
    assert THIS_LEVEL + 1 == LEVEL
    assert ours == bytes.fromhex(before)
    assert ENTRY_VERSION == bytes.fromhex(after)[0]
    with pytest.raises(EntryInvalid, match=f"version {ENTRY_VERSION:02x}, this release reads 01"):
        entries.decode(bytes.fromhex(after))
