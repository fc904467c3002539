"""Lane: what the tasks of one queue that have one key are doing, and the rule they follow."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.core.bounds import (
    IdOrNone,
    Instant,
    Number,
    Owner,
    QueueOrNone,
    Scope,
    ScopeOrNone,
    Seq,
    that,
)
from codeq_cluster.core.crossing import Crossing
from codeq_cluster.core.gate import PerQueueOrNone
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.task import LaneKey, State, Task

RUNNING_MAX = 10_000  # The largest bound that a rule may set.
WEIGHT_MAX = 16  # Turns of a key: a decision makes at most so many of its tasks ready.
KEY_RULES_MAX = 10_000  # Keys of a tenant with rules of their own, on each shard.

# A tenant's queues and limits that have rules, those whose rules ended within `OVER_MS`, and pinned
# queues. Each is a row on every shard, and there about 500 bytes of memory if it is in force or
# pinned, else 150. Topics and limits have 2000 of them at most.
FLOWS_MAX = 5000
# How long a shard remembers that rules have ended. No request and no relay brings older ones later.
OVER_MS = 24 * 3600 * 1000

_LANES_CACHED = 4096  # x about 200 bytes; a decision uses its task's lane several times.
_LAST_LANE = "f" * 32
_LANE_ID = re.compile(r"[a-z0-9._:-]{1,128}@[0-9a-f]{32}")


class Order(StrEnum):
    """Which task of a key goes next: by priority, or the one that could run first."""

    PRIORITY = "priority"
    FIFO = "fifo"


class OnRetry(StrEnum):
    """Whether a task that is given back keeps its place of the key, or lets others pass."""

    HOLD = "hold"
    YIELD = "yield"


class WhenDead(StrEnum):
    """Whether a dead letter lets the next task of its key go, or stops the key."""

    NEXT = "next"
    STOP = "stop"


class PerKey(Struct, frozen=True, array_like=True, kw_only=True):
    """The rule of each key of a queue.

    Attributes:
        max_running: Tasks of one key in progress at once.
        rate: How often tasks of one key may be claimed; None for no limit.
    """

    max_running: int = 1
    order: Order = Order.PRIORITY
    on_retry: OnRetry = OnRetry.HOLD
    when_dead: WhenDead = WhenDead.NEXT
    rate: Rate | None = None

    @property
    def is_sound(self) -> bool:
        """Whether a broker could have taken every value."""
        in_bounds = 1 <= self.max_running <= RUNNING_MAX
        return in_bounds and (self.rate is None or self.rate.is_sound)


class OwnRule(Struct, frozen=True, array_like=True, kw_only=True):
    """What one key has of its own, beside the rule of its queue's keys.

    Attributes:
        max_running: In place of the queue's; 0 for that one.
        rate: In place of the queue's; None for that one.
        weight: Tasks of the key that may be ready at once, while it has no rate; so its share of
            the turns.
        paused: Nothing of the key goes.
    """

    max_running: int = 0
    rate: Rate | None = None
    weight: int = 1
    paused: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether a broker could have taken every value."""
        in_bounds = 0 <= self.max_running <= RUNNING_MAX and 1 <= self.weight <= WEIGHT_MAX
        return in_bounds and (self.rate is None or self.rate.is_sound)

    def over(self, rule: PerKey) -> PerKey:
        """Return the rule that the key follows."""
        most = self.max_running or rule.max_running
        return replace(rule, max_running=most, rate=self.rate or rule.rate)


def _sound_or_none(value: object) -> str:
    assert value is None or isinstance(value, PerKey | OwnRule)
    return "" if value is None or value.is_sound else "must be a rule within its bounds"


PerKeyOrNone = Annotated[PerKey | None, _sound_or_none]
OwnRuleOrNone = Annotated[OwnRule | None, _sound_or_none]


class FlowRule(Crossing, frozen=True, array_like=True, tag="flow"):
    """The rules of a queue and of its keys, or of a limit, for one shard, on their way there.

    Attributes:
        queue: The queue, or the limit's scope.
        seq: When they were put; older ones than those in force change nothing.
        pinned, limit: See `Flow`.
    """

    tenant: Owner
    queue: Scope
    seq: Seq
    per_key: PerKeyOrNone
    shard: Number
    per_queue: PerQueueOrNone = None
    pinned: ScopeOrNone = ""
    limit: QueueOrNone = ""

    def home(self, shards: int) -> int:
        """Return the shard it is for, of so many."""
        return self.shard % shards


class SetFlow(Struct, frozen=True, array_like=True, tag="set_flow"):
    """Put the rules of a queue and its keys in force on this shard."""

    rule: FlowRule


class SetKey(Struct, frozen=True, array_like=True, tag="set_key", kw_only=True):
    """Give a key a rule of its own, another one, or none; on the shard of the key."""

    request: str
    tenant: str
    queue: str
    key: str
    own: OwnRule | None
    by: str


KeyOperation = SetFlow | SetKey


class Flow(StoredItem, frozen=True, array_like=True, tag="flow", kw_only=True):
    """The rules of a queue and its keys, or of a limit, in force on this shard.

    They come from its topic, or from its `Limit`.

    Attributes:
        id: The queue, or the limit's scope.
        seq: When the rules were put; older ones change nothing.
        per_key: None once the topic has no rule any more.
        per_queue: None without a rule of all the queue's tasks together.
        pinned: The scope that places the queue, since it has or had such a rule or a limit: its new
            tasks are all on the shard of that, whatever keys they have. It never changes, or a
            task's idempotency key would be looked for on the wrong shard.
        limit: The limit that the queue shares with others; empty for none.
        walked: The lanes up to this one follow the rule; empty for none, or for all.
        expires_ms: When the walk over the lanes goes on; 0 once all of them follow the rule. Once
            all of them follow the end of the rules, when the row is deleted; it stays until then,
            so that an older rule that comes late changes nothing.
    """

    place = Place.ORIGIN
    is_in_memory = True
    is_restored = False

    tenant: Owner
    id: Scope
    seq: Seq
    per_key: PerKeyOrNone = None
    walked: Annotated[str, that(re.compile(r"[0-9a-f]{32}").fullmatch, "a lane", empty=True)] = ""
    expires_ms: Instant = 0
    per_queue: PerQueueOrNone = None
    pinned: ScopeOrNone = ""
    limit: QueueOrNone = ""

    @property
    def is_over(self) -> bool:
        """Whether it says nothing but that older rules have ended."""
        return not (self.per_key or self.per_queue or self.limit or self.pinned)

    @property
    def is_followed(self) -> bool:
        """Whether all lanes follow it."""
        return not self.expires_ms or self.walked == _LAST_LANE

    def walked_through(self, *, now_ms: int) -> Flow | None:
        """Return it once its walk finds no more lanes; None if it has been over for its time."""
        if not self.is_over:
            return replace(self, walked="", expires_ms=0)
        if self.walked == _LAST_LANE:
            return None
        return replace(self, walked=_LAST_LANE, expires_ms=now_ms + OVER_MS)


class Lane(StoredItem, frozen=True, array_like=True, tag="lane", kw_only=True):
    """The tasks of a queue that have one key.

    It exists while any of them waits or runs, until the tokens are back that they have spent, and
    while the key has a rule of its own.

    Attributes:
        id: The queue, `@` and the digest of the key.
        kept: Backing off, and keeping their place of the key.
        stopped_by: The dead letter that stops the key; empty if none does.
        spent_us: The instant until which the tokens of its rate are spent, in microseconds of the
            log's clock; see `rate`. A restore forgets it.
        expires_ms: When a held task may go because a token has come, or, of a key without tasks,
            when nothing is left to remember; 0 if time changes nothing.
        held_until_ms: Until when a worker has asked that nothing of the key goes; 0 if none has.
            A restore forgets it.
        own: What the key's `KeyRule` says, so that nothing else is read for it; None without one.
    """

    place = Place.ORIGIN
    is_restored = False

    tenant: Owner
    id: Annotated[str, that(_LANE_ID.fullmatch, "a queue, an @ and a digest")]
    key: LaneKey
    running: Number = 0
    ready: Number = 0
    kept: Number = 0
    held: Number = 0
    stopped_by: IdOrNone = ""
    spent_us: Seq = 0
    expires_ms: Instant = 0
    held_until_ms: Instant = 0
    own: OwnRuleOrNone = None

    @property
    def taken(self) -> int:
        """Return how many places of the key are taken."""
        return self.running + self.ready + self.kept

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing of the key but spent tokens."""
        return not (self.taken or self.held or self.stopped_by)

    def plus(self, *, ready: int, running: int) -> Lane | None:
        """Return it with so many tasks more; None if it says more than how many take places."""
        if (
            self.held
            or self.stopped_by
            or self.spent_us
            or self.expires_ms
            or self.held_until_ms
            or self.own
        ):
            return None
        return Lane(
            tenant=self.tenant,
            id=self.id,
            key=self.key,
            running=self.running + running,
            ready=self.ready + ready,
            kept=self.kept,
        )

    @property
    def limited_until_ms(self) -> int:
        """Return until when its rate holds its next task; 0 if other things do, or nothing."""
        return self.expires_ms if self.held and not self.rests else 0

    @property
    def rests(self) -> bool:
        """Whether nothing of the key goes: a worker holds it, or an admin has paused it."""
        return bool(self.held_until_ms) or (self.own is not None and self.own.paused)

    @property
    def queue(self) -> str:
        """Return the queue."""
        return self.id.partition("@")[0]

    @property
    def name(self) -> str:
        """Return the digest of the key."""
        return self.id.partition("@")[2]

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        return "" if self.name == lane_name(self.key) else "id: must end with the key's digest"


class KeyRule(StoredItem, frozen=True, array_like=True, tag="keyrule", kw_only=True):
    """A rule of its own that an admin has given a key; its lane follows it.

    Attributes:
        id: As that of the lane.
        pinned: What places all tasks of its queue; see `Flow`.
    """

    place = Place.NAME

    tenant: Owner
    id: Annotated[str, that(_LANE_ID.fullmatch, "a queue, @ and the digest of a key")]
    key: LaneKey
    own: Annotated[OwnRule, _sound_or_none]
    updated_ms: Instant = 0
    pinned: ScopeOrNone = ""

    @property
    def queue(self) -> str:
        """Return the queue of the key."""
        return self.id.partition("@")[0]

    @property
    def shard_name(self) -> str:
        """Return what decides the shard of the key's tasks, and so this one's."""
        return self.pinned or f"{self.queue}/{self.key}"

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        is_named = self.id == lane_id(self.queue, lane_name(self.key))
        return "" if is_named else "id: must end with the key's digest"


@lru_cache(_LANES_CACHED)
def lane_name(key: str) -> str:
    """Return the digest of a key, which any name of a row can hold."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


def lane_id(queue: str, lane: str) -> str:
    """Return the id of a lane's item, or what it begins with in any lane of the queue."""
    return f"{queue}@{lane}"


@lru_cache(_LANES_CACHED)
def lane_of_key(queue: str, key: str) -> str:
    """Return the id of a key's lane."""
    return lane_id(queue, lane_name(key))


def lane_of(task: Task) -> str:
    """Return the key of a task, or ""."""
    return task.more.key if task.more is not None else ""


def cost_of(task: Task) -> int:
    """Return how many tokens of its key a claim of a task spends."""
    return task.more.cost if task.more is not None else 1


def takes_place(task: Task) -> bool:
    """Return whether a task with a key takes one of the places of its key."""
    state = task.state
    if state is State.DELAYED:
        return task.more is not None and task.more.keeps_place
    return state is State.READY or state is State.LEASED


def by_work(lane: Lane) -> tuple[int, int, str]:
    """Return what sorts lanes: the one with the most held tasks first."""
    return -lane.held, -lane.taken, lane.key
