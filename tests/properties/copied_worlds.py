"""Copied worlds: clusters whose shards are backed up one after the other while relays go round."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from itertools import groupby
from typing import ClassVar, Self

from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core import relaying
from codeq_cluster.core.changes import Change, ItemChange, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.relays import Relay, RelayLink, RelaysTaken, TakeRelays, relayed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from tests.fakes.dict_view import DictView

from .backup_worlds import RULES, World
from .rows import Rows

SEQ_MAX = 10_000


class CopiedWorld(World, ABC):
    """A world whose shards are copied in turn.

    Attributes:
        copies: The rows of each shard that is copied already.
    """

    rules: ClassVar[LifetimeRules] = RULES

    def __init__(self, shards: int, seed: int) -> None:
        super().__init__(shards, seed)
        self.copies: dict[int, Rows] = {}

    @abstractmethod
    def live(self, steps: int) -> None:
        """Run random operations."""

    def live_through_a_backup(self, steps: int) -> None:
        """Run random operations; copy one shard after the other meanwhile."""
        self.live(steps)
        for shard in self.random.sample(range(self.shards), self.shards):
            self.copies[shard] = super().rows()[shard]
            self.live(steps)

    def rows(self) -> list[Rows]:
        """Return the copies."""
        return [self.copies[shard] for shard in range(self.shards)]

    def send(self, _: str, *, is_heard: bool = False) -> bool:
        """Send every line; now and then, an answer is lost. Return whether there was any."""
        found = False
        for origin, view in enumerate(self.views):
            waiting = sorted(
                (each for each in view.items.values() if isinstance(each, Relay) and each.sent_as),
                key=lambda each: (each.to, each.number),
            )
            for to, line in groupby(waiting, key=lambda each: each.to):
                found = True
                batch = list(line)[: relaying.RELAYS_MAX]
                link = view.item(ItemKind.RELAY_LINK, "", f"to.{to}")
                after = link.number if isinstance(link, RelayLink) else 0
                sent = tuple(map(relayed, batch))
                self.ask(to, TakeRelays(origin=origin, after=after, relays=sent))
                if is_heard or self.random.random() < 0.7:
                    names = tuple((each.tenant, each.id, each.number) for each in batch)
                    self.ask(origin, RelaysTaken(to=to, number=batch[-1].number, relays=names))
        return found

    def ask(self, shard: int, operation: Operation) -> Outcome:
        """Let a shard decide."""
        view = self.views[shard]
        decision = decide(view, operation, dataclasses.replace(self.rules, shards=self.shards))
        view.advance(decision.changes)
        self.note(decision.changes)
        return decision.outcome

    def note(self, changes: tuple[Change, ...]) -> None:
        """Look at what a decision has changed."""

    def _ask(self, shard: int, operation: Operation) -> None:
        self.ask(shard, operation)

    @classmethod
    def grown(cls, rows: list[Rows], seed: int) -> Self:
        """Return the cluster that begins with these rows."""
        world = cls(len(rows), seed)
        for view, shard in zip(world.views, rows, strict=True):
            _grow(view, shard)
        return world


def _grow(view: DictView, rows: Rows) -> None:
    for key, value in rows.items():
        match keyspace.family(key):
            case Family.ITEM:
                view.advance([ItemChange(before=None, after=records.decode_item(value))])
            case Family.TASK:
                task = records.decode_task(value)
                result = rows.get(keyspace.result(task.id))
                change = TaskChange(
                    before=None,
                    after=task,
                    payload=rows[keyspace.payload(task.id)].decode(),
                    fingerprint="f" if task.idempotency_key else "",
                    result=None if result is None else records.decode_result(result),
                )
                view.advance([change])
    while view.next_seq() < SEQ_MAX:  # Relays are numbered by it, above those of the restore.
        pass
