"""Unique: the rows of unique keys, and what a new task may say of its own.

A unique key belongs to one queue, and to one `key` of its tasks if they have one.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from msgspec import Struct

from codeq_cluster.core.bounds import DIGEST, Id, IdOrNone, Instant, Owner, text, that
from codeq_cluster.core.lane import lane_id, lane_name, lane_of
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.task import LANE_KEY_BYTES_MAX, State, Task, Unique, Until

if TYPE_CHECKING:
    from codeq_cluster.core.new_task import Create

WAIT_S_MAX = 7 * 86_400  # Of a throttle and of a debounce.
MAX_WAITS = 10  # Without `max_wait_ms`, later creates move a start by this many debounces at most.

_SCOPE = re.compile(r"[a-z0-9._:-]{1,128}@[0-9a-f]{32}")
_PLACED_BYTES_MAX = 128 + 1 + LANE_KEY_BYTES_MAX
_DIGEST = re.compile(r"[0-9a-f]{32}")


class On(StrEnum):
    """What a create does whose unique key is held."""

    RETURN = "return"
    REJECT = "reject"
    REPLACE = "replace"
    KEEP_LAST = "keepLast"

    @property
    def replaces(self) -> bool:
        """Return whether it gives a waiting task what it says itself."""
        return self is On.REPLACE or self is On.KEEP_LAST


class How(StrEnum):
    """What a create with a unique key has done."""

    CREATED = "created"
    RETURNED = "returned"
    REPLACED = "replaced"
    QUEUED = "queued"


class UniqueTerms(Struct, frozen=True, array_like=True, kw_only=True):
    """What a new task says of its unique key.

    Attributes:
        throttle_ms: How long it holds the key at most; 0 for no bound.
        debounce_ms: From each create to the start; 0 for none.
        max_wait_ms: From the first create to the latest start; 0 without a debounce.
    """

    key: str
    on: On = On.RETURN
    until: Until = Until.ENDED
    throttle_ms: int = 0
    debounce_ms: int = 0
    max_wait_ms: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether the terms agree with each other."""
        return (
            bool(self.key)
            and 0 <= self.throttle_ms <= WAIT_S_MAX * 1000
            and 0 <= self.debounce_ms <= self.max_wait_ms <= WAIT_S_MAX * 1000
            and bool(self.debounce_ms) == bool(self.max_wait_ms)
            and not (self.debounce_ms and self.on is On.REJECT)
            and not (self.until is Until.THROTTLE and not self.throttle_ms)
        )


class Holder(StoredItem, frozen=True, array_like=True, tag="unique", kw_only=True):
    """Who holds a unique key. The row follows from the tasks, and goes when the holder lets go.

    Attributes:
        id: The queue, `@` and the digest of the keys.
        task_id: The holder.
        next_id: The task that is next; empty for none.
        expires_ms: When the throttle ends; 0 without one.
    """

    place = Place.ORIGIN
    is_restored = False

    tenant: Owner
    id: Annotated[str, that(_SCOPE.fullmatch, "a queue, an @ and a digest")]
    task_id: Id
    next_id: IdOrNone = ""
    expires_ms: Instant = 0


class Merged(StoredItem, frozen=True, array_like=True, tag="merged", kw_only=True):
    """A create that has led to a task that was there: repeated, it changes nothing.

    Attributes:
        id: The digest of its idempotency key, or of the id that its task would have had.
        placed_by: The queue, a slash and the key that decides its shard, as that of its task.
        task_id: The task that it led to; that one may be deleted already.
        fingerprint: Of what it said; empty without an idempotency key.
        expires_ms: When it is forgotten.
    """

    place = Place.NAME

    tenant: Owner
    id: Annotated[str, that(_DIGEST.fullmatch, "a digest")]
    placed_by: Annotated[str, text(_PLACED_BYTES_MAX, empty=False)]
    task_id: Id
    how: How
    expires_ms: Instant
    fingerprint: Annotated[str, DIGEST] = ""

    @property
    def shard_name(self) -> str:
        """Return the name that decides its shard."""
        return self.placed_by


def placed_by(thing: Create | Task) -> str:
    """Return the queue and the key that decide the shard of a task with a unique key."""
    lane = lane_of(thing) if isinstance(thing, Task) else thing.key
    return f"{thing.command.lower()}/{lane or unique_key(thing)}"


def merged_id(name: str) -> str:
    """Return the id of the `Merged` of a create that is known under a name."""
    return lane_name(name)


def unique_of(task: Task) -> Unique | None:
    """Return the unique key of a task, or None."""
    return task.more.unique if task.more is not None else None


def unique_key(thing: Create | Task) -> str:
    """Return the text of a task's unique key, or ""."""
    of = unique_of(thing) if isinstance(thing, Task) else thing.unique
    return of.key if of is not None else ""


def scope_of(thing: Create | Task) -> str:
    """Return the id of the `Holder` of a task's unique key."""
    lane = lane_of(thing) if isinstance(thing, Task) else thing.key
    return lane_id(thing.command.lower(), lane_name(f"{lane}\0{unique_key(thing)}"))


def lets_go(task: Task, unique: Unique) -> bool:
    """Return whether a task in its state holds its key no longer, or waits for it no longer."""
    if task.state is State.DEAD:
        return True
    match unique.until:
        case Until.THROTTLE:
            return False
        case Until.CLAIMED:
            return task.state.terminal or task.state is State.LEASED
        case Until.ENDED:
            return task.state.terminal
