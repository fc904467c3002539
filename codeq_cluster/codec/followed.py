"""Followed: the rows of an entry that others wait for or act on, and what rows schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import compress
from operator import itemgetter

from codeq_cluster.codec.key_parts import QUEUES_CACHED, tenant_name
from codeq_cluster.codec.keyspace import CODE, FAMILIES, ITEM_PREFIX, QUEUE_CODE, Family
from codeq_cluster.core.items import KIND_OF

_CODE_OF = itemgetter(CODE)  # Filters call it without a step of the interpreter.
_PENDING = b"/pending/"
_ITEM_CODE = b"it"
_KIND_AT = len(ITEM_PREFIX)
# The kinds of items that nodes keep in memory. Nobody follows the others, of which one entry may
# have thousands: edges of graphs, members of groups, lines of logs.
_KEPT = frozenset(
    kind.value.encode()
    for each, kind in KIND_OF.items()
    if each.is_known_everywhere or each.is_in_memory
)
# Most items are of other kinds, which their first letters tell without a call.
_LETTERS_AT = slice(_KIND_AT, _KIND_AT + 2)
_KEPT_LETTERS = frozenset(kind[:2] for kind in _KEPT)
# Nobody follows the other rows of a task than its result and its counters.
_FOLLOWED = {code: FAMILIES[code][1] for code in (b"re", b"st", b"it", b"ou", b"sc", b"fo")}
# Families whose rows hold an instant or an order, or keep one aside; see `scheduled`.
_SCHEDULED = {code: FAMILIES[code] for code in (b"le", b"tt", b"ex", b"st", b"it")}
_LOOKED_AT = _SCHEDULED.keys() | {QUEUE_CODE}


def followed_in(
    rows: Mapping[bytes, bytes | None],
) -> tuple[dict[bytes, bytes | None], set[Family]]:
    """Return those rows of an entry that others wait for, count or act on, and their families."""
    found: dict[bytes, bytes | None] = {}
    families: set[Family] = set()
    for key in compress(rows, map(_FOLLOWED.__contains__, map(_CODE_OF, rows))):
        code = key[CODE]
        if code == _ITEM_CODE and (key[_LETTERS_AT] not in _KEPT_LETTERS or not _is_kept(key)):
            continue
        found[key] = rows[key]
        families.add(_FOLLOWED[code])
    return found, families


def scheduled(rows: Mapping[bytes, bytes | None]) -> list[tuple[Family | tuple[str, str], bytes]]:
    """Return what rows schedule, each with its key; quicker than a `family` for every row.

    LEASE, TTL, EXPIRY, STATS or an ITEM that is kept in memory; for a READY task's place (queue,
    tenant).
    """
    found: list[tuple[Family | tuple[str, str], bytes]] = []
    for key in compress(rows, map(_LOOKED_AT.__contains__, map(_CODE_OF, rows))):
        code = key[CODE]
        if code == QUEUE_CODE:
            prefix, is_pending, _ = key.partition(_PENDING)
            place = _queue_at(prefix) or _queue_of_pending(key) if is_pending else None
            if place is not None:
                found.append((place, key))
            continue
        prefix, family = _SCHEDULED[code]
        if not key.startswith(prefix):
            continue
        if code == _ITEM_CODE and (key[_LETTERS_AT] not in _KEPT_LETTERS or not _is_kept(key)):
            continue
        found.append((family, key))
    return found


def _is_kept(key: bytes) -> bool:
    """Return whether nodes keep items of this kind in memory."""
    return key[_KIND_AT : key.index(b"/", _KIND_AT)] in _KEPT


@lru_cache(QUEUES_CACHED)
def _queue_at(prefix: bytes) -> tuple[str, str] | None:
    """Return (queue, tenant) from the common prefix of a queue's keys, or None."""
    parts = prefix.split(b"/")
    return (parts[2].decode(), tenant_name(parts[3])) if len(parts) == 4 else None


def _queue_of_pending(key: bytes) -> tuple[str, str] | None:
    """Return (queue, tenant) from a READY task's key, or None; either may be named like a place."""
    parts = key.split(b"/", 5)
    is_pending = len(parts) == 6 and parts[4] == b"pending"
    return (parts[2].decode(), tenant_name(parts[3])) if is_pending else None
