"""Relaying: the numbers of relays, on the shard they come from and on the one they go to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from msgspec.structs import replace

from codeq_cluster.core.changes import Change, Decision, ItemChange
from codeq_cluster.core.courses import Courses
from codeq_cluster.core.creating import made
from codeq_cluster.core.lane import FlowRule
from codeq_cluster.core.lanes import in_force
from codeq_cluster.core.outcomes import Changed, Taken
from codeq_cluster.core.relays import (
    KEPT_MS,
    Effect,
    Relay,
    RelayLink,
    RelaysMissed,
    RelaysTaken,
    TakeRelays,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import RunEnded
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.view import View

# What one entry takes of another shard: each relay is about as much work as a create.
RELAYS_MAX = 64
RELAYS_BYTES_MAX = 2**20


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


def take(view: View, operation: TakeRelays, rules: LifetimeRules) -> Decision:
    """Do what is new, and keep its number with it; with a gap before it, do nothing."""
    assert len(operation.relays) <= RELAYS_MAX
    link, last = _link(view, f"from.{operation.origin}")
    new = [relayed for relayed in operation.relays if relayed.number > last.number]
    if not new or operation.after > last.number:
        return Decision(Taken(last.number))
    changes: list[Change] = []
    keys: set[tuple[str, str]] = set()
    rules_of_keys: dict[tuple[str, str], FlowRule] = {}  # By queue, the last of this batch.
    courses = Courses(view, rules)
    for relayed in new:
        effect = relayed.effect
        if isinstance(effect, RunEnded):
            courses.ended(effect)
            continue
        if isinstance(effect, FlowRule):
            rules_of_keys[effect.tenant, effect.queue] = effect
            continue
        create = effect.create
        key = create.tenant, create.idempotency_key
        if key in keys:
            continue
        if create.idempotency_key:
            keys.add(key)
        change = made(view, create, rules, more=effect.more, caused_ms=relayed.at_ms)
        if change is not None:
            changes.append(change)
    changes += courses.changes
    for rule in rules_of_keys.values():
        changes += in_force(view, rule)
    after = replace(last, number=new[-1].number)
    return Decision(Taken(after.number), (*changes, ItemChange(before=link, after=after)))


def taken(view: View, operation: RelaysTaken, _: LifetimeRules) -> Decision:
    """Send them no more, and keep them for a while; see `KEPT_MS`."""
    changes: list[Change] = []
    for tenant, relay_id, number in operation.relays:
        relay = view.item(ItemKind.RELAY, tenant, relay_id)
        if isinstance(relay, Relay) and relay.number == number and not relay.taken_ms:
            now_ms = view.now_ms
            after = replace(relay, taken_ms=now_ms, expires_ms=now_ms + KEPT_MS)
            changes.append(ItemChange(before=relay, after=after))
    link, last = _link(view, f"to.{operation.to}")
    if operation.number > last.number:
        changes.append(ItemChange(before=link, after=replace(last, number=operation.number)))
    return Decision(Changed(len(operation.relays)), tuple(changes))


def missed(view: View, operation: RelaysMissed, _: LifetimeRules) -> Decision:
    """Put relays back into the line; from the first call on it begins behind `number` again."""
    changes: list[Change] = []
    for tenant, relay_id in operation.relays:
        relay = view.item(ItemKind.RELAY, tenant, relay_id)
        if isinstance(relay, Relay) and relay.taken_ms and relay.number > operation.number:
            changes.append(ItemChange(before=relay, after=replace(relay, taken_ms=0, expires_ms=0)))
    link, last = _link(view, f"to.{operation.to}")
    recalled_ms = 0 if operation.done else last.recalled_ms or view.now_ms
    after = replace(last, number=min(last.number, operation.number), recalled_ms=recalled_ms)
    if after != last:
        changes.append(ItemChange(before=link, after=after))
    return Decision(Changed(len(operation.relays)), tuple(changes))


def _link(view: View, link_id: str) -> tuple[RelayLink | None, RelayLink]:
    """Return the link as it is stored, and as it is for a shard that has none yet."""
    found = view.item(ItemKind.RELAY_LINK, "", link_id)
    assert found is None or isinstance(found, RelayLink)
    return found, found or RelayLink(id=link_id)
