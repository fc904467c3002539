"""Outcomes: the answers to operations. A refusal is a value like any other."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.dependencies import Input
from codeq_cluster.core.durable import Step
from codeq_cluster.core.groups import Group
from codeq_cluster.core.items import Subscription, Topic
from codeq_cluster.core.limit import Limit
from codeq_cluster.core.schedules import Schedule
from codeq_cluster.core.task import Cancelling, FollowUp, Result, Task


class Rejection(StrEnum):
    """Why an operation was refused; the words are the wire's codes."""

    NOT_FOUND = "not-found"
    NOT_OWNER = "not-owner"
    NOT_IN_PROGRESS = "not-in-progress"
    LEASE_LOST = "lease-lost"
    IDEMPOTENCY_CONFLICT = "idempotency-conflict"
    ALREADY_TERMINAL = "already-terminal"
    BUDGET_EXCEEDED = "budget-exceeded"
    TOO_MANY = "too-many"
    INVALID_PRIORITY = "invalid-priority"
    INVALID_COST = "invalid-cost"
    STALE_REVISION = "stale-revision"
    OTHER_OWNER = "other-owner"
    BACKFILL_RUNNING = "backfill-running"
    GROUP_SEALED = "group-sealed"
    OTHER_GROUP = "other-group"
    UNKNOWN_DEPENDENCY = "unknown-dependency"
    UNIQUE_CONFLICT = "unique-conflict"
    TOO_MANY_MERGES = "too-many-merges"
    STEP_CONFLICT = "step-conflict"
    NOTHING_TO_HOLD = "nothing-to-hold"
    EVENT_TYPE_NOT_ALLOWED = "event-type-not-allowed"
    CANCELLING = "cancelling"
    TOO_MANY_TAGS = "too-many-tags"
    MISPLACED = "misplaced"  # Of the queues in `limit` another shard has all new tasks.
    KEYS_ELSEWHERE = "keys-elsewhere"
    UNKNOWN_LIMIT = "unknown-limit"
    LIMIT_IN_USE = "limit-in-use"
    PINNED_ELSEWHERE = "pinned-elsewhere"


class Rejected(Struct, frozen=True, array_like=True, tag="rejected"):
    """Nothing changed, for this reason.

    Attributes:
        limit: The budget that is used up, the bound that is met, the priorities that are allowed,
            the dependency that is unknown, the dead letter whose unique key is decided elsewhere,
            or the id, the state and the age (ms) of who holds the unique key, or the queues, with
            commas between, or the limit, or what places the queue; empty for any other reason.
    """

    rejection: Rejection
    limit: str = ""


class Created(Struct, frozen=True, array_like=True, tag="created"):
    """The task exists.

    Attributes:
        replay: True when the idempotency key had created it before.
        payload: Of the existing task; empty when it is the caller's own.
        unique: What a create with a unique key has done; empty without one.
    """

    task: Task
    replay: bool = False
    payload: str = ""
    unique: str = ""


class Claimed(Struct, frozen=True, array_like=True, tag="claimed"):
    """Tasks now leased to the worker, in claim order; none when nothing was ready.

    Attributes:
        payloads: One JSON text per task; filled in when the answer is released.
        inputs: By task, what the tasks that it waited for have handed to it; filled in then, too.
        steps: By task, what its function has recorded, in that order; the same.
        checkpoints: By task, JSON text that its last worker left; filled in then, too.
        lost: The claim has or may have leased tasks that are not among these.
    """

    tasks: tuple[Task, ...]
    payloads: tuple[str, ...] = ()
    inputs: dict[str, tuple[Input, ...]] = {}
    steps: dict[str, tuple[Step, ...]] = {}
    checkpoints: dict[str, str] = {}
    lost: bool = False


class Extended(Struct, frozen=True, array_like=True, tag="extended"):
    """The lease now ends at `lease_until_ms`; the task is to end if `cancelling` says so."""

    lease_until_ms: int
    cancelling: Cancelling | None = None


class StepStands(Struct, frozen=True, array_like=True, tag="step_stands"):
    """The step as it is now.

    Attributes:
        lease_until_ms: When the lease ends; 0 if it is given back.
    """

    step: Step
    lease_until_ms: int = 0


class Signalled(Struct, frozen=True, array_like=True, tag="signalled"):
    """The task has the signal; `replay` says that it had it before."""

    replay: bool = False


class Returned(Struct, frozen=True, array_like=True, tag="returned"):
    """The task went back to its queue, or to the dead letters when `dead`.

    Attributes:
        cancelled: It did neither, because it was to end.
    """

    dead: bool
    delay_ms: int = 0
    cancelled: bool = False


class Submitted(Struct, frozen=True, array_like=True, tag="submitted"):
    """The result is stored."""

    result: Result


class Taken(Struct, frozen=True, array_like=True, tag="taken"):
    """The shard has every relay of the other one up to this number."""

    number: int


class Cancelled(Struct, frozen=True, array_like=True, tag="cancelled"):
    """The task is cancelled, or its worker is about to hear that it is to end."""

    task: Task


class Tagged(Struct, frozen=True, array_like=True, tag="tagged"):
    """The task has these tags, (name, value) in the order of names."""

    id: str
    tags: tuple[tuple[str, str], ...]


class Advanced(Struct, frozen=True, array_like=True, tag="advanced"):
    """Time acted on `count` tasks."""

    count: int


class Changed(Struct, frozen=True, array_like=True, tag="changed"):
    """The number of named things that are now in the wanted state."""

    count: int


class TopicStands(Struct, frozen=True, array_like=True, tag="topic_stands"):
    """The topic as it is now; `made` says that this request created it."""

    topic: Topic
    made: bool = False


class LimitStands(Struct, frozen=True, array_like=True, tag="limit_stands"):
    """The limit as it is now; `made` says that this request created it."""

    limit: Limit
    made: bool = False


class ScheduleStands(Struct, frozen=True, array_like=True, tag="schedule_stands"):
    """The schedule as it is now; `made` says that this request created it."""

    schedule: Schedule
    made: bool = False


class GroupStands(Struct, frozen=True, array_like=True, tag="group_stands", kw_only=True):
    """The group as it is now.

    Attributes:
        made: This request created it.
        names: The members that were asked for, in order.
        tasks: Those of them that are on the group's shard, and those without an idempotency key.
    """

    group: Group
    made: bool = False
    names: tuple[FollowUp, ...] = ()
    tasks: tuple[Task, ...] = ()


class BulkStands(Struct, frozen=True, array_like=True, tag="bulk_stands"):
    """The part of a bulk job on the shard; `made` says that this request has begun it."""

    job: BulkJob
    made: bool = False


class GraphStands(Struct, frozen=True, array_like=True, tag="graph_stands"):
    """The tasks of a graph that are there, in the order of the request.

    Attributes:
        made: This request created them.
        ids: Of all tasks, if some of them are to be read on other shards.
    """

    tasks: tuple[Task, ...]
    made: bool = False
    ids: tuple[str, ...] = ()


class How(StrEnum):
    """What becomes of a run that is to begin."""

    CREATED = "created"
    QUEUED = "queued"
    SKIPPED = "skipped"
    LATER = "later"  # More runs must be cancelled first than one entry can.


class Triggered(Struct, frozen=True, array_like=True, tag="triggered"):
    """What became of a run that was asked for; `task_id` is empty until it begins."""

    how: How
    task_id: str = ""


class Subscribed(Struct, frozen=True, array_like=True, tag="subscribed"):
    """The subscription exists."""

    subscription: Subscription


class Imported(Struct, frozen=True, array_like=True, tag="imported", kw_only=True):
    """The outcome for tasks and items from another cluster.

    Attributes:
        imported: Tasks that were missing here and now exist.
        present: Tasks whose id is in use here already.
        ended: Tasks whose retention is over.
        forgotten_keys: How many imported tasks came without their idempotency key.
        renamed: How many tasks have another id here than in the other cluster, imported or not.
        keys_taken: Ids left out because another task has their idempotency key.
        keys_apart: Ids left out because their idempotency key belongs on another shard.
        too_large: Ids left out because the task does not fit an entry of the log.
        left: Tasks not looked at, because the tenant has no room.
        limit: The budget that is used up; empty unless some tasks are left.
        items_refused: `kind/id` of items beyond the bound of their kind.
        topics_apart: `queue@limit` of topics whose queue cannot share here the limit they name: it
            does not exist, is on another shard, or has as many queues as it may.
    """

    imported: int = 0
    present: int = 0
    ended: int = 0
    forgotten_keys: int = 0
    renamed: int = 0
    keys_taken: tuple[str, ...] = ()
    keys_apart: tuple[str, ...] = ()
    too_large: tuple[str, ...] = ()
    left: int = 0
    limit: str = ""
    items_imported: int = 0
    items_present: int = 0
    items_refused: tuple[str, ...] = ()
    topics_apart: tuple[str, ...] = ()


Outcome = (
    Rejected
    | Created
    | Claimed
    | Extended
    | Returned
    | Submitted
    | Taken
    | Cancelled
    | Tagged
    | Advanced
    | Changed
    | TopicStands
    | ScheduleStands
    | LimitStands
    | Triggered
    | GroupStands
    | GraphStands
    | BulkStands
    | StepStands
    | Signalled
    | Subscribed
    | Imported
)
