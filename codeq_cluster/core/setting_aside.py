"""Setting aside: what the broker fails at waits for an operator, and its neighbours go on.

A thing that is set aside has no row in the time index; its `Aside` keeps the row's key. Any change
of the thing ends that, because a change writes the rows of its time again.
"""

from __future__ import annotations

from collections.abc import Iterator

from codeq_cluster.core.changes import Change, Decision, ItemChange
from codeq_cluster.core.items import (
    KIND_OF,
    NO_OWNER,
    REASON_CHARS_MAX,
    TASK,
    Aside,
    SetAside,
    aside_id,
)
from codeq_cluster.core.operations import Retry
from codeq_cluster.core.outcomes import Changed
from codeq_cluster.core.relays import Relay
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sending import sent_again
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task
from codeq_cluster.core.view import View


def set_aside(view: View, operation: SetAside, _: LifetimeRules) -> Decision:
    """Take the timer out of the index and keep it with the reason."""
    aside = Aside(
        tenant=operation.tenant,
        id=aside_id(operation.kind, operation.subject),
        timer=operation.timer,
        reason=operation.reason[:REASON_CHARS_MAX],
        since_ms=view.now_ms,
    )
    before = view.item(ItemKind.ASIDE, aside.tenant, aside.id)
    return Decision(Changed(1), (ItemChange(before=before, after=aside),))


def retry(view: View, operation: Retry, _: LifetimeRules) -> Decision:
    """Put the timers back, so that what they are for is due again."""
    found = [
        view.item(ItemKind.ASIDE, operation.tenant, each) for each in dict.fromkeys(operation.ids)
    ]
    asides = [each for each in found if isinstance(each, Aside)]
    changes = tuple(_due_again(view, aside) for aside in asides)
    return Decision(Changed(len(asides)), changes)


def _due_again(view: View, aside: Aside) -> ItemChange:
    if aside.kind == ItemKind.RELAY:
        relay = view.item(ItemKind.RELAY, aside.tenant, aside.subject)
        if isinstance(relay, Relay):
            return sent_again(view, relay)  # This change ends the aside.
    return ItemChange(before=aside, after=None)


def ended(view: View, changes: tuple[Change, ...]) -> Iterator[ItemChange]:
    """Yield the end of every aside whose thing these changes change; call it if there are any."""
    for change in changes:
        thing = change.before
        if thing is None or isinstance(thing, Aside):
            continue
        kind = TASK if isinstance(thing, Task) else KIND_OF[type(thing)]
        for tenant in (thing.tenant, NO_OWNER):
            name = tenant, aside_id(kind, thing.id)
            aside = view.item(ItemKind.ASIDE, *name) if name in view.asides else None
            if aside is not None:
                yield ItemChange(before=aside, after=None)
