"""Tenant rows: selects one tenant's rows among those of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.relays import RelayLink

DEFAULT_TENANT = "_"  # The shown form of the default tenant, whose name is empty.


def tenant_name(shown: str) -> str:
    """Return a tenant's name from its shown form."""
    return "" if shown == DEFAULT_TENANT else shown


class OneTenant:
    """Passes the rows of one tenant, from the rows of one shard, in which tasks come first."""

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        # A payload names only its task: 10 million ids x ~100 bytes are a gigabyte.
        self._tasks: set[bytes] = set()

    def passing(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the tenant's rows."""
        return (row for row in rows if self._is_of(row))

    def _is_of(self, row: Row) -> bool:
        key = row[0]
        match keyspace.family(key):
            case Family.TASK:
                if tenant_of(row) != self._tenant:
                    return False
                self._tasks.add(last_part(key))
                return True
            case Family.PAYLOAD | Family.RESULT:
                return last_part(key) in self._tasks
            case Family.ITEM:
                return tenant_of(row) == self._tenant
            case Family.IDEMPOTENCY:
                # The key of a task that cannot be read stays behind with it.
                return tenant_key(key)[0] == self._tenant and _task_of(row) in self._tasks
            case _:
                return tenant_key(key)[0] == self._tenant


def tenant_of(row: Row) -> str | None:
    """Return the tenant of a row; None if it names only its task, is its shard's or unreadable."""
    key, value = row
    match keyspace.family(key):
        case Family.TASK | Family.ITEM as family:
            decode = records.decode_task if family is Family.TASK else records.decode_item
            try:
                record = decode(value)
                return None if isinstance(record, RelayLink) else record.tenant
            except records.RecordInvalid:
                return None
        case Family.IDEMPOTENCY | Family.BODY:
            return tenant_key(key)[0]
        case _:
            return None


def _task_of(row: Row) -> bytes | None:
    try:
        return records.decode_key_row(row[1]).task_id.encode()
    except records.RecordInvalid:
        return None


def last_part(key: bytes) -> bytes:
    """Return what follows the last slash of a key: the id of a task, or of a row beside it."""
    return key[key.rindex(b"/") + 1 :]
