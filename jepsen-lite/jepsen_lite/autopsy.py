"""Autopsy: the rows on the disks of dead nodes.

The digest that nodes report covers the entries they applied, not the rows these produced. A defect
in applying, or in the store, shows as equal digests over different rows.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from rocksdict import AccessType, Options, Rdict

from jepsen_lite.history import Group

_PLACE = b"codeq/meta/applied"  # -> applied index (8 bytes), digest


def states(data: Path, scratch: Path) -> tuple[Group, ...]:
    """Return the applied index and a hash over the rows of each shard of a dead node.

    Args:
        data: The node's data directory.
        scratch: Takes a copy, since a database writes even when it is only read.
    """
    found = []
    for directory in sorted(data.glob("shard-*")):
        if not directory.name.removeprefix("shard-").isdecimal():
            # This directory holds received states that are about to replace a shard's own.
            continue
        copy = scratch / directory.name
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(directory, copy)
        found.append(_state(int(directory.name.removeprefix("shard-")), copy))
        shutil.rmtree(copy)
    return tuple(found)


def _state(shard: int, directory: Path) -> Group:
    running = hashlib.blake2b(digest_size=16)
    place = b""
    for key, value in _rows(directory):
        if key == _PLACE:
            place = value
        running.update(b"%d %d " % (len(key), len(value)) + key + value)
    return Group(
        shard=shard,
        applied=int.from_bytes(place[:8], "big"),
        digest=running.hexdigest(),
    )


def _rows(directory: Path) -> Iterator[tuple[bytes, bytes]]:
    options = Options(raw_mode=True)
    families = {"state": options, "raft": options}
    # A read-only open would miss the rows that are only in the write-ahead log.
    with Rdict(
        str(directory), options, column_families=families, access_type=AccessType.read_write()
    ) as database:
        yield from database.get_column_family("state").items()
