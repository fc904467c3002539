"""Relays: what an entry of one shard causes on another.

The relay is in the entry that causes it, so neither exists without the other. The shard's leader
sends it until the other shard has it. Relays from one shard to another are numbered, and the other
shard keeps the last number that it has with the effect. So a relay that is sent twice acts once,
whatever has become of its effect since.
"""

from __future__ import annotations

import re
from typing import Annotated, TypeAlias

from msgspec import Struct

from codeq_cluster.core.bounds import (
    SEQ_MAX,
    TASK_ID,
    Id,
    Instant,
    Name,
    Owner,
    Seq,
    sound,
    that,
    whole,
)
from codeq_cluster.core.crossing import Crossing
from codeq_cluster.core.dependencies import Need, Resolve, Watch, sound_needs
from codeq_cluster.core.groups import MemberEnded, NewMember
from codeq_cluster.core.lane import FlowRule
from codeq_cluster.core.new_task import Create, sound_create
from codeq_cluster.core.schedules import RunEnded
from codeq_cluster.core.sharding import SHARDS_MAX, shard_of
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.task import More

# How long a relay is kept after the other shard has it. A backup copies one shard after the other:
# if one copy lacks what a relay has done, a restore sends it again from the other copy.
KEPT_MS = 600_000

_RELAY_ID = re.compile(rf"{TASK_ID.pattern}\.[0-9]{{1,19}}\.[0-9]{{1,3}}")
_LINK_ID = re.compile(r"(to|from)\.[0-9]{1,3}")
_Shard: TypeAlias = Annotated[int, whole(0, SHARDS_MAX - 1)]


class RelayedTask(Crossing, frozen=True, array_like=True, tag="task"):
    """A new task, what it has of its cause, and what it is to wait for."""

    create: Create
    more: More
    needs: tuple[Need, ...] = ()

    @property
    def tenant(self) -> str:
        """Return whose it is."""
        return self.create.tenant

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        ended = (each.ended.size for each in self.needs if each.ended is not None)
        return len(self.create.payload) + sum(ended)

    @property
    def fault(self) -> str:
        """Return which rule a field breaks, or ""."""
        return sound_create(self.create) or sound(self.more) or sound_needs(self.needs)

    def home(self, shards: int) -> int:
        """Return the shard it belongs on, of as many as there were when it got its id."""
        return shard_of(self.create.id, shards)


class RelayedCancel(Crossing, frozen=True, array_like=True, tag="cancel_run"):
    """The end of a run in whose place another one begins, or of a member of a cancelled group."""

    tenant: Owner
    task_id: Id
    request: Name

    def home(self, shards: int) -> int:
        """Return the shard of the task, of so many."""
        return shard_of(self.task_id, shards)


Effect: TypeAlias = (
    RelayedTask | RunEnded | RelayedCancel | FlowRule | MemberEnded | NewMember | Watch | Resolve
)


def _sound_effect(value: object) -> str:
    assert isinstance(value, Effect)
    return value.fault


class Relay(StoredItem, frozen=True, array_like=True, tag="relay", kw_only=True):
    """An effect on its way to another shard.

    Attributes:
        id: Its cause: the ended task's id, the number of the ending, and the place in `next`; or
            the queue whose rule it is, the rule's number and the shard.
        task_id: The ended task, or what stands for the queue.
        effect: What the other shard does.
        to: The other shard, in this cluster.
        number: Its place in the line to that shard; drawn like a place in the ready order, so it
            grows with time even over a loss of the log's end.
        taken_ms: When the other shard had it; 0 before.
        expires_ms: When it is deleted; 0 before it is taken.
    """

    place = Place.TASK

    tenant: Owner
    id: Annotated[str, that(_RELAY_ID.fullmatch, "a task's id, a number and a number")]
    task_id: Id
    effect: Annotated[Effect, _sound_effect]
    to: _Shard
    number: Annotated[int, whole(1, SEQ_MAX)]
    created_ms: Instant
    taken_ms: Instant = 0
    expires_ms: Instant = 0

    @property
    def sent_as(self) -> tuple[int, int] | None:
        """Return (shard, number) while it waits in the line to the other shard."""
        return None if self.taken_ms else (self.to, self.number)

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        if self.id.partition(".")[0] != self.task_id:
            return "id: must begin with its task's"
        if bool(self.taken_ms) != bool(self.expires_ms):
            return "expires_ms: must be set if it is taken, and only then"
        return "effect: must be of its tenant" if self.effect.tenant != self.tenant else ""


class RelayLink(StoredItem, frozen=True, array_like=True, tag="link", kw_only=True):
    """How far the relays to or from another shard have come; the shard's own, of no tenant.

    Attributes:
        id: `to.<shard>` or `from.<shard>`.
        number: Of the last relay that the other shard has, or that has acted here.
        recalled_ms: Since when relays behind `number` are being recalled, because the other shard
            has lost them; 0 for never.
    """

    place = Place.ORIGIN

    tenant: Owner = ""
    id: Annotated[str, that(_LINK_ID.fullmatch, "to or from, a dot and a shard")]
    number: Seq = 0
    recalled_ms: Instant = 0


class Relayed(Struct, frozen=True, array_like=True):
    """One relay, as it is sent; see `Relay`.

    Attributes:
        at_ms: When it was caused, by the other shard's clock.
    """

    number: int
    effect: Effect
    at_ms: int = 0


def relayed(relay: Relay) -> Relayed:
    """Return a relay as it is sent."""
    return Relayed(relay.number, relay.effect, relay.created_ms)


class TakeRelays(Struct, frozen=True, array_like=True, tag="take_relays", kw_only=True):
    """Do what another shard asks for, each relay once; the other shard's leader sends it.

    Attributes:
        after: This shard has every relay up to this number.
        relays: In the order of their numbers.
    """

    origin: int
    after: int
    relays: tuple[Relayed, ...]


class RelaysTaken(Struct, frozen=True, array_like=True, tag="relays_taken", kw_only=True):
    """Another shard has these relays; the leader's own operation.

    Attributes:
        number: Of the last one.
        relays: The tenant, the id and the number of each.
    """

    to: int
    number: int
    relays: tuple[tuple[str, str, int], ...]


class RelaysMissed(Struct, frozen=True, array_like=True, tag="relays_missed", kw_only=True):
    """Another shard lacks relays that it had; the leader's own operation.

    A cluster that was recovered from one node, or that synced no writes, may have lost the end of
    a log.

    Attributes:
        number: The last relay that it has.
        relays: Tenant and id of some of those behind that, to be sent again if they are kept.
        done: These are the last ones; until then nothing is sent to that shard.
    """

    to: int
    number: int
    relays: tuple[tuple[str, str], ...] = ()
    done: bool = False


RelayOperation = TakeRelays | RelaysTaken | RelaysMissed
