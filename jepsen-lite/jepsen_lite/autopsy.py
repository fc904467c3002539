"""Autopsy: what dead nodes have on their disks, row by row.

The digest that nodes report covers what they were told to apply, not what became of it; equal
digests over different rows are what a defect in applying, or in the store, looks like.
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
    """Return each shard of a node that is dead: how far it had come, and a hash over its rows.

    Args:
        data: The node's data directory.
        scratch: For a copy, since even to be read a database wants to write.
    """
    found = []
    for directory in sorted(data.glob("shard-*")):
        if not directory.name.removeprefix("shard-").isdecimal():
            continue  # What is prepared to take a shard's place.
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
    # Opened to write: rows that are only in the write-ahead log are read back then.
    with Rdict(
        str(directory), options, column_families=families, access_type=AccessType.read_write()
    ) as database:
        yield from database.get_column_family("state").items()
