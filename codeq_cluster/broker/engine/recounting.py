"""Recounting: counters of queues whose rows cannot be read, from the tasks of their shard."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.scanning import every_row
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.mutations import Recount

log = logging.getLogger(__name__)

_Row = tuple[bytes, bytes]


class Recounted:
    """Rows of counters in place of those that cannot be read, the same for each view of a state.

    A queue's row is written again when its counters change, and until then the count holds. So a
    state is read for it once, not at every change of its leader.

    Args:
        failed: Called for each row that cannot be read.
    """

    def __init__(self, store: StateStore, *, shard: int, failed: Callable[[], None]) -> None:
        self._store = store
        self._shard = shard
        self._failed = failed
        self._known: dict[_Row, bytes | None] = {}  # By the row that cannot be read.

    def forget(self) -> None:
        """Forget every count: another state has replaced the one that was read."""
        self._known.clear()

    def rows(self, damaged: Collection[_Row]) -> dict[bytes, bytes | None]:
        """Return by key what each of these rows should hold, None for a queue without tasks."""
        if not self._known.keys() >= set(damaged):
            self._count(damaged)
        return {row[0]: self._known[row] for row in damaged}

    def _count(self, damaged: Collection[_Row]) -> None:
        recount = Recount()
        for _, record in every_row(self._store, *keyspace.prefix_range(keyspace.TASK_PREFIX)):
            try:
                recount.add(records.decode_task(record))
            except records.RecordInvalid:
                continue
        rows = recount.rows()
        self._known = {row: rows.get(row[0]) for row in damaged}
        for key, _ in damaged:
            queue, tenant = keyspace.stats_parts(key)
            extra = {"shard": self._shard, "queue": queue, "tenant": tenant}
            log.error("counters cannot be read: counted again", extra=extra)
            self._failed()
