"""Records: tasks and results as the broker keeps them."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import UNSET, Raw, Struct, UnsetType


class Status(StrEnum):
    """Where a task is in its life, in the API's terms."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"


class State(StrEnum):
    """The state of a task, which the API spreads over `status` and `lastKnownLocation`."""

    READY = "ready"
    DELAYED = "delayed"
    HELD = "held"
    LEASED = "leased"
    DONE = "done"
    FAILED = "failed"
    DEAD = "dead"


_STATES = {
    "PENDING_LIST": State.READY,
    "DELAYED_ZSET": State.DELAYED,
    "HELD_SET": State.HELD,
    "INPROG_SET": State.LEASED,
    "DLQ_SET": State.DEAD,
}


class AttemptRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One finished delivery of a task.

    Attributes:
        outcome: `COMPLETED`, `FAILED`, `NACKED`, `KEY_HELD`, `QUEUE_HELD`, `LIMIT_HELD`,
            `ABANDONED`, `LEASE_EXPIRED` etc.
    """

    worker: str
    started_at: datetime
    ended_at: datetime
    outcome: str
    error: str = ""
    worker_name: str = ""


class GroupCounts(Struct, frozen=True, kw_only=True):
    """How the members of a group have ended."""

    id: str
    total: int
    completed: int
    failed: int
    cancelled: int
    dead: int


class InputRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How a task that another one waited for has ended.

    Attributes:
        status: COMPLETED or FAILED.
        result: JSON as its worker wrote it.
        left_out: The result is too large to be handed on; ask for it by `task_id`.
    """

    task_id: str
    status: Status
    result: Raw | UnsetType = UNSET
    error: str = ""
    left_out: bool = False


class StepRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A step that a task's function has recorded, or waits at.

    Attributes:
        value: JSON: what the step has returned; of a wait, the payload of the signal that ended it,
            so a wait that time has ended has none.
        until: When a wait ends by itself; None for a step that does not wait.
        open: The wait is not over.
    """

    name: str
    position: int = 0
    value: Raw | UnsetType = UNSET
    recorded_at: datetime
    signal: str = ""
    until: datetime | None = None
    open: bool = False


class SignalRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A signal to a task; once a wait has `read` it, its payload is that step's value."""

    name: str
    payload: Raw | UnsetType = UNSET
    sent_at: datetime
    read: bool = False


class StepsRecord(Struct, frozen=True):
    """What a task has recorded, in that order, and the signals to it, in that order."""

    steps: tuple[StepRecord, ...]
    signals: tuple[SignalRecord, ...]


class LogLineRecord(Struct, frozen=True):
    """A line of a task's log.

    Attributes:
        number: Its place among all lines of the task, from 1.
        at: When the broker got it.
        attempt: The delivery that it is of.
    """

    number: int
    at: datetime
    attempt: int
    text: str


class LogRecord(Struct, frozen=True):
    """Lines of a task's log, the oldest first.

    Attributes:
        written: How many lines the task has got in all: the number of the last one.
        dropped: How many of these are gone.
    """

    lines: tuple[LogLineRecord, ...]
    written: int
    dropped: int


class ProgressRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How far a task is, by what its worker counts.

    Attributes:
        total: 0 if it is unknown.
        at: When the worker said so.
    """

    done: int
    total: int = 0
    note: str = ""
    at: datetime


class CancelRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a cancel has said of a task.

    Attributes:
        reason: For people; may be empty.
        deadline: If no result has come by then, the task is cancelled.
    """

    reason: str = ""
    deadline: datetime


class TaskRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A task as the broker keeps it.

    Attributes:
        payload: JSON text exactly as the producer wrote it, with every digit of its numbers.
        attempts: Deliveries so far.
        max_attempts: Deliveries allowed; after the last one the task is a dead letter.
        error: Why the task failed or died, or how its last attempt ended.
        lease_token: The fencing token of this delivery; 0 except in the answer to a claim.
        run_at: The instant the producer asked for; the task is not delivered earlier.
        ready_at: When a delayed task can be claimed.
        expires_at: When a waiting task dies because its time to live is over.
        history: One entry per finished attempt, the latest last; the broker keeps the last few.
        timeout_seconds: How long one delivery may take; 0 for the handler's own limit.
        worker_name: What the worker that holds it calls itself.
        backoff_policy: The task's own; empty for its queue's, as 0 in the two below.
        parent_id: The task whose result made it; empty if none did.
        root_id: The first task of that chain.
        schedule_id: The schedule that made it; empty if none did.
        scheduled_for: The instant of that schedule that it is for.
        late: It could not fire in time.
        group_id: The group that it is a member of; empty for none.
        group: What became of a group's members, if it is the group's completion task.
        inputs: In the answer to a claim, by ref or id: how the tasks have ended that it waited for.
        unique_key: Its unique key; empty for none.
        revision: How often later creates have replaced what it says.
        unique: In the answer to a create with a unique key: created, returned, replaced or queued.
        parked_at: The step that it waits at without a worker; empty for none.
        steps: In the answer to a claim: what its function has recorded, in that order.
        progress: What its worker has said last; None if none has said anything.
        checkpoint: In the answer to a claim: JSON that the last worker has left.
        cancel: What a cancel with a grace or a reason has said; None without one.
        tags: Texts by which lists find it, by name.
        metadata: JSON that its producer has said for its worker and its webhook.
    """

    id: str
    command: str
    payload: str
    priority: int = 0
    webhook: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    status: Status
    last_known_location: str = ""
    worker_id: str = ""
    lease_until: datetime | None = None
    attempts: int = 0
    max_attempts: int = 0
    error: str = ""
    result_key: str = ""
    tenant_id: str = ""
    created_at: datetime
    updated_at: datetime
    lease_token: int = 0
    run_at: datetime | None = None
    ready_at: datetime | None = None
    expires_at: datetime | None = None
    shard: int = 0
    history: tuple[AttemptRecord, ...] = ()
    timeout_seconds: int = 0
    backoff_policy: str = ""
    backoff_base_seconds: int = 0
    backoff_max_seconds: int = 0
    worker_name: str = ""
    parent_id: str = ""
    root_id: str = ""
    schedule_id: str = ""
    scheduled_for: str = ""
    late: bool = False
    key: str = ""
    cost: int = 1
    group_id: str = ""
    group: GroupCounts | None = None
    inputs: dict[str, InputRecord] = {}
    unique_key: str = ""
    revision: int = 0
    unique: str = ""
    parked_at: str = ""
    steps: tuple[StepRecord, ...] = ()
    progress: ProgressRecord | None = None
    checkpoint: Raw | UnsetType = UNSET
    cancel: CancelRecord | None = None
    tags: dict[str, str] = {}
    metadata: Raw | UnsetType = UNSET

    @property
    def state(self) -> State:
        """The task's state."""
        ended = State.DONE if self.status is Status.COMPLETED else State.FAILED
        return _STATES.get(self.last_known_location, ended)


class Artifact(Struct, frozen=True):
    """A product of a task: its name and its location."""

    name: str
    url: str


class FollowUp(Struct, frozen=True, kw_only=True, rename="camel"):
    """A task that a result has made: its id, or the idempotency key that leads to it."""

    id: str = ""
    idempotency_key: str = ""


class ResultRecord(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """How a task ended; `result` is JSON as the worker wrote it."""

    task_id: str
    status: Status
    result: Raw | UnsetType = UNSET
    error: str = ""
    artifacts: tuple[Artifact, ...] = ()
    completed_at: datetime
    next: tuple[FollowUp, ...] = ()


class Explanation(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The reason a task is where it is.

    Attributes:
        reason: A stable word, such as `backing-off` or `queue-paused`.
        message: The reason as a sentence.
        waiting: Whether the task waits for something.
        until: When the reason ends by the passing of time alone.
    """

    task_id: str
    reason: str
    message: str
    waiting: bool
    until: datetime | None = None
