"""Stored item: what every item declares of itself; see `items`."""

from __future__ import annotations

from enum import Enum, StrEnum, auto
from typing import ClassVar

from msgspec import Struct


class ItemKind(StrEnum):
    """The kind of an item: its tag, which is part of the stored keys."""

    TOPIC = "topic"
    PAUSE = "pause"
    SUBSCRIPTION = "sub"
    DELIVERY = "hook"
    SWEEP = "sweep"
    AUDIT = "audit"
    ASIDE = "aside"
    WEBHOOK_KEY = "hookkey"
    RELAY = "relay"
    RELAY_LINK = "link"
    SCHEDULE = "sched"
    TALLY = "tally"
    FLOW = "flow"
    LANE = "lane"
    GATE = "gate"
    KEY_RULE = "keyrule"
    LIMIT = "limit"
    GROUP = "group"
    MEMBER = "member"
    DEPENDENCIES = "deps"
    EDGE = "edge"
    INPUT = "input"
    WALK = "walk"
    GRAPH_KEY = "graph"
    UNIQUE = "unique"
    MERGED = "merged"
    STEP = "step"
    SIGNAL = "signal"
    CHECKPOINT = "checkpoint"
    LOG = "log"
    BULK = "bulk"


class Place(Enum):
    """The shard that a kind's items live on."""

    TENANT = auto()  # The tenant's home shard.
    TASK = auto()  # That of the task whose id stands in the item's before a dot.
    NAME = auto()  # That of the item's `shard_name`.
    ORIGIN = auto()  # The one whose entry wrote it; a restore keeps it as far as it can.


# The field by which a kind declares an instant, unless it has its own idea of it.
_FIELDS = {"job_ms": "due_ms", "end_ms": "expires_ms", "dead_ms": "died_ms"}


class StoredItem(Struct, frozen=True, array_like=True):
    """What a kind declares beside its fields.

    A field `due_ms`, `expires_ms` or `died_ms` declares that there is such an instant: see
    `job_ms`, `end_ms`, `dead_ms`. A relay also has a place in the line to its shard, `sent_as`.

    Attributes:
        place: Where its items live.
        is_known_everywhere: Every node keeps them in memory.
        is_in_memory: So does each replica of their shard, so one entry may not have many of them.
        is_restored: A backup has them; otherwise they follow from other rows.
        has_body: Each has a result beside it.
        count_max: Of one tenant; 0 for any number.
    """

    place: ClassVar[Place] = Place.TENANT
    is_known_everywhere: ClassVar[bool] = False
    is_in_memory: ClassVar[bool] = False
    is_restored: ClassVar[bool] = True
    has_body: ClassVar[bool] = False
    count_max: ClassVar[int] = 0

    @classmethod
    def declared(cls, name: str) -> str:
        """Return what items of this kind call such an instant or place in an order; "" for none."""
        has_own = getattr(cls, name) is not getattr(StoredItem, name)
        field = _FIELDS.get(name, "")
        return name if has_own else field if field in cls.__struct_fields__ else ""

    @property
    def shard_name(self) -> str:
        """Return the name that decides its shard, if its place is one."""
        return ""

    @property
    def job_ms(self) -> int:
        """Return when the leader works on it outside the log, as an outbox job; 0 for never."""
        due_ms: int = getattr(self, "due_ms", 0)
        return due_ms

    @property
    def end_ms(self) -> int:
        """Return when time acts on it inside the log, by an `Advance`; 0 for never."""
        expires_ms: int = getattr(self, "expires_ms", 0)
        return expires_ms

    @property
    def fires_ms(self) -> int:
        """Return when the leader decides what its calendar says; 0 for never."""
        return 0

    @property
    def dead_ms(self) -> int:
        """Return when it died, by which the tenant's dead items are listed; 0 if it did not."""
        died_ms: int = getattr(self, "died_ms", 0)
        return died_ms

    @property
    def rank(self) -> int:
        """Return its place in its tenant's list, the largest first; 0 if it is in none."""
        return 0

    @property
    def sent_as(self) -> tuple[int, int] | None:
        """Return (shard, number) while it waits in the line to another shard."""
        return None

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        return ""

    @property
    def new_fault(self) -> str:
        """Return why it could not be made here now, even if it may stand in a backup, or ""."""
        return ""
