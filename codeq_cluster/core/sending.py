"""Sending: puts what an entry causes on another shard into the line to that shard."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.relays import Effect, Relay
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import FOLLOW_UPS_MAX
from codeq_cluster.core.view import View

# In the names of relays, behind the places of a result's follow-ups.
RUN_PLACE = FOLLOW_UPS_MAX
MEMBER_PLACE = FOLLOW_UPS_MAX + 1
EDGE_PLACE = FOLLOW_UPS_MAX + 2
NODE_PLACE = FOLLOW_UPS_MAX + 3


class Cause(NamedTuple):
    """An effect on another shard, with what causes it; see `Relay`."""

    id: str
    task_id: str
    shard: int
    effect: Effect


def sent(view: View, causes: Iterable[Cause]) -> list[ItemChange]:
    """Return the relays of a decision, each at the end of its line."""
    relays = [
        Relay(
            tenant=cause.effect.tenant,
            id=cause.id,
            task_id=cause.task_id,
            effect=cause.effect,
            to=cause.shard,
            number=view.next_seq(),
            created_ms=view.now_ms,
        )
        for cause in causes
    ]
    # A task that was deleted and imported again may end once more while its relay is still kept.
    return [
        ItemChange(before=view.item(ItemKind.RELAY, relay.tenant, relay.id), after=relay)
        for relay in relays
    ]


def sent_again(view: View, relay: Relay) -> ItemChange:
    """Put a relay at the end of its line: others may have overtaken it while it was set aside."""
    return ItemChange(before=relay, after=replace(relay, number=view.next_seq()))
