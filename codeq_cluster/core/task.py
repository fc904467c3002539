"""Task: the broker's record of one piece of work, and of its result.

A task's place (a ready queue, a timer, a lease) is a pure function of this value, so a task cannot
be in two places. Instants are Unix milliseconds; 0 means "not set".
"""

from __future__ import annotations

from enum import IntEnum, StrEnum

from msgspec import Struct

PRIORITY_MIN = 0
PRIORITY_MAX = 9

HISTORY_ERROR_CHARS_MAX = 1024  # The result keeps the whole error; the history is a summary.
HISTORY_ATTEMPTS_MAX = 20  # A poison task must not grow without bound: 20 attempts x ~200 bytes.


class State(IntEnum):
    """The state of a task; the wire's status and lastKnownLocation derive from it."""

    READY = 1
    DELAYED = 2
    LEASED = 3
    DONE = 4
    FAILED = 5
    DEAD = 6

    @property
    def terminal(self) -> bool:
        """Return whether no worker can change the task any more."""
        return self >= State.DONE


class AttemptOutcome(StrEnum):
    """How one delivery ended."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"
    NACKED = "NACKED"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    CANCELLED = "CANCELLED"
    REQUEUED = "REQUEUED"  # No delivery: an operator revived the task; this keeps its error.


class Attempt(Struct, frozen=True, array_like=True, kw_only=True):
    """One finished delivery of a task.

    Attributes:
        request: Id of the request that ended it; a retry of that request is recognised by it.
        delay_ms: The wait until the task was to be ready again, so that a retry gets the same
            answer.
    """

    worker: str
    started_ms: int
    ended_ms: int
    outcome: AttemptOutcome
    error: str = ""
    request: str = ""
    delay_ms: int = 0


class Task(Struct, frozen=True, array_like=True, kw_only=True):
    """A task without its payload, which is written once and kept beside it.

    Attributes:
        tenant: The tenant's name; empty for the default tenant.
        command: The task's class, case kept; queues ignore case.
        seq: Position in the ready queue, given when the task becomes ready; 0 unless READY.
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
        endings: How often it became terminal; a revived task does so more than once.
        dead_queue: The queue that keeps it as a dead letter; empty unless DEAD.
    """

    id: str
    tenant: str
    command: str
    priority: int
    max_attempts: int
    created_ms: int
    updated_ms: int
    state: State
    attempts: int = 0
    seq: int = 0
    due_ms: int = 0
    expires_ms: int = 0
    retain_until_ms: int = 0
    worker: str = ""
    lease_until_ms: int = 0
    lease_token: int = 0
    claim: str = ""
    claimed_ms: int = 0
    error: str = ""
    webhook: str = ""
    trace_parent: str = ""
    trace_state: str = ""
    idempotency_key: str = ""
    run_at_ms: int = 0
    ready_ms: int = 0
    ended_by: str = ""
    has_result: bool = False
    history: tuple[Attempt, ...] = ()
    payload_bytes: int = 0
    result_bytes: int = 0
    uploads: tuple[str, ...] = ()
    endings: int = 0
    dead_queue: str = ""


class Artifact(Struct, frozen=True, array_like=True):
    """A named product of a task, stored elsewhere."""

    name: str
    url: str


class Result(Struct, frozen=True, array_like=True, kw_only=True):
    """How a task ended.

    Attributes:
        status: COMPLETED or FAILED.
        body: The result's JSON text, exactly as the worker sent it; empty when there is none.
        request: Id of the request that stored it.
    """

    task_id: str
    status: str
    body: str = ""
    error: str = ""
    artifacts: tuple[Artifact, ...] = ()
    completed_ms: int = 0
    worker: str = ""
    request: str = ""


class Counters(Struct, frozen=True, array_like=True):
    """The number of tasks of one queue in each place, and their size.

    Attributes:
        dead: Dead letters kept in this queue, whichever queue the tasks belong to.
        stored_bytes: Payloads and results of the queue's own tasks, wherever they are kept.
    """

    ready: int = 0
    delayed: int = 0
    leased: int = 0
    dead: int = 0
    done: int = 0
    failed: int = 0
    stored_bytes: int = 0
