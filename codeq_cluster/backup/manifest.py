"""Manifest: a backup's contents; written last, so that a backup without a manifest does not count.

It is one JSON object whose last field is the checksum of the object without it. It is accepted only
if encoding it again gives the same bytes, so that no byte can change unnoticed.
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec
from msgspec import Struct

from codeq_cluster.backup.rows import Counts
from codeq_cluster.codec import levels
from codeq_cluster.errors import BackupDamaged, BackupFailed

FORMAT_VERSION = 1
MANIFEST = "manifest.json"

ID = re.compile(r"[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}")
_DIGEST_BYTES = 32


class Part(Struct, frozen=True, kw_only=True, rename="camel"):
    """One shard's rows, as of one entry of its log.

    Attributes:
        file: Beside the manifest.
        index: Of the last entry in the rows.
        term: Of that entry.
        digest: Of the shard's state, hexadecimal.
        clock_ms: The shard's clock, Unix milliseconds.
        seq: The last sequence number it drew.
        size: Of the file, bytes.
        blake2b: Of the whole file, hexadecimal.
    """

    shard: int
    file: str
    index: int
    term: int
    digest: str
    clock_ms: int
    seq: int
    size: int
    blake2b: str
    counts: Counts


class BackupManifest(Struct, frozen=True, kw_only=True, rename="camel"):
    """A backup.

    Attributes:
        id: Sorts by the time it was begun.
        cluster_id: Of the cluster it was taken from.
        node_id: Of the node that took it.
        created_ms: When it was begun, Unix milliseconds; every cut is later.
        release: Of the program that wrote it.
        parts: One a shard, in their order.
        tenant: The one tenant it holds, `_` for the default tenant; None for all of them.
        level: Of the formats that its rows may have.
    """

    format_version: int = FORMAT_VERSION
    id: str
    cluster_id: str
    node_id: str
    created_ms: int
    release: str
    parts: tuple[Part, ...]
    tenant: str | None = None
    level: int

    @property
    def shards(self) -> int:
        """Return how many shards the cluster has."""
        return len(self.parts)

    @property
    def size(self) -> int:
        """Return the bytes of all files but the manifest."""
        return sum(part.size for part in self.parts)

    @property
    def tasks(self) -> int:
        """Return how many tasks it holds."""
        return sum(part.counts.tasks for part in self.parts)


class _Written(BackupManifest, frozen=True, kw_only=True, rename="camel"):
    checksum: str = ""


class _Version(Struct, rename="camel"):
    format_version: int = 0


def check_known(manifest: BackupManifest) -> None:
    """Refuse formats that this release does not know, before a row is misread.

    Raises:
        BackupFailed: It has newer formats.
    """
    if manifest.level > levels.LEVEL:
        raise BackupFailed(
            f"{manifest.id} has formats of level {manifest.level}, and this release knows those "
            f"up to level {levels.LEVEL}: use the newest release that was part of its cluster"
        )


def is_id(name: str) -> bool:
    """Return whether a text is the id of a backup."""
    return ID.fullmatch(name) is not None


def part_file(shard: int) -> str:
    """Return the name of a shard's file."""
    return f"shard-{shard:04d}.rows"


def encode(manifest: BackupManifest) -> bytes:
    """Return the manifest's stored bytes."""
    checksum = digest(msgspec.json.encode(manifest)).hex()
    return msgspec.json.encode(_Written(**msgspec.structs.asdict(manifest), checksum=checksum))


def decode(content: bytes) -> BackupManifest:
    """Return the manifest of stored bytes.

    Raises:
        BackupDamaged: They are no manifest, were changed, or have an unknown format.
    """
    try:
        version = msgspec.json.decode(content, type=_Version).format_version
        if version != FORMAT_VERSION:
            raise BackupDamaged(f"its format is {version}, this release reads {FORMAT_VERSION}")
        written = msgspec.structs.asdict(msgspec.json.decode(content, type=_Written))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupDamaged(f"the manifest is damaged: {error}") from error
    del written["checksum"]
    manifest = BackupManifest(**written)
    if encode(manifest) != content:
        raise BackupDamaged("the manifest is damaged: its checksum does not fit")
    for shard, part in enumerate(manifest.parts):
        if (part.shard, part.file) != (shard, part_file(shard)):
            raise BackupDamaged(f"the manifest is damaged: its part {shard} is another one's")
    if not manifest.parts or not is_id(manifest.id):
        raise BackupDamaged("the manifest is damaged: it names no backup")
    return manifest


def digest(content: bytes) -> bytes:
    """Return the checksum of a manifest's bytes, or of data derived from it."""
    return blake2b(content, digest_size=_DIGEST_BYTES).digest()
