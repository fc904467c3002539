"""Tenant rows: selects one tenant's rows among those of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family


def tenant_name(shown: str) -> str:
    """Return a tenant's name from its shown form: `_` is the default tenant, whose name is ''."""
    return "" if shown == "_" else shown


class OneTenant:
    """Passes the rows of one tenant, from the rows of one shard, in which tasks come first.

    Args:
        tenant: Its name.
    """

    def __init__(self, tenant: str) -> None:
        self._tenant = tenant
        # A payload names only its task: 10 million ids x ~100 bytes are a gigabyte.
        self._tasks: set[bytes] = set()

    def passing(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the tenant's rows."""
        return (row for row in rows if self._is_of(row))

    def _is_of(self, row: Row) -> bool:
        key, value = row
        match keyspace.family(key):
            case Family.TASK:
                if records.decode_task(value).tenant != self._tenant:
                    return False
                self._tasks.add(_last(key))
                return True
            case Family.PAYLOAD | Family.RESULT:
                return _last(key) in self._tasks
            case Family.ITEM:
                return records.decode_item(value).tenant == self._tenant
            case _:
                return tenant_key(key)[0] == self._tenant


def tenant_of(row: Row) -> str | None:
    """Return the tenant of a row; None for a row that names only its task."""
    key, value = row
    match keyspace.family(key):
        case Family.TASK:
            return records.decode_task(value).tenant
        case Family.ITEM:
            return records.decode_item(value).tenant
        case Family.IDEMPOTENCY | Family.BODY:
            return tenant_key(key)[0]
        case _:
            return None


def _last(key: bytes) -> bytes:
    return key[key.rindex(b"/") + 1 :]
