"""Operations: the requests that callers can make to one shard.

Nodes forward them unchanged, so each is a tagged array. Its maker checks the limits; the core only
asserts them. `request` is the id that the first node gave the request: an operation sent twice
under one id takes effect once.
"""

from __future__ import annotations

from msgspec import Struct

from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.bulk import BulkOperation
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.dependencies import CreateDependent, CreateGraph
from codeq_cluster.core.durable import DurableOperation
from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.grace import AskCancel
from codeq_cluster.core.groups import GroupOperation
from codeq_cluster.core.handling import Handling
from codeq_cluster.core.holds import HoldOperation, Nack
from codeq_cluster.core.items import Governing, Mode, SetAside
from codeq_cluster.core.lane import KeyOperation, PerKey
from codeq_cluster.core.limit import LimitOperation
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.relays import RelayOperation
from codeq_cluster.core.schedules import ScheduleOperation
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import Artifact


class Claim(Struct, frozen=True, array_like=True, tag="claim", kw_only=True):
    """Lease up to `count` ready tasks of the tenant to a worker.

    Attributes:
        commands: In order of preference among equal priorities; empty for every command.
        retry: The request was sent before; look first for the tasks it already leased.
        worker_name: What the worker calls itself, for people; ownership is by `worker` alone.
    """

    request: str
    tenant: str
    worker: str
    commands: tuple[str, ...]
    count: int
    lease_ms: int
    retry: bool = False
    worker_name: str = ""


class Heartbeat(Struct, frozen=True, array_like=True, tag="heartbeat", kw_only=True):
    """Extend a lease to now + `extend_ms`. With `token` 0, the worker alone decides ownership."""

    id: str
    tenant: str
    worker: str
    extend_ms: int
    token: int = 0


class Abandon(Struct, frozen=True, array_like=True, tag="abandon", kw_only=True):
    """Give a leased task back to the tail of its queue.

    Attributes:
        undelivered: The claim's answer never reached the worker, so the delivery does not count.
    """

    request: str
    id: str
    tenant: str
    worker: str
    token: int = 0
    undelivered: bool = False


class Submit(Struct, frozen=True, array_like=True, tag="submit", kw_only=True):
    """End a leased task with a result: status COMPLETED or FAILED.

    Attributes:
        uploads: The staged artifact sets that the result refers to. A set that is no longer staged
            is refused like a lost lease.
    """

    request: str
    id: str
    tenant: str
    worker: str
    status: str
    body: str = ""
    error: str = ""
    artifacts: tuple[Artifact, ...] = ()
    token: int = 0
    uploads: tuple[str, ...] = ()


class Finish(Struct, frozen=True, array_like=True, tag="finish", kw_only=True):
    """End a leased task with a result, and create the tasks that follow it.

    Attributes:
        next: The tasks, without id and tenant; a fingerprint only with an idempotency key.
        digest: Of all that is said of them.
        groups: The group that each of them joins, empty for none; nothing if none joins one.
    """

    submit: Submit
    next: tuple[Create, ...]
    digest: str
    shards: int
    groups: tuple[str, ...] = ()


class Cancel(Struct, frozen=True, array_like=True, tag="cancel", kw_only=True):
    """End a task that is not terminal yet, even while a worker holds it."""

    request: str
    id: str
    tenant: str


class Advance(Struct, frozen=True, array_like=True, tag="advance", kw_only=True):
    """Apply the due changes of at most `count` tasks and items; the leader's own operation."""

    count: int
    leases_too: bool = True
    pause_ms: int = 0  # From a step of a bulk job to its next one, at least.


class Staging(Struct, frozen=True, array_like=True, tag="stage", kw_only=True):
    """Announce that the lease's holder is about to store artifacts under `upload`.

    From then on they are deleted with the task, or at its end if its result does not refer to them.
    Without the announcement, artifacts of a lost upload would stay for ever.

    Attributes:
        size: Of all of them, in bytes; a second announcement of the upload corrects it.
    """

    id: str
    tenant: str
    worker: str
    upload: str
    token: int = 0
    size: int = 0


class _OnMany(Struct, frozen=True, array_like=True, kw_only=True):
    """What an operator says, `by` its subject, who changes many tasks or items of this shard."""

    request: str
    tenant: str
    ids: tuple[str, ...]
    by: str


class Requeue(_OnMany, frozen=True, array_like=True, tag="requeue", kw_only=True):
    """Make dead letters ready again, with all their attempts restored.

    Attributes:
        ids: Tasks that are no dead letters are left alone.
    """


class Delete(_OnMany, frozen=True, array_like=True, tag="delete", kw_only=True):
    """Delete terminal tasks with everything that belongs to them.

    Attributes:
        ids: On this shard; tasks that are not terminal are left alone.
        dead_only: Delete dead letters only.
    """

    dead_only: bool = False


class Purge(Struct, frozen=True, array_like=True, tag="purge", kw_only=True):
    """Cancel tasks that wait in a queue, ready or delayed.

    Attributes:
        queue: In lower case.
        ids: On this shard; tasks that do not wait in the queue are left alone.
    """

    request: str
    tenant: str
    queue: str
    ids: tuple[str, ...]
    by: str


class Revise(Struct, frozen=True, array_like=True, tag="revise", kw_only=True):
    """Make one dead letter ready again, with another payload.

    Attributes:
        payload: JSON text.
        endings: How often the task had ended when the payload was made. If it has ended again
            since, it is left alone.
    """

    request: str
    tenant: str
    id: str
    by: str
    payload: str
    endings: int


class UndoRequeue(_OnMany, frozen=True, array_like=True, tag="undo_requeue", kw_only=True):
    """Undo a requeue, for those of its tasks that nobody has claimed.

    Attributes:
        ids: On this shard; tasks that the requeue did not revive are left alone.
        requeue: The prefix of the requeue's request ids, up to a dot.
    """

    requeue: str


class PutTopic(Struct, frozen=True, array_like=True, tag="put_topic", kw_only=True):
    """Create or change the policy of a queue.

    Attributes:
        request: Empty until the broker has drawn it.
    """

    request: str = ""
    tenant: str
    name: str
    by: str
    priority_tiers: tuple[int, ...] = ()
    max_attempts: int = 0
    dead_letter: str = ""
    retention_s: int = 0
    max_consumers: int = 0
    weight: int = 1
    handling: Handling | None = None


class PutFlow(Struct, frozen=True, array_like=True, tag="put_flow", kw_only=True):
    """Create or change the policy of a queue and, on all `shards`, its and its keys' rules."""

    topic: PutTopic
    per_key: PerKey | None
    shards: int
    per_queue: PerQueue | None = None
    limit: str = ""


class DeleteTopic(Struct, frozen=True, array_like=True, tag="delete_topic", kw_only=True):
    """Delete a queue's policy on all `shards`, so that the broker's defaults apply."""

    request: str
    tenant: str
    name: str
    by: str
    shards: int = 1


class PauseQueue(Struct, frozen=True, array_like=True, tag="pause", kw_only=True):
    """Stop claims from a queue; leased tasks continue."""

    request: str
    tenant: str
    queue: str
    by: str


class ResumeQueue(Struct, frozen=True, array_like=True, tag="resume", kw_only=True):
    """Allow claims from a paused queue again."""

    request: str
    tenant: str
    queue: str
    by: str


class RotateWebhookKey(Struct, frozen=True, array_like=True, tag="rotate_key", kw_only=True):
    """Begin the next version of the key that signs a tenant's callbacks.

    Attributes:
        overlap_ms: For this time, the version before signs as well.
    """

    request: str
    tenant: str
    overlap_ms: int
    by: str


class Subscribe(Struct, frozen=True, array_like=True, tag="subscribe", kw_only=True):
    """Add a subscription; a second one of the same id is a retry.

    Attributes:
        id: Empty until the broker has drawn it.
    """

    id: str = ""
    tenant: str
    worker: str
    callback_url: str
    event_types: tuple[str, ...]
    mode: Mode
    group_id: str
    ttl_ms: int
    min_interval_ms: int


class RenewSubscription(Struct, frozen=True, array_like=True, tag="renew", kw_only=True):
    """Extend a subscription by its time to live, or by `ttl_ms` if that is not 0."""

    id: str
    tenant: str
    ttl_ms: int = 0


class Unsubscribe(Struct, frozen=True, array_like=True, tag="unsubscribe", kw_only=True):
    """End a subscription; a missing one counts as ended."""

    id: str
    tenant: str


class Delivered(Struct, frozen=True, array_like=True, tag="delivered", kw_only=True):
    """The target has accepted a delivery; the leader's own operation."""

    tenant: str
    id: str


class Undelivered(Struct, frozen=True, array_like=True, tag="undelivered", kw_only=True):
    """An attempt at a delivery has failed; the leader's own operation.

    Attributes:
        attempt: Its number, from 1; an attempt that was reported already changes nothing.
        deferred_ms: Above 0, the target was not tried: it is due again after this time, and no
            attempt counts.
        wait_ms: The shortest wait before the next attempt, as the target asked.
    """

    tenant: str
    id: str
    attempt: int
    error: str = ""
    deferred_ms: int = 0
    wait_ms: int = 0


class Replay(_OnMany, frozen=True, array_like=True, tag="replay", kw_only=True):
    """Try dead deliveries again from the first attempt."""


class Swept(Struct, frozen=True, array_like=True, tag="swept", kw_only=True):
    """An upload was swept, or the sweep `failed`; the leader's own operation."""

    tenant: str
    id: str
    attempt: int
    failed: bool = False


class Retry(_OnMany, frozen=True, array_like=True, tag="retry", kw_only=True):
    """Make things due again that were set aside, by the ids of their asides; leave others alone."""


class Record(Struct, frozen=True, array_like=True, tag="record", kw_only=True):
    """Record an operator's action that changes no task and no item."""

    request: str
    tenant: str
    by: str
    action: str
    target: str
    detail: str = ""


class Import(Struct, frozen=True, array_like=True, tag="import", kw_only=True):
    """Import tasks and items from another cluster; their tenant there does not matter.

    Attributes:
        tenant: The new owner.
        source: The backup they come from.
        shards: The cluster's number of shards, which decides where a key belongs.
        tasks: Tasks of this shard, which `faults.fault` has accepted.
        items: Only on the tenant's home shard.
        forget_keys: A task whose idempotency key is taken, or belongs on another shard, comes
            without the key; otherwise it is left out.
        callbacks_only: Import only the callbacks of missing tasks, for tasks too large for one
            entry; the task itself follows later.
        dry_run: Answer only.
    """

    request: str
    tenant: str
    by: str
    source: str
    shards: int
    tasks: tuple[Arrival, ...] = ()
    items: tuple[Governing, ...] = ()
    forget_keys: bool = False
    callbacks_only: bool = False
    dry_run: bool = False


Operation = (
    Create
    | CreateKeyed
    | CreateTagged
    | CreateUnique
    | ChangeTags
    | Claim
    | Heartbeat
    | Report
    | Abandon
    | Nack
    | Reject
    | HoldOperation
    | Submit
    | Finish
    | Cancel
    | AskCancel
    | Advance
    | Staging
    | Requeue
    | Delete
    | Purge
    | Revise
    | UndoRequeue
    | PutTopic
    | PutFlow
    | KeyOperation
    | LimitOperation
    | DeleteTopic
    | PauseQueue
    | ResumeQueue
    | RotateWebhookKey
    | Subscribe
    | RenewSubscription
    | Unsubscribe
    | Delivered
    | Undelivered
    | Replay
    | Swept
    | RelayOperation
    | ScheduleOperation
    | GroupOperation
    | CreateDependent
    | CreateGraph
    | DurableOperation
    | BulkOperation
    | SetAside
    | Retry
    | Record
    | Import
)
