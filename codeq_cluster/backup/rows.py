"""Rows: which rows of a shard a backup holds.

Primary rows hold the data. All other rows and the counters follow from them, and a restore makes
them again. What is set aside is no exception: it is due again after a restore.
A shard's numbers about itself are in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import astuple

from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.items import KIND_OF
from codeq_cluster.storage.stored_shard import StoredShard

Row = tuple[bytes, bytes]

# Tasks come first: other rows name only their task, whose tenant must be known by then.
PRIMARY = {
    Family.TASK: keyspace.TASK_PREFIX,
    Family.PAYLOAD: keyspace.PAYLOAD_PREFIX,
    Family.RESULT: keyspace.RESULT_PREFIX,
    Family.IDEMPOTENCY: keyspace.IDEMPOTENCY_PREFIX,
    Family.ITEM: keyspace.ITEM_PREFIX,
    Family.BODY: keyspace.BODY_PREFIX,
}

CLOCK = keyspace.meta("clock")
_LEFT_OUT = tuple(
    keyspace.item_prefix(kind) for each, kind in KIND_OF.items() if not each.is_restored
)
SEQ = keyspace.meta("seq")


class Counts(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many rows of each family there are."""

    tasks: int = 0
    payloads: int = 0
    results: int = 0
    idempotency_keys: int = 0
    items: int = 0
    bodies: int = 0

    @property
    def rows(self) -> int:
        """Return the total."""
        return sum(astuple(self))


_COUNTED = {
    Family.TASK: "tasks",
    Family.PAYLOAD: "payloads",
    Family.RESULT: "results",
    Family.IDEMPOTENCY: "idempotency_keys",
    Family.ITEM: "items",
    Family.BODY: "bodies",
}


def counts_of(tally: Mapping[Family, int]) -> Counts:
    """Return the counts of rows that were counted by their families."""
    return Counts(**{name: tally.get(family, 0) for family, name in _COUNTED.items()})


def primary_rows(stored: StoredShard) -> Iterator[Row]:
    """Yield every primary row of a shard, family by family in the order of `PRIMARY`."""
    for prefix in PRIMARY.values():
        for row in stored.rows(*keyspace.prefix_range(prefix)):
            if not row[0].startswith(_LEFT_OUT):
                yield row


def number(stored: StoredShard, key: bytes) -> int:
    """Return a number that the shard keeps about itself; 0 if it has none."""
    value = stored.get(key)
    return 0 if value is None else int.from_bytes(value)


def tenant_key(key: bytes) -> tuple[str, str]:
    """Return (tenant, rest) of the key of an idempotency row or of a body."""
    prefix = PRIMARY[keyspace.family(key)]
    tenant, _, rest = key[len(prefix) :].decode().partition("/")
    return "" if tenant == "_" else tenant, rest
