"""Task: the broker's record of one piece of work, and of its result.

A task's place (a ready queue, a timer, a lease) is a pure function of this value, so a task cannot
be in two places. Instants are Unix milliseconds; 0 means "not set".
Each field has its bound: the type's, which no bytes are decoded beyond, or that of a record from
outside; see `faults`.
"""

from __future__ import annotations

import re
from enum import IntEnum, StrEnum
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from codeq_cluster.core.bounds import (
    ATTEMPTS_MAX,
    BODY_BYTES_MAX,
    DIGEST,
    KEY_BYTES_MAX,
    NUMBER,
    REASON_CHARS_MAX,
    UPLOAD,
    Error,
    Id,
    IdOrNone,
    Instant,
    JsonOrNone,
    Name,
    NameOrNone,
    Number,
    Owner,
    QueueOrNone,
    Reason,
    ScopeOrNone,
    Seq,
    Subject,
    TraceParent,
    TraceState,
    UrlOrNone,
    WorkerName,
    listed,
    one_of,
    sound,
    sound_or_none,
    text,
    that,
    whole,
)
from codeq_cluster.core.durable import STEP_NAME_BYTES_MAX
from codeq_cluster.core.handling import HandlingOrNone
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.tags import Metadata, Tags, tag_bytes

PRIORITY_MIN = 0
PRIORITY_MAX = 9

# The statuses of a result.
COMPLETED = "COMPLETED"
FAILED = "FAILED"

HISTORY_ERROR_CHARS_MAX = REASON_CHARS_MAX
HISTORY_ATTEMPTS_MAX = 20  # A poison task must not grow without bound: 20 attempts x ~200 bytes.
# Artifact sets stored for one task over all its attempts; each becomes a row to sweep at its end.
UPLOADS_MAX = 100
ARTIFACTS_MAX = 100  # Of one result.
FOLLOW_UPS_MAX = 100  # The same.
LANE_KEY_BYTES_MAX = 256
COST_MAX = 1000

LaneKey: TypeAlias = Annotated[str, text(LANE_KEY_BYTES_MAX, empty=False)]


class State(IntEnum):
    """The state of a task; the wire's status and lastKnownLocation derive from it."""

    READY = 1
    DELAYED = 2
    LEASED = 3
    DONE = 4
    FAILED = 5
    DEAD = 6
    HELD = 7

    terminal: bool  # Whether no worker can change the task any more.


for _state in State:
    _state.terminal = State.DONE <= _state <= State.DEAD


class AttemptOutcome(StrEnum):
    """How one delivery ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"
    NACKED = "NACKED"
    KEY_HELD = "KEY_HELD"
    QUEUE_HELD = "QUEUE_HELD"
    LIMIT_HELD = "LIMIT_HELD"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    CANCELLED = "CANCELLED"
    REQUEUED = "REQUEUED"  # No delivery: an operator revived the task; this keeps its error.


class Attempt(Struct, frozen=True, array_like=True, kw_only=True):
    """One finished delivery of a task.

    Attributes:
        request: Id of the request that ended it; a retry of that request is recognised by it.
        delay_ms: Until the task was to be ready again; a retry gets the same answer.
        worker_name: What the claim called its worker.
    """

    worker: Subject
    started_ms: Instant
    ended_ms: Instant
    outcome: AttemptOutcome
    error: Reason = ""
    request: NameOrNone = ""
    delay_ms: Instant = 0
    worker_name: WorkerName = ""


RunName: TypeAlias = Annotated[str, that(re.compile(r"[A-Za-z0-9._:-]{1,64}").fullmatch, "a run")]


class Run(Struct, frozen=True, array_like=True, kw_only=True):
    """The run of a schedule that a task is.

    Attributes:
        generation: Of the schedule; one of the same id may have replaced it.
        name: Among the schedule's runs: its instant, or what the request says that asked for it.
        at_ms: The instant it stands for.
        late: It could not start in time.
    """

    schedule: Name
    generation: Seq
    name: RunName
    at_ms: Instant
    late: bool = False


class Membership(Struct, frozen=True, array_like=True, kw_only=True):
    """The member of a group that a task is.

    Attributes:
        generation: Of the group; one of the same id may have replaced it.
        name: Among the group's members: the id that the task was given first.
    """

    group: Name
    generation: Seq
    name: Id


class GroupCounts(Struct, frozen=True, array_like=True, kw_only=True):
    """What became of a group's members, for the task that follows them."""

    id: Name
    total: Number
    completed: Number
    failed: Number
    cancelled: Number
    dead: Number


class Until(StrEnum):
    """When a task lets go of its unique key by itself; a dead letter always does."""

    ENDED = "ended"
    CLAIMED = "claimed"
    THROTTLE = "throttle"  # At the instant that its throttle ends, whatever becomes of the task.


class Role(StrEnum):
    """What a task is to its unique key."""

    HOLDER = "holder"
    NEXT = "next"  # It is HELD until the holder lets go.
    FREE = "free"  # It has let go.


class Unique(Struct, frozen=True, array_like=True, kw_only=True):
    """The unique key of a task: at most one task of its queue and `key` holds it, one is next.

    Attributes:
        throttle_ms: How long it holds the key at most, from the instant it gets it; 0 for no bound.
        held_until_ms: When that ends; 0 without a throttle, and while it is next.
        latest_ms: The latest start that later creates can move it to; 0 without a debounce.
        start_ms: While it is next: its earliest start.
        revision: How often a later create has replaced what it says.
        merged: Idempotency keys of later creates that lead to it.
        merged_ms: When the last one of these came.
    """

    key: LaneKey
    until: Until = Until.ENDED
    role: Role = Role.HOLDER
    throttle_ms: Instant = 0
    held_until_ms: Instant = 0
    latest_ms: Instant = 0
    start_ms: Instant = 0
    revision: Number = 0
    merged: Number = 0
    merged_ms: Instant = 0


class Durable(Struct, frozen=True, array_like=True, kw_only=True):
    """What stands beside a task: recorded steps, signals to it, and lines of its log.

    Attributes:
        bytes: The size of the steps and of the signals that are not read.
        signals: All of them; those that are read keep their rows.
        unread: The signals that nobody has waited for yet.
        parked_at: The step that the task waits at, its lease given back; empty for none.
        keeps_key: While it does, no other task of its key takes its place.
        lines, line_bytes: How many lines of its log stand, and their size.
        logged: The number of the last line; it never shrinks.
    """

    steps: Number = 0
    bytes: Number = 0
    signals: Number = 0
    unread: Number = 0
    parked_at: Annotated[str, text(STEP_NAME_BYTES_MAX)] = ""
    keeps_key: bool = False
    lines: Number = 0
    line_bytes: Number = 0
    logged: Number = 0

    @property
    def rows(self) -> int:
        """Return how many rows stand beside the task."""
        return self.steps + self.signals + self.lines


class Cancelling(Struct, frozen=True, array_like=True, kw_only=True):
    """What a cancel has said of a task: one that is leased ends by then, however it goes on.

    Attributes:
        reason: For people.
        deadline_ms: The lease ends then at the latest, and the task with it.
        dependents: If it ends CANCELLED, what waits for it does too.
        request: Id of the request that asked for it.
    """

    reason: Reason = ""
    deadline_ms: Instant
    dependents: bool = False
    request: Name


class More(Struct, frozen=True, array_like=True, kw_only=True):
    """What a task has that most tasks lack.

    Attributes:
        parent_id: The task whose result made it; that one may be deleted already.
        root_id: The first task of the chain, which nothing made.
        run: None unless a schedule made it.
        key: What it shares a limit with: the tasks of its queue with the same key.
        keeps_place: While it backs off, no other task of its key takes its place.
        stops_key: While it is a dead letter, no other task of its key is handed out.
        member: None unless it is a member of a group.
        completes: None unless it is the completion task of a group.
        cost: How many tokens of its key's rate a claim of it spends.
        depends: It has `Dependencies`, met or not.
        waits: It is HELD for its dependencies or its unique key; its key does not hold it.
        input_bytes: The size of the results that its dependencies have handed to it.
        dependents: How many edges lead from it to tasks that wait for its end, or did.
        unique: None without a unique key.
        durable: None unless its function has recorded steps, or it got signals, or it has a log.
        progress: None until a worker says something of it.
        checkpoint_bytes: The size of its `Checkpoint`; 0 without one.
        cancelling: None unless a cancel has said more than its id, in a lease or at its end.
        tags: (name, value), by which lists find it.
        metadata: JSON text for its worker and its webhook; empty for none.
        pinned: What has placed it, as all new tasks of its queue; see `Flow`.
        slotless: It has no slot of its key while it is leased; see `lane_keys.slot_keys`.
    """

    parent_id: IdOrNone = ""
    root_id: IdOrNone = ""
    run: Annotated[Run | None, sound_or_none] = None
    key: Annotated[str, text(LANE_KEY_BYTES_MAX)] = ""
    keeps_place: bool = False
    stops_key: bool = False
    member: Annotated[Membership | None, sound_or_none] = None
    completes: Annotated[GroupCounts | None, sound_or_none] = None
    cost: Annotated[int, whole(1, COST_MAX)] = 1
    depends: bool = False
    waits: bool = False
    input_bytes: Number = 0
    dependents: Number = 0
    unique: Annotated[Unique | None, sound_or_none] = None
    durable: Annotated[Durable | None, sound_or_none] = None
    progress: Annotated[Progress | None, sound_or_none] = None
    checkpoint_bytes: Number = 0
    cancelling: Annotated[Cancelling | None, sound_or_none] = None
    tags: Tags = ()
    metadata: Metadata = ""
    pinned: ScopeOrNone = ""
    slotless: bool = False


class Task(Struct, frozen=True, array_like=True, kw_only=True):
    """A task without its payload, which is written once and kept beside it.

    Attributes:
        tenant: The tenant's name; empty for the default tenant.
        command: The task's class, case kept; queues ignore case.
        seq: Position in the ready queue, given when the task becomes ready; kept while it is HELD,
            0 otherwise.
        due_ms: When a DELAYED task becomes ready.
        expires_ms: When an undelivered task dies (`ttlSeconds`); 0 for never.
        retain_until_ms: When a terminal task is deleted.
        lease_token: Fencing token; grows with every claim of the task and never shrinks.
        claim: Id of the claim request that holds the lease, so that its retry finds the task again.
        run_at_ms: The start time that the producer asked for; 0 for at once.
        ended_by: Id of the request that made the task terminal.
        payload_bytes: Size of the payload, so that a claim can bound its answer without reading it.
        result_bytes: Size of the result; 0 until there is one.
        uploads: Ids of the artifact sets to delete with the task: first those that workers began to
            store, after its end those its result refers to.
        upload_bytes: The size of each of `uploads`: announced at first, and then as stored.
        endings: How often it became terminal; a revived task does so more than once.
        dead_queue: The queue that keeps it as a dead letter; empty unless DEAD.
        handling: Its time limit and back-off; None if it says nothing of them.
        worker_name: What the claim that holds the lease called its worker; it decides nothing.
        more: None for a task that has nothing of it, as most.
    """

    id: Id
    tenant: Owner
    command: Name
    priority: Annotated[int, whole(PRIORITY_MIN, PRIORITY_MAX)]
    max_attempts: Annotated[int, whole(1, ATTEMPTS_MAX)]
    created_ms: Instant
    updated_ms: Instant
    state: State
    attempts: Annotated[int, whole(0, ATTEMPTS_MAX)] = 0
    seq: Seq = 0
    due_ms: Instant = 0
    expires_ms: Instant = 0
    retain_until_ms: Instant = 0
    worker: Subject = ""
    lease_until_ms: Instant = 0
    lease_token: Instant = 0
    claim: NameOrNone = ""
    claimed_ms: Instant = 0
    error: Error = ""
    webhook: UrlOrNone = ""
    trace_parent: TraceParent = ""
    trace_state: TraceState = ""
    idempotency_key: Annotated[str, text(KEY_BYTES_MAX)] = ""
    run_at_ms: Instant = 0
    ready_ms: Instant = 0
    ended_by: NameOrNone = ""
    has_result: bool = False
    history: Annotated[
        tuple[Attempt, ...],
        Meta(max_length=HISTORY_ATTEMPTS_MAX),
        listed(HISTORY_ATTEMPTS_MAX, sound, unique=False),
    ] = ()
    payload_bytes: Number = 0
    result_bytes: Number = 0
    uploads: Annotated[
        tuple[str, ...], Meta(max_length=UPLOADS_MAX), listed(UPLOADS_MAX, UPLOAD)
    ] = ()
    endings: Number = 0
    dead_queue: QueueOrNone = ""
    handling: HandlingOrNone = None
    worker_name: WorkerName = ""
    upload_bytes: Annotated[
        tuple[int, ...], Meta(max_length=UPLOADS_MAX), listed(UPLOADS_MAX, NUMBER, unique=False)
    ] = ()
    more: Annotated[More | None, sound_or_none] = None

    @property
    def stored_bytes(self) -> int:
        """Return what counts against its tenant's budget, with all that stands beside it."""
        own = self.payload_bytes + self.result_bytes + sum(self.upload_bytes)
        if self.more is None:
            return own
        own += beside_bytes(self.more)
        return own if self.more.durable is None else own + self.more.durable.line_bytes

    @property
    def parked_at(self) -> str:
        """Return the step that it waits at without a lease, or ""."""
        more = self.more
        return "" if more is None or more.durable is None else more.durable.parked_at

    @property
    def waits_for_others(self) -> bool:
        """Return whether it is HELD until other tasks have ended, or the holder of its key."""
        return self.state is State.HELD and self.more is not None and self.more.waits

    @property
    def upload_sizes(self) -> dict[str, int]:
        """Return the size of each of its uploads."""
        return dict(zip(self.uploads, self.upload_bytes, strict=True))


def beside_bytes(more: More) -> int:
    """Return the size of what is handed to a task's worker beside its payload."""
    own = more.input_bytes + more.checkpoint_bytes
    if more.tags or more.metadata:
        own += tag_bytes(more.tags) + len(more.metadata.encode())
    return own if more.durable is None else own + more.durable.bytes


def cancelling_of(task: Task) -> Cancelling | None:
    """Return what a cancel has said of a task; None for most."""
    return None if task.more is None else task.more.cancelling


def worker_shown(of: Task | Attempt) -> str:
    """Return a worker for people: the token's subject, and the name beside it if it gave one."""
    return shown_as(of.worker, of.worker_name)


def shown_as(worker: str, name: str) -> str:
    """Return a worker's subject and name as one text."""
    return f"{worker}/{name}" if name else worker


class Artifact(Struct, frozen=True, array_like=True):
    """A named product of a task, stored elsewhere."""

    name: Annotated[str, text(BODY_BYTES_MAX)]
    url: Annotated[str, text(BODY_BYTES_MAX, empty=False)]


class FollowUp(Struct, frozen=True, array_like=True):
    """The name of a task that a result has made: its id, or the key that leads to it."""

    id: IdOrNone = ""
    key: Annotated[str, text(KEY_BYTES_MAX)] = ""


class Result(Struct, frozen=True, array_like=True, kw_only=True):
    """How a task ended.

    Attributes:
        status: COMPLETED or FAILED.
        body: The result's JSON text, exactly as the worker sent it; empty when there is none.
        request: Id of the request that stored it.
        next: The tasks that it has made, in their order.
        next_digest: Of what it said of them, so that a repetition is told from another result.
    """

    task_id: Id
    status: Annotated[str, one_of((COMPLETED, FAILED))]
    body: JsonOrNone = ""
    error: Error = ""
    artifacts: Annotated[
        tuple[Artifact, ...],
        Meta(max_length=ARTIFACTS_MAX),
        listed(ARTIFACTS_MAX, sound, unique=False),
    ] = ()
    completed_ms: Instant = 0
    worker: Subject = ""
    request: NameOrNone = ""
    next: Annotated[
        tuple[FollowUp, ...],
        Meta(max_length=FOLLOW_UPS_MAX),
        listed(FOLLOW_UPS_MAX, sound, unique=False),
    ] = ()
    next_digest: Annotated[str, DIGEST] = ""


class Counters(Struct, frozen=True, array_like=True):
    """The number of tasks of one queue in each place, and their size.

    Attributes:
        dead: Dead letters kept in this queue, whichever queue the tasks belong to.
        stored_bytes: Payloads, results and artifacts of the queue's own tasks, wherever they are
            kept.
        held: Tasks that wait for their key, or for tasks that they depend on.
    """

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    failed: int = 0
    stored_bytes: int = 0
    held: int = 0

    @property
    def waiting(self) -> int:
        """Return how many tasks wait for a worker, for an instant, their key or others."""
        return self.ready + self.delayed + self.held
