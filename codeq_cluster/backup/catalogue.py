"""Catalogue: finds, checks and deletes the backups of a place."""

from __future__ import annotations

import calendar
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass

from codeq_cluster.backup import manifest as manifests
from codeq_cluster.backup.chunks import decoded
from codeq_cluster.backup.create import Written
from codeq_cluster.backup.manifest import MANIFEST, BackupManifest, Part
from codeq_cluster.backup.rows import PRIMARY, Row, counts_of
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.task import Task
from codeq_cluster.errors import BackupDamaged, BackupFailed

log = logging.getLogger(__name__)

# Another node may still be writing an incomplete backup that is younger.
ABANDONED_AFTER_S = 24 * 3600

_TIME = "%Y%m%dT%H%M%S"
_MANIFEST_BYTES_MAX = 16 * 2**20


@dataclass(frozen=True, slots=True)
class FoundBackup:
    """One backup of a place.

    Attributes:
        id: Sorts by time.
        manifest: None if it has none that can be read.
        problem: Why the backup cannot be used; empty for a complete one.
    """

    id: str
    manifest: BackupManifest | None
    problem: str = ""


def new_id(now_ms: int) -> str:
    """Return a unique id that sorts by time."""
    seconds, ms = divmod(now_ms, 1000)
    return f"{time.strftime(_TIME, time.gmtime(seconds))}{ms:03d}Z-{secrets.token_hex(4)}"


def found(place: BackupTarget) -> list[FoundBackup]:
    """Return the backups, the oldest first; blocks, raises BackupFailed."""
    listed: list[FoundBackup] = []
    for backup, files in place.backups().items():
        if MANIFEST not in files:
            listed.append(FoundBackup(backup, None, "incomplete"))
            continue
        try:
            listed.append(FoundBackup(backup, manifest_of(place, backup)))
        except BackupDamaged as error:
            listed.append(FoundBackup(backup, None, str(error)))
        except BackupFailed:
            # Another node's retention may have deleted it since the place was listed.
            if MANIFEST in place.backups().get(backup, ()):
                raise
    return listed


def complete(place: BackupTarget) -> list[BackupManifest]:
    """Return the manifests of complete backups, the newest first; blocks, raises BackupFailed."""
    return [each.manifest for each in reversed(found(place)) if each.manifest is not None]


def chosen(place: BackupTarget, backup: str = "") -> BackupManifest:
    """Return the manifest of a backup; if none is named, of the newest complete one.

    An export, which holds one tenant, is chosen only if no backup holds all tenants.

    Raises:
        BackupFailed: There is none.
        BackupDamaged: Its manifest is damaged.
    """
    if backup:
        return manifest_of(place, backup)
    there = complete(place)
    if not there:
        backup = place.where.rstrip("/").rpartition("/")[2]
        advice = f"; name the place that holds it, and {backup}" if manifests.is_id(backup) else ""
        raise BackupFailed(f"there is no complete backup in {place.where}{advice}")
    return next((each for each in there if each.tenant is None), there[0])


def newest_export(place: BackupTarget) -> BackupManifest:
    """Return the manifest of the newest complete backup of one tenant; raises BackupFailed."""
    for manifest in complete(place):
        if manifest.tenant is not None:
            return manifest
    raise BackupFailed(f"there is no complete export in {place.where}")


def manifest_of(place: BackupTarget, backup: str) -> BackupManifest:
    """Return a backup's manifest; raises BackupFailed, or BackupDamaged if it is damaged."""
    if not manifests.is_id(backup):
        raise BackupFailed(f"{backup}: no backup is called that")
    content = bytearray()
    for piece in place.read(backup, MANIFEST):
        content += piece
        if len(content) > _MANIFEST_BYTES_MAX:
            raise BackupDamaged("the manifest is too long")
    manifest = manifests.decode(bytes(content))
    if manifest.id != backup:
        raise BackupDamaged(f"the manifest is that of {manifest.id}")
    return manifest


def rows_of(
    place: BackupTarget,
    manifest: BackupManifest,
    part: Part,
    *,
    passed: Callable[[int], None] = lambda _size: None,
) -> Iterator[list[Row]]:
    """Yield the rows of a shard, each chunk checked when it is read, the whole file at the end.

    Args:
        passed: Called with the bytes of each piece that is read.

    Raises:
        BackupDamaged: The bytes differ from those written.
        BackupFailed: They cannot be read, or have formats that this release does not know.
    """
    manifests.check_known(manifest)
    try:
        yield from _rows_of(place, manifest, part, passed)
    except BackupDamaged as damage:
        raise BackupDamaged(f"{manifest.id}/{part.file}: {damage}") from damage


def _rows_of(
    place: BackupTarget, manifest: BackupManifest, part: Part, passed: Callable[[int], None]
) -> Iterator[list[Row]]:
    written, tally = Written(), Counter[keyspace.Family]()

    def pieces() -> Iterator[bytes]:
        for piece in written.passing(place.read(manifest.id, part.file)):
            passed(len(piece))
            yield piece

    for rows in decoded(pieces()):
        for key, _ in rows:
            family = keyspace.family(key)
            if family not in PRIMARY:
                raise BackupDamaged(f"it holds a row that is none of a backup: {key[:40]!r}")
            tally[family] += 1
        yield rows
    if (written.size, written.hexdigest()) != (part.size, part.blake2b):
        raise BackupDamaged("it is not the file that the manifest names")
    if counts_of(tally) != part.counts:
        raise BackupDamaged("it has not the rows that the manifest counts")


def verify(
    place: BackupTarget,
    manifest: BackupManifest,
    *,
    passed: Callable[[int], None] = lambda _size: None,
    spend: Callable[[int], None] = lambda _size: None,
) -> int:
    """Read all of a backup, every byte and every record; blocks.

    A record that cannot be read was so in the cluster, because every byte is the one that was
    stored. It is logged and counted, since it must not keep all others from being backed up.

    Args:
        passed: Called with the bytes of each piece that is read.
        spend: Called with the bytes of each chunk's rows before they are checked; may wait.

    Returns:
        How many records cannot be read; a restore leaves them out.

    Raises:
        BackupDamaged: Bytes differ from those written, or rows do not belong together.
        BackupFailed: It cannot be read.
    """
    unreadable = 0
    for part in manifest.parts:
        keyed = ended = lost = 0
        for rows in rows_of(place, manifest, part, passed=passed):
            spend(sum(len(key) + len(value) for key, value in rows))
            for row in rows:
                try:
                    task = _read(row)
                except ValueError as error:
                    extra = {"file": f"{manifest.id}/{part.file}", "key": repr(row[0])}
                    log.warning("unreadable record", extra=extra | {"error": str(error)})
                    unreadable += 1
                    lost += keyspace.family(row[0]) is keyspace.Family.TASK
                    continue
                if task is not None:
                    keyed += bool(task.idempotency_key)
                    ended += task.has_result
        counts = part.counts
        # An unreadable task may have a result and a key.
        if (
            counts.payloads != counts.tasks
            or not 0 <= counts.results - ended <= lost
            or not 0 <= counts.idempotency_keys - keyed <= lost
        ):
            raise BackupDamaged(f"{manifest.id}/{part.file}: rows of its tasks are missing")
    return unreadable


def _read(row: Row) -> Task | None:
    """Decode a row, and return it if it is a task; raises ValueError."""
    key, value = row
    match keyspace.family(key):
        case keyspace.Family.TASK:
            return records.decode_task(value)
        case keyspace.Family.RESULT | keyspace.Family.BODY:
            records.decode_result(value)
        case keyspace.Family.IDEMPOTENCY:
            records.decode_key_row(value)
        case keyspace.Family.ITEM:
            # Checksums cover the item even if a newer node wrote it.
            if keyspace.knows_kind(key):
                records.decode_item(value)
        case _:
            value.decode()
    return None


def known_rows_of(
    place: BackupTarget, manifest: BackupManifest, part: Part, *, passed: Callable[[int], None]
) -> Iterator[Row]:
    """Yield the rows of a shard for a caller that must understand them; see `rows_of`.

    Raises:
        BackupDamaged: The bytes differ from those written.
        BackupFailed: They cannot be read, or one is of a kind that a later version introduced.
    """
    for rows in rows_of(place, manifest, part, passed=passed):
        for row in rows:
            key = row[0]
            if key.startswith(keyspace.ITEM_PREFIX) and not keyspace.knows_kind(key):
                raise BackupFailed(
                    f"{manifest.id} holds items of a kind that this release does not know; "
                    "use the newest release that was part of its cluster"
                )
            yield row


def prunable(
    place: BackupTarget,
    *,
    keep: int,
    now_ms: int,
    taken: str = "",
    before: Container[str] | None = None,
) -> list[FoundBackup]:
    """Return the backups that retention deletes, the oldest first; blocks, raises BackupFailed.

    The newest `keep` complete backups of all tenants stay, and so do exports of one tenant. An
    incomplete backup is deleted once no node can still be writing it. A damaged one is never
    deleted: an operator must look at it.

    Args:
        keep: How many stay.
        now_ms: Unix milliseconds.
        taken: The backup just taken. It counts as the newest, even if other nodes' clocks gave
            older backups later ids.
        before: Ids of the backups that were there when it began; only those are deleted, as others
            may be another node's that is being verified, and keeps itself alone. None for all.
    """
    assert keep >= 1
    there = found(place)
    whole = [each for each in there if each.manifest is not None and each.manifest.tenant is None]
    whole.sort(key=lambda each: (each.id == taken, each.id))
    return sorted(
        (
            *(each for each in whole[:-keep] if before is None or each.id in before),
            *(
                each
                for each in there
                if each.problem == "incomplete"
                and begun_ms(each.id) < now_ms - ABANDONED_AFTER_S * 1000
            ),
        ),
        key=lambda each: each.id,
    )


def begun_ms(backup: str) -> int:
    """Return when a backup was begun, by its id; Unix milliseconds."""
    stamp = backup.partition("Z")[0]
    return calendar.timegm(time.strptime(stamp[:-3], _TIME)) * 1000 + int(stamp[-3:])
