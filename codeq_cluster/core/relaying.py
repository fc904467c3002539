"""Relaying: the numbers of relays, on the shard they come from and on the one they go to."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from codeq_cluster.core.cancelling import cancel_change
from codeq_cluster.core.changes import Change, Decision, ItemChange, TaskChange
from codeq_cluster.core.courses import Courses, status_of
from codeq_cluster.core.creating import OnceNames, made
from codeq_cluster.core.dependencies import SENT_GRACE_MS, Need, Resolve, Watch
from codeq_cluster.core.depending import Dependents
from codeq_cluster.core.firing import ends
from codeq_cluster.core.gating import in_force
from codeq_cluster.core.groups import NOT_MADE, MemberEnded, NewMember
from codeq_cluster.core.lane import FlowRule
from codeq_cluster.core.outcomes import Changed, Taken
from codeq_cluster.core.placing import once_name
from codeq_cluster.core.relays import (
    KEPT_MS,
    Relay,
    Relayed,
    RelayedCancel,
    RelayedTask,
    RelayLink,
    RelaysMissed,
    RelaysTaken,
    TakeRelays,
)
from codeq_cluster.core.rolls import Rolls
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.schedules import RunEnded
from codeq_cluster.core.sending import MEMBER_PLACE, RUN_PLACE, Cause, sent
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Membership, Run, State
from codeq_cluster.core.transitions import CANCELLED
from codeq_cluster.core.view import View

# What one entry takes of another shard: each relay is about as much work as a create.
RELAYS_MAX = 64
RELAYS_BYTES_MAX = 2**20


def take(view: View, operation: TakeRelays, rules: LifetimeRules) -> Decision:
    """Do what is new, and keep its number with it; with a gap before it, do nothing."""
    assert len(operation.relays) <= RELAYS_MAX
    link, last = _link(view, f"from.{operation.origin}")
    new = [relayed for relayed in operation.relays if relayed.number > last.number]
    if not new or operation.after > last.number:
        return Decision(Taken(last.number))
    taking = _Taking(view, rules)
    for relayed in new:
        taking.take(relayed)
    after = replace(last, number=new[-1].number)
    link_change = ItemChange(before=link, after=after)
    return Decision(Taken(after.number), (*taking.changes(), link_change))


class _Taking:
    """The effects of one batch of relays."""

    def __init__(self, view: View, rules: LifetimeRules) -> None:
        self._view = view
        self._rules = rules
        self._made: dict[str, TaskChange] = {}  # By task; none of them is in the view.
        self._keys: OnceNames = set()  # Of all tasks that the batch makes, members included.
        self._flows: dict[tuple[str, str], FlowRule] = {}  # By queue, the last of the batch.
        self._cancelled: dict[str, TaskChange] = {}
        self._answers: list[Cause] = []
        self._courses = Courses(view, rules)
        self._rolls = Rolls(view, rules, keys=self._keys)
        self._along_edges: list[Watch | Resolve] = []
        self._waiting: dict[str, tuple[Need, ...]] = {}  # By task that is made here.

    def take(self, relayed: Relayed) -> None:
        """Do what one relay says."""
        effect = relayed.effect
        match effect:
            case RunEnded():
                self._courses.ended(effect)
            case FlowRule():
                self._flows[effect.tenant, effect.queue] = effect
            case MemberEnded():
                self._rolls.ended(effect)
            case NewMember():
                self._rolls.joined(effect)
            case RelayedCancel():
                self._cancel(effect)
            case RelayedTask():
                self._make(effect, caused_ms=relayed.at_ms)
            case Watch() | Resolve():
                self._along_edges.append(effect)

    def changes(self) -> Iterator[Change]:
        """Yield what the batch changes."""
        if not self._along_edges and not self._waiting:
            yield from self._all_others()
            return
        # Last: they may be of tasks that the batch itself makes or ends.
        dependents = Dependents(self._view, self._rules, self._all_others())
        for task_id, needs in self._waiting.items():
            dependents.begin(task_id, needs, grace_ms=self._view.now_ms + SENT_GRACE_MS)
        for effect in self._along_edges:
            dependents.relayed(effect)
        yield from dependents.changes()

    def _all_others(self) -> Iterator[Change]:
        yield from self._made.values()
        yield from self._cancelled.values()
        # A restored shard may have relays for itself, and both may be of one schedule.
        yield from ends(self._view, self._cancelled.values(), self._rules, courses=self._courses)
        yield from self._rolls.changes
        for rule in self._flows.values():
            yield from in_force(self._view, rule)
        yield from sent(self._view, self._answers)

    def _make(self, effect: RelayedTask, *, caused_ms: int) -> None:
        create, more = effect.create, effect.more
        if create.id in self._made:
            return
        change = made(
            self._view, create, self._rules, more=more, caused_ms=caused_ms, keys=self._keys
        )
        if change is not None:
            self._made[create.id] = change
            if effect.needs:
                self._waiting[create.id] = effect.needs
        elif more.run is not None:
            self._answer(create.id, more.run)
        elif more.member is not None and self._view.task(create.id) is None:
            self._never_begins(create.id, create.tenant, more.member, NOT_MADE)

    def _answer(self, task_id: str, run: Run) -> None:
        """Report the end of a run whose task is here already: it will not report it again.

        One that an operator has revived was dead.
        """
        task = self._view.task(task_id)
        if task is not None and task.endings:
            status = status_of(task) if task.state.terminal else State.DEAD.name
            end = RunEnded(tenant=task.tenant, run=run, status=status, ended_ms=task.updated_ms)
            name = f"{task_id}.0.{RUN_PLACE}"
            self._answers.append(Cause(name, task_id, end.home(self._rules.shards), end))

    def _never_begins(self, task_id: str, tenant: str, member: Membership, status: str) -> None:
        """Tell a group that there is no task of its member."""
        end = MemberEnded(
            tenant=tenant,
            member=member,
            task_id=task_id,
            status=status,
            ended_ms=self._view.now_ms,
        )
        name = f"{task_id}.0.{MEMBER_PLACE}"
        self._answers.append(Cause(name, task_id, end.home(self._rules.shards), end))

    def _cancel(self, effect: RelayedCancel) -> None:
        """End a run; if its task comes in the same batch, there is nothing to make."""
        begun = self._made.pop(effect.task_id, None)
        if begun is not None:
            assert begun.after is not None
            self._keys.discard((begun.after.tenant, once_name(begun.after)))
            more = begun.after.more
            if more is not None and more.member is not None:
                self._never_begins(effect.task_id, effect.tenant, more.member, CANCELLED)
            return
        task = self._view.task(effect.task_id)
        if task is not None and task.tenant == effect.tenant and not task.state.terminal:
            self._cancelled[task.id] = cancel_change(
                self._view, task, self._rules, request=effect.request
            )


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
