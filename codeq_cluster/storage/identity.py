"""Identity: the file `node.json` of a data directory: whose it is, and which time it has served."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Final

import msgspec

from codeq_cluster.codec import levels
from codeq_cluster.codec.membership import Membership
from codeq_cluster.errors import DataDirectoryRefused

IDENTITY: Final = "node.json"
FORMAT_VERSION: Final = 1


class DirectoryIdentity(
    msgspec.Struct, kw_only=True, frozen=True, rename="camel", omit_defaults=True
):
    """The content of `node.json`.

    Attributes:
        data: Drawn at random when the directory was made, 1 to 2^31 - 1.
        opened: How often the directory was opened.
        bootstrap: The bootstrap membership, if this node was in it and knows it.
        level: Of the newest formats in use in any shard.
        made: The databases of all shards exist; none is created after that.
        has_wal: The databases lack rows that the write-ahead log has.
        virtual_by_ms: How far its virtual time is ahead of the machine's; None for data of real
            time.
    """

    format_version: int
    cluster_id: str
    node_id: str
    shards: int
    data: int
    opened: int
    bootstrap: Membership | None
    level: int
    made: bool
    has_wal: bool
    virtual_by_ms: int | None = None


class _Formats(msgspec.Struct, rename="camel"):
    """The fields of `node.json` that every release reads before the others."""

    format_version: int
    level: int


def fresh_identity(*, cluster_id: str, node_id: str, shards: int) -> DirectoryIdentity:
    """Return the identity of a directory that no node has opened, with data of its own."""
    return DirectoryIdentity(
        format_version=FORMAT_VERSION,
        cluster_id=cluster_id,
        node_id=node_id,
        shards=shards,
        data=secrets.randbelow(2**31 - 1) + 1,
        opened=0,
        bootstrap=None,
        level=1,
        made=False,
        has_wal=False,
    )


def read_file(file: Path) -> DirectoryIdentity:
    """Return the identity in a file.

    Raises:
        DataDirectoryRefused: It is damaged, or of another format.
        ReleaseTooOld: It has formats that this release does not know.
    """
    content = file.read_bytes()
    try:
        formats = msgspec.json.decode(content, type=_Formats)
        if formats.format_version != FORMAT_VERSION:
            raise DataDirectoryRefused(
                f"the data directory {file.parent} was made for format version "
                f"{formats.format_version}; this release reads {FORMAT_VERSION}"
            )
        levels.check(formats.level, by=f"the data directory {file.parent}")
        return msgspec.json.decode(content, type=DirectoryIdentity)
    except msgspec.MsgspecError as error:
        raise DataDirectoryRefused(
            f"{file} is damaged: {error}; "
            f"see what codeq-cluster repair --data-dir {file.parent} finds"
        ) from error


def check_time(path: Path, *, virtual: bool) -> None:
    """Refuse data of virtual time to a node of real time, and the other way round.

    Leases, schedules and times to live of virtual time end in a future that may never come, and
    data of real time must not jump there.

    Raises:
        DataDirectoryRefused: It is of the other time, or damaged.
        ReleaseTooOld: It has formats that this release does not know.
    """
    if (path / IDENTITY).exists():
        refuse_other_time(path, read_file(path / IDENTITY), virtual=virtual)


def refuse_other_time(path: Path, identity: DirectoryIdentity, *, virtual: bool) -> None:
    """Refuse a directory by its identity, as `check_time` does.

    Raises:
        DataDirectoryRefused: It is of the other time.
    """
    if virtual == (identity.virtual_by_ms is not None):
        return
    found, wanted = ("real", "virtual") if virtual else ("virtual", "real")
    advice = "start it without --virtual-time" if virtual else "start it with dev --virtual-time"
    raise DataDirectoryRefused(
        f"the data directory {path} has served {found} time and never serves {wanted} time; "
        f"{advice}, or name another directory"
    )
