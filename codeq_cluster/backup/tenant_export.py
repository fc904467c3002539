"""Tenant export: the tenants of a backup, and one of them as a backup of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from codeq_cluster.backup.catalogue import known_rows_of, new_id
from codeq_cluster.backup.chunks import encoded
from codeq_cluster.backup.create import Written, write_manifest
from codeq_cluster.backup.manifest import BackupManifest, Part
from codeq_cluster.backup.rows import Row, counts_of
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.backup.tenant_rows import DEFAULT_TENANT, OneTenant, tenant_name, tenant_of
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.errors import BackupFailed


def tenants_of(
    place: BackupTarget,
    manifest: BackupManifest,
    *,
    passed: Callable[[int], None] = lambda _size: None,
) -> dict[str, int]:
    """Return the number of tasks of each tenant with tasks or items, by its shown name; blocks.

    Raises:
        BackupDamaged: The backup is damaged.
        BackupFailed: The backup cannot be read.
    """
    found: Counter[str] = Counter()
    for part in manifest.parts:
        for row in known_rows_of(place, manifest, part, passed=passed):
            family = keyspace.family(row[0])
            tenant = tenant_of(row)
            if family in {Family.TASK, Family.ITEM} and tenant is not None:
                found[tenant or DEFAULT_TENANT] += family is Family.TASK
    return dict(sorted(found.items()))


def named_tenant(place: BackupTarget, manifest: BackupManifest, shown: str) -> str:
    """Return the shown name of a tenant that a person may call by its nickname; blocks.

    People say `default` for the default tenant; a tenant may have that name, too.
    """
    if shown != "default" or shown in tenants_of(place, manifest):
        return shown
    return DEFAULT_TENANT


def export(
    place: BackupTarget,
    manifest: BackupManifest,
    *,
    tenant: str,
    into: BackupTarget,
    now_ms: int,
    passed: Callable[[int], None] = lambda _size: None,
) -> BackupManifest:
    """Write one tenant's rows of a backup as a backup of their own; blocks.

    Args:
        tenant: As shown to users, `_` for the default tenant.
        into: The place of the export; it may be the same place.
        now_ms: Unix milliseconds.
        passed: Called with the bytes of each piece that is read.

    Raises:
        BackupDamaged: The backup is damaged; the export then has no manifest.
        BackupFailed: The backup cannot be read, the export cannot be written, or the tenant has no
            rows.
    """
    backup = new_id(now_ms)
    parts = tuple(
        _part(place, manifest, part, backup=backup, tenant=tenant, into=into, passed=passed)
        for part in manifest.parts
    )
    if not any(part.counts.rows for part in parts):
        into.delete(backup)
        raise BackupFailed(
            f"{manifest.id} holds nothing of a tenant {tenant}; "
            f"codeq-cluster backup tenants {manifest.id} --in {place.where} lists those it holds"
        )
    exported = replace(manifest, id=backup, parts=parts, tenant=tenant)
    write_manifest(into, exported)
    return exported


def _part(
    place: BackupTarget,
    manifest: BackupManifest,
    part: Part,
    *,
    backup: str,
    tenant: str,
    into: BackupTarget,
    passed: Callable[[int], None],
) -> Part:
    tally, written = Counter[Family](), Written()
    one = OneTenant(tenant_name(tenant))

    def rows() -> Iterator[Row]:
        for row in one.passing(known_rows_of(place, manifest, part, passed=passed)):
            tally[keyspace.family(row[0])] += 1
            yield row

    into.write(backup, part.file, written.passing(encoded(rows())))
    return replace(part, size=written.size, blake2b=written.hexdigest(), counts=counts_of(tally))
