"""Browsing: lists over all shards, in pages that a cursor connects.

A position places a row in the list the same way on every shard. A page is the merge of every
shard's next rows, up to the point that all of them have read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.questions import (
    Browse,
    BrowseDelayed,
    BrowseIds,
    BrowseTags,
    ListItems,
    Question,
)
from codeq_cluster.core.import_record import joined
from codeq_cluster.core.items import Audit, Item
from codeq_cluster.core.task import Task

_P = TypeVar("_P")
_R = TypeVar("_R")

Rows = list[tuple[bytes, _R]]


class Browser:
    """Reads lists; each shard's part is current, but the parts are not of one instant."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def tasks(
        self, asked: Browse | BrowseDelayed | BrowseIds | BrowseTags, *, deadline: float
    ) -> tuple[Rows[Task], bytes]:
        """Return the next tasks and where to go on; `END` when there are no more.

        A page may be short or empty although more pages follow: rows that a filter drops count as
        read.
        """
        pages = await every_shards(self._shards, asked, deadline=deadline)
        return _merged([(page.rows, page.edge) for page in pages], asked.count)

    async def items(self, asked: ListItems, *, deadline: float) -> tuple[Rows[Item], bytes]:
        """Return the next items and where to go on; `END` when there are no more."""
        pages = await every_shards(self._shards, asked, deadline=deadline)
        records: dict[bytes, list[Audit]] = {}
        for page in pages:
            for position, item in page.rows:
                if isinstance(item, Audit):
                    records.setdefault(position, []).append(item)
        rows, edge = _merged([(page.rows, page.edge) for page in pages], asked.count)
        # An import has a record of the same id on each shard; up to the edge all of them are read.
        return [
            (position, joined(same) if len(same := records.get(position, ())) > 1 else item)
            for position, item in dict(rows).items()
        ], edge


async def every_shards(shards: Shards, asked: Question[_P], *, deadline: float) -> list[_P]:
    """Return the answer of every shard, in their order."""
    asking = (shards.ask(shard, asked, deadline=deadline) for shard in range(shards.count))
    return await asyncio.gather(*asking)


def _merged(
    pages: Sequence[tuple[Sequence[tuple[bytes, _R]], bytes]], count: int
) -> tuple[Rows[_R], bytes]:
    edge = min(edge for _, edge in pages)
    rows = sorted(
        (row for page, _ in pages for row in page if row[0] <= edge), key=lambda row: row[0]
    )
    if len(rows) > count:
        return rows[:count], rows[count - 1][0]
    return rows, edge
