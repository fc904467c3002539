"""A task of the model, and the callback of its end."""

from __future__ import annotations

from dataclasses import dataclass, field

from codeq_cluster.core.operations import Submit
from codeq_cluster.core.task import Run

from .model_items import Fields

BASE_MS = 8
MAX_MS = 40
RETENTION_MS = 50
KEY_RETENTION_MS = 70
SWEEP_DELAY_MS = 6
ATTEMPTS_DEFAULT = 2
OVERTIME_MS = 2

TIGHT = "tight"  # The one tenant with a budget.
WAITING_MAX = 3
LEASED_MAX = 2
BYTES_MAX = 45

ENDED = ("done", "failed", "dead")


@dataclass(frozen=True)
class Death:
    """The circumstances of a dead letter's death."""

    at_ms: int
    attempts: int
    error: str


@dataclass
class Item:
    """A task."""

    id: str
    tenant: str
    command: str
    priority: int
    max_attempts: int
    key: str  # The idempotency key.
    payload: str
    asked: str  # The payload of its create.
    webhook: str
    created_ms: int
    place: str
    expires_ms: int
    died_ms: int = 0
    ended: int = 0  # Its place among all ends, of which one operation may cause several.
    timer_ms: int = 0  # The end of the delay, the lease or the retention.
    order: int = 0
    attempts: int = 0
    token: int = 0
    worker: str = ""
    worker_name: str = ""
    claimed_ms: int = 0
    claim: str = ""
    cancelled_under: str = ""
    submitted: tuple[object, ...] = ()
    followers: tuple[str, ...] = ()  # The ids or keys of the tasks that its result made.
    run: Run | None = None
    origin: tuple[str, str] = ("", "")  # Its parent and the first task of the chain.
    result_bytes: int = 0
    endings: int = 0
    error: str = ""
    dead_queue: str = ""
    ended_by: str = ""
    revival: str = ""  # The last request that revived it; cleared once a later delivery has ended.
    timeout_ms: int = 0
    backoff: tuple[str, int, int] = ("", 0, 0)  # Its own policy, base and longest delay.
    lane: str = ""  # The key that it shares a limit with.
    cost: int = 1  # Of its tokens.
    keeps: bool = False  # It keeps its place of the key while it backs off.
    stops: bool = False  # As a dead letter, it stops the key.
    death: Death | None = None  # The death from which it was revived.
    uploads: list[str] = field(default_factory=list)

    @property
    def queue(self) -> str:
        """Return the queue of its command."""
        return self.command.lower()

    @property
    def size(self) -> int:
        """Return its stored bytes."""
        return len(self.payload) + self.result_bytes


def delivery_of(item: Item, *, now_ms: int) -> Fields:
    """Return the callback for the task's end."""
    return {
        "tenant": item.tenant,
        "id": f"{item.id}.{item.endings}",
        "task_id": item.id,
        "command": item.command,
        "url": item.webhook,
        "created_ms": now_ms,
        "attempts": 0,
        "due_ms": now_ms,
        "died_ms": 0,
        "expires_ms": 0,
        "error": "",
        "trace_parent": "",
        "trace_state": "",
        "replay": "",
        "since_ms": now_ms,
        "tags": (),
        "metadata": "",
    }


def body_of(item: Item, said: Submit | None, *, request: str, now_ms: int) -> Fields:
    """Return the callback's body: the worker's result, or the broker's own."""
    return {
        "task_id": item.id,
        "status": said.status if said else "FAILED",
        "body": said.body if said else "",
        "error": item.error,
        "artifacts": (),
        "completed_ms": now_ms,
        "worker": said.worker if said else "",
        "request": request,
        "next": (),
        "next_digest": "",
    }
