"""Groups: many tasks, and one task after the last of them has ended.

A group lives on the shard of its name. It has a row for each member there, wherever the member
itself is: a member with an idempotency key of another shard is relayed there, and its end is
relayed back. So one log decides which end is the last, and no end counts twice.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.core.bounds import (
    DIGEST,
    KEY_BYTES_MAX,
    OWNER,
    Id,
    IdOrNone,
    Instant,
    Name,
    NameOrNone,
    Number,
    Owner,
    Seq,
    sound,
    text,
    that,
    whole,
)
from codeq_cluster.core.crossing import Crossing
from codeq_cluster.core.new_task import Create, sound_create, template_of
from codeq_cluster.core.sharding import shard_of_key
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.task import COMPLETED, Membership

MEMBERS_MAX = 1_000_000  # Of one group.
GROUPS_MAX = 10_000  # Of one tenant that have not ended, on one shard.
THEN_BYTES_MAX = 65_536
DAY_MS = 24 * 3600 * 1000
SEAL_MS_MAX = 31 * DAY_MS
# How long a group is kept after its end, and at most its members after theirs.
KEPT_MS = 7 * DAY_MS

# What one entry adds, cancels or deletes. A member's row is small, and a task's end is not.
ADDED_MAX = 100
CANCELLED_MAX = 48
DELETED_MAX = 256

# A group that nobody sealed in time has ended with this reason.
NOT_SEALED = "NOT_SEALED"
# The status of a member whose key another task has: it was not made, and is not counted.
NOT_MADE = "NOT_MADE"
DEAD = "DEAD"

_GOES_ON = 2**48  # Above every instant; see `Group.rank`.

# Without the colon, which divides members' ids, and no dot first: a path resolves `.` and `..`.
GROUP_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
GROUP_NAME_WORDS = "1 to 128 of A-Za-z0-9._-, no dot first"


class ThenIf(StrEnum):
    """When the last end of a group makes its completion task."""

    ENDED = "ended"
    SUCCEEDED = "succeeded"


class OnFailure(StrEnum):
    """What a failed member or a dead letter means for the others."""

    CONTINUE = "continue"
    CANCEL = "cancel"


def _sound_then(value: object) -> str:
    if value is None:
        return ""
    assert isinstance(value, Create)
    if value != template_of(value):
        return "must have no id, tenant, key or start of its own"
    if len(value.payload.encode()) > THEN_BYTES_MAX:
        return f"must have a payload of at most {THEN_BYTES_MAX} bytes"
    return sound_create(replace(value, id="then"))


class Group(StoredItem, frozen=True, array_like=True, tag="group", kw_only=True):
    """A group, with what has become of its members.

    Attributes:
        generation: Another one for every group of the same id; grows with time.
        then: The completion task, without id, tenant and key; None for none.
        digest: Of the request that made it, so that a repetition is told from another group.
        rows: Its members, those that were not made included.
        live: Members that have not ended.
        sealed_ms: Since when nobody but a live member adds to it; 0 for not yet.
        cancelled_ms: Since when its members are being cancelled.
        walked: The last member that the walk has come to; see `expires_ms`.
        reason: `NOT_SEALED`, or empty.
        then_id: The completion task, once there is one.
        expires_ms: When time acts on it: it must be sealed by then, its walk goes on, or it is
            deleted.
    """

    place = Place.NAME

    tenant: Owner
    id: Annotated[str, that(GROUP_NAME.fullmatch, GROUP_NAME_WORDS)]
    generation: Seq
    then: Annotated[Create | None, _sound_then] = None
    then_if: ThenIf = ThenIf.ENDED
    on_failure: OnFailure = OnFailure.CONTINUE
    digest: Annotated[str, DIGEST] = ""
    rows: Annotated[int, whole(0, MEMBERS_MAX)] = 0
    live: Number = 0
    completed: Number = 0
    failed: Number = 0
    cancelled: Number = 0
    dead: Number = 0
    sealed_ms: Instant = 0
    cancelled_ms: Instant = 0
    ended_ms: Instant = 0
    walked: IdOrNone = ""
    reason: NameOrNone = ""
    then_id: IdOrNone = ""
    created_ms: Instant = 0
    expires_ms: Instant = 0

    @property
    def shard_name(self) -> str:
        """Return the name that decides its shard."""
        return f"group/{self.id}"

    @property
    def rank(self) -> int:
        """Return its place in the tenant's list: first those that go on, the newest first."""
        return self.ended_ms or self.created_ms + _GOES_ON

    @property
    def total(self) -> int:
        """Return how many tasks are or were its members."""
        return self.live + self.completed + self.failed + self.cancelled + self.dead

    @property
    def fault(self) -> str:
        """Return the rule between fields that it breaks, or ""."""
        if self.total > self.rows:
            return "rows: must be at least the members that are counted"
        if self.ended_ms and not self.sealed_ms:
            return "sealed_ms: must be set if it has ended"
        return "" if self.sealed_ms or self.expires_ms else "expires_ms: must be set until sealed"


def _is_member(name: str) -> bool:
    group, colon, task_id = name.partition(":")
    return bool(GROUP_NAME.fullmatch(group) and colon and task_id)


class Member(StoredItem, frozen=True, array_like=True, tag="member", kw_only=True):
    """One member of a group, on the group's shard.

    Attributes:
        id: `<group>:<task id>`.
        task_id: Its task; a restore on another number of shards may give that another id.
        key: Its idempotency key.
        status: COMPLETED, FAILED, CANCELLED, DEAD or NOT_MADE; empty before its end.
    """

    place = Place.NAME

    tenant: Owner
    id: Annotated[str, that(_is_member, "a group, a colon and a task's id")]
    task_id: Id
    key: Annotated[str, text(KEY_BYTES_MAX)] = ""
    status: NameOrNone = ""
    ended_ms: Instant = 0

    @property
    def group(self) -> str:
        """Return the group's id."""
        return self.id.partition(":")[0]

    @property
    def shard_name(self) -> str:
        """Return the name that decides its shard."""
        return f"group/{self.group}"


def member_id(group: str, name: str) -> str:
    """Return the id of a member's row; `name` is the id that its task was given first."""
    return f"{group}:{name}"


def group_shard(tenant: str, group_id: str, shards: int) -> int:
    """Return the shard of a group, and of the members it makes."""
    return shard_of_key(tenant, f"group/{group_id}", shards)


class CreateGroup(Struct, frozen=True, array_like=True, tag="create_group", kw_only=True):
    """Begin a group; a second one with the same digest is a retry.

    Attributes:
        seal_within_ms: It must be sealed within this time.
        tasks: Its first members, without id and tenant.
        seal: There are no more.
    """

    tenant: str
    id: str
    digest: str
    then: Create | None = None
    then_if: ThenIf = ThenIf.ENDED
    on_failure: OnFailure = OnFailure.CONTINUE
    seal_within_ms: int = DAY_MS
    tasks: tuple[Create, ...] = ()
    seal: bool = False


class AddMembers(Struct, frozen=True, array_like=True, tag="add_members", kw_only=True):
    """Add tasks to a group, all or none; a second one of the same name is a retry.

    Attributes:
        name: The members' ids follow from it.
    """

    tenant: str
    id: str
    name: str
    tasks: tuple[Create, ...]
    seal: bool = False


class SealGroup(Struct, frozen=True, array_like=True, tag="seal_group", kw_only=True):
    """Let nobody but live members add to a group."""

    tenant: str
    id: str


class CancelGroup(Struct, frozen=True, array_like=True, tag="cancel_group", kw_only=True):
    """Seal a group and cancel its members, step by step."""

    tenant: str
    id: str


GroupOperation = CreateGroup | AddMembers | SealGroup | CancelGroup


class MemberEnded(Crossing, frozen=True, array_like=True, tag="member_ended", kw_only=True):
    """The end of a member, as it is relayed to the group's shard."""

    tenant: Annotated[str, OWNER]
    member: Annotated[Membership, sound]
    task_id: Id
    status: Name
    ended_ms: Instant

    def home(self, shards: int) -> int:
        """Return the shard of the group, of so many."""
        return group_shard(self.tenant, self.member.group, shards)


class NewMember(Crossing, frozen=True, array_like=True, tag="new_member", kw_only=True):
    """A task that a member's result adds to its group, as it is relayed to the group's shard."""

    create: Create
    parent: Annotated[Membership, sound]
    parent_id: Id
    root_id: Id

    @property
    def tenant(self) -> str:
        """Return whose it is."""
        return self.create.tenant

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return len(self.create.payload)

    @property
    def fault(self) -> str:
        """Return which rule a field breaks, or ""."""
        return sound_create(self.create) or sound(self.parent)

    def home(self, shards: int) -> int:
        """Return the shard of the group, of so many."""
        return group_shard(self.tenant, self.parent.group, shards)


def has_succeeded(group: Group) -> bool:
    """Return whether all members are completed."""
    return group.completed == group.total


def status_of(group: Group) -> str:
    """Return the group's status, as answers show it."""
    if not group.ended_ms:
        return "CANCELLING" if group.cancelled_ms else "SEALED" if group.sealed_ms else "OPEN"
    if group.reason or group.failed or group.dead:
        return "FAILED"
    return "CANCELLED" if group.cancelled else COMPLETED
