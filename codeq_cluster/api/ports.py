"""Ports: what the HTTP layer needs from the broker, declared here and provided by the node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol

from codeq_cluster.backup.catalogue import FoundBackup
from codeq_cluster.backup.job import Progress
from codeq_cluster.broker.questions import ALL_TASKS, TaskFilter
from codeq_cluster.broker.requests.dead_letters import DeadLetterSelection
from codeq_cluster.broker.requests.operators import Done
from codeq_cluster.broker.requests.triage import Acted, ErrorKind, Revising
from codeq_cluster.broker.values import (
    FoundTask,
    NewResult,
    PeerView,
    QueueDepth,
    RequestedTask,
    ShardStatus,
    Uploaded,
)
from codeq_cluster.codec.arrivals import Arrivals
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.explaining import Explanation
from codeq_cluster.core.items import Item, ItemKind, Mode, Subscription, Topic
from codeq_cluster.core.outcomes import (
    Cancelled,
    Claimed,
    Created,
    Extended,
    Imported,
    Rejected,
    Returned,
    Submitted,
    TopicStands,
)
from codeq_cluster.core.task import Result, Task
from codeq_cluster.errors import CodeqError
from codeq_cluster.membership.plan import Change
from codeq_cluster.membership.service import Effect
from codeq_cluster.ratelimit.token_bucket import Scope
from codeq_cluster.routing.leadership import TransferAnswer

__all__ = [
    "BackupsPort",
    "BrokerPort",
    "Cluster",
    "DeadLetterSelection",
    "Done",
    "FoundTask",
    "ImporterPort",
    "MembershipPort",
    "NewResult",
    "OperatorsPort",
    "PeerView",
    "QueueDepth",
    "QueuePoliciesPort",
    "RequestedTask",
    "SearchPort",
    "ShardStatus",
    "TargetsPort",
    "TransferAnswer",
    "TriagePort",
]


class TargetsPort(Protocol):
    """The rules of which URLs requests may be sent to."""

    async def allows(self, url: str) -> bool:
        """Return whether the URL may be registered; answers within about a second."""


class RateLimiterPort(Protocol):
    """How often tenants may ask, over the whole cluster."""

    def most(self, scope: Scope, tenant: str) -> int | None:
        """Return the most tokens one request can ever have, None for any number."""

    async def spend(self, scope: Scope, operation: str, tenant: str, cost: int = 1) -> None:
        """Take tokens, all or none, at most `most`; raises LimitExceeded, and takes none."""


class Cluster(Protocol):
    """The nodes and who leads what."""

    async def transfer(self, shard: int, to: str, *, timeout_s: float) -> TransferAnswer:
        """Hand a shard's leadership to a node, or to any other when `to` is empty.

        Raises:
            NoLeader: Nobody leads the shard.
            OutcomeUnknown: The leader has been asked and did not answer.
        """


class MembershipPort(Protocol):
    """Who forms the cluster."""

    async def change(
        self, shard: int, change: Change, *, timeout_s: float, dry: bool = False
    ) -> Effect:
        """Change the membership of a shard's group, or say what that would do.

        Raises:
            NoLeader: Nobody leads the shard.
            OutcomeUnknown: The leader has been asked and did not answer.
        """


class BackupsPort(Protocol):
    """The backups that this node takes."""

    def start(self, record: Callable[[Progress], Awaitable[None]]) -> Progress:
        """Begin one, once it is on record; raises BackupRunning when one is under way."""

    async def progress(self, backup: str) -> Progress | None:
        """Return how far one is, None for an unknown one; raises BackupFailed."""

    async def found(self) -> list[FoundBackup]:
        """List those of the place, the oldest first; raises BackupFailed."""


class OperatorsPort(Protocol):
    """What operators do beyond the life of one task; every change is on record.

    A page may be short, or empty, and still have a next one: an empty position is the end.
    """

    async def tasks(
        self,
        tenant: str,
        *,
        queue: str,
        places: tuple[QueuePlace, ...],
        error: str,
        after: bytes,
        count: int,
        timeout_s: float,
    ) -> tuple[list[FoundTask], bytes]:
        """Return the next tasks of the tenant, and where to go on."""

    async def items(
        self,
        tenant: str,
        kind: ItemKind,
        *,
        after: bytes,
        count: int,
        timeout_s: float,
        dead_only: bool = False,
    ) -> tuple[list[Item], bytes]:
        """Return the next items of a kind, and where to go on."""

    async def explain(self, tenant: str, task_id: str, *, timeout_s: float) -> Explanation | None:
        """Return why a task is where it is, or None for no such task of the tenant."""

    async def requeue(
        self, tenant: str, wanted: DeadLetterSelection, *, by: str, dry_run: bool, timeout_s: float
    ) -> Done:
        """Make dead letters ready again."""

    async def delete(
        self, tenant: str, wanted: DeadLetterSelection, *, by: str, dry_run: bool, timeout_s: float
    ) -> Done:
        """Delete dead letters."""

    async def cleanup(
        self,
        tenant: str,
        *,
        before_ms: int,
        limit: int,
        by: str,
        timeout_s: float,
        retained_until_ms: int = 0,
    ) -> int:
        """Delete tasks that ended before an instant; return how many it were.

        Above 0, `retained_until_ms` spares those that are to be kept beyond it.
        """

    async def replay(self, tenant: str, ids: Sequence[str], *, by: str, timeout_s: float) -> int:
        """Try dead deliveries again, all of them when none is named; return how many it were."""


class SearchPort(Protocol):
    """Tasks without their payloads.

    A page may be short, or empty, and still have a next one: an empty position is the end.
    """

    async def task(self, tenant: str, task_id: str, *, timeout_s: float) -> Task | None:
        """Return the tenant's task, or None."""

    async def tasks(
        self,
        tenant: str,
        *,
        queue: str,
        places: tuple[QueuePlace, ...],
        after: bytes,
        count: int,
        timeout_s: float,
        only: TaskFilter = ALL_TASKS,
    ) -> tuple[list[Task], bytes]:
        """Return the next tasks by queue and place, and where to go on."""

    async def delayed(
        self,
        tenant: str,
        *,
        queue: str,
        after: bytes,
        count: int,
        timeout_s: float,
        only: TaskFilter = ALL_TASKS,
    ) -> tuple[list[Task], bytes]:
        """Return the next delayed tasks, those due first at the front, and where to go on."""


class TriagePort(Protocol):
    """What is done about tasks that died or wait; every change is on record.

    An action that fails half way ends with OutcomeUnknown: of some it is done.
    """

    async def listed(
        self,
        tenant: str,
        wanted: DeadLetterSelection,
        *,
        after: bytes,
        count: int,
        timeout_s: float,
    ) -> tuple[list[Task], bytes]:
        """Return the next dead letters, and where to go on; a page may be short."""

    async def kinds(
        self, tenant: str, queue: str, *, after: bytes, count: int, timeout_s: float
    ) -> tuple[list[ErrorKind], bytes]:
        """Return what the next `count` dead letters of a queue died of, and where to go on."""

    async def preview(
        self, tenant: str, wanted: DeadLetterSelection, *, timeout_s: float
    ) -> tuple[list[ErrorKind], str, bool]:
        """Return which dead letters are meant, by kind, one of their ids, and if there are more."""

    async def requeue(
        self,
        tenant: str,
        wanted: DeadLetterSelection,
        *,
        by: str,
        timeout_s: float,
        revising: Revising | None = None,
    ) -> Acted:
        """Make dead letters ready again, with another payload where one is made."""

    async def delete(
        self, tenant: str, wanted: DeadLetterSelection, *, by: str, timeout_s: float
    ) -> Acted:
        """Delete dead letters, for good."""

    async def take_back(
        self, tenant: str, action: str, ids: Sequence[str], *, by: str, timeout_s: float
    ) -> int:
        """Make dead letters again of what a requeue made ready and nobody has claimed since."""

    async def purge(
        self, tenant: str, queue: str, *, limit: int, by: str, timeout_s: float
    ) -> Acted:
        """Cancel tasks that wait in a queue."""


class QueuePoliciesPort(Protocol):
    """What governs a tenant's queues; a change is answered once every shard's leader goes by it."""

    async def put_topic(
        self, tenant: str, name: str, policy: Topic, *, by: str, timeout_s: float
    ) -> TopicStands:
        """Make or change a topic; of `policy` the policy's own fields count."""

    async def topic(self, tenant: str, name: str, *, timeout_s: float) -> Topic | None:
        """Return a topic, or None."""

    async def delete_topic(self, tenant: str, name: str, *, by: str, timeout_s: float) -> None:
        """Delete a topic; one that is not there is deleted."""

    async def pause(self, tenant: str, queue: str, *, by: str, timeout_s: float) -> bool:
        """Pause a queue; tell whether it was not paused before."""

    async def resume(self, tenant: str, queue: str, *, by: str, timeout_s: float) -> bool:
        """Resume a queue; tell whether it was paused before."""

    async def paused(self, tenant: str, *, timeout_s: float) -> frozenset[str]:
        """Return the tenant's paused queues."""

    async def is_paused(self, tenant: str, queue: str, *, timeout_s: float) -> bool:
        """Return whether a queue is paused."""

    async def subscribe(
        self,
        tenant: str,
        worker: str,
        *,
        callback_url: str,
        event_types: Sequence[str],
        mode: Mode,
        group_id: str,
        ttl_ms: int,
        min_interval_ms: int,
        timeout_s: float,
    ) -> Subscription | Rejected:
        """Add a subscription."""

    async def renew(
        self, tenant: str, subscription_id: str, *, ttl_ms: int, timeout_s: float
    ) -> Subscription | Rejected:
        """Let a subscription live for its time again, or for `ttl_ms` if that is not 0."""

    async def unsubscribe(self, tenant: str, subscription_id: str, *, timeout_s: float) -> bool:
        """End a subscription; tell whether it was there."""

    async def record(
        self, tenant: str, *, by: str, action: str, target: str, detail: str, timeout_s: float
    ) -> None:
        """Put on record what an operator did that no log entry of its own tells."""


class ImporterPort(Protocol):
    """What other clusters had."""

    async def take(
        self,
        tenant: str,
        arrivals: Arrivals,
        *,
        by: str,
        source: str,
        forget_keys: bool,
        dry_run: bool,
        timeout_s: float,
    ) -> Imported:
        """Take over what is not here; raises OutcomeUnknown when of some it may be done."""


class BrokerPort(Protocol):
    """The broker behind the routes: every shard, wherever it is led.

    `timeout_s` bounds a call from its start, a wait not counted. Calls raise `CodeqError` when
    the operation could not be carried out or its outcome is not known, unless said otherwise.
    A cancelled call leaves nothing behind: its client has gone away.
    """

    @property
    def operators(self) -> OperatorsPort:
        """Return who lists tasks and acts on many of them."""

    @property
    def searching(self) -> SearchPort:
        """Return who finds tasks."""

    @property
    def triage(self) -> TriagePort:
        """Return who acts on tasks that died or wait."""

    @property
    def queue_policies(self) -> QueuePoliciesPort:
        """Return who keeps topics, pauses and subscriptions."""

    @property
    def importer(self) -> ImporterPort:
        """Return who takes over what other clusters had."""

    async def create(
        self, tenant: str, items: Sequence[RequestedTask], *, timeout_s: float
    ) -> list[Created | Rejected | CodeqError]:
        """Create the tasks, each on its own; one answer an item, order kept, errors as values.

        `Created.payload` is always filled.
        """

    async def claim(
        self,
        tenant: str,
        worker: str,
        *,
        commands: tuple[str, ...],
        count: int,
        lease_ms: int,
        wait_s: float,
        timeout_s: float,
    ) -> Claimed:
        """Lease up to `count` tasks; wait up to `wait_s` for the first one.

        When the call is cancelled, no task stays leased by it.
        """

    async def heartbeat(
        self,
        tenant: str,
        worker: str,
        task_id: str,
        *,
        extend_ms: int,
        token: int,
        timeout_s: float,
    ) -> Extended | Rejected:
        """Extend a lease."""

    async def abandon(
        self, tenant: str, worker: str, task_id: str, *, token: int, timeout_s: float
    ) -> Returned | Rejected:
        """Give a leased task back to its queue."""

    async def nack(
        self,
        tenant: str,
        worker: str,
        task_id: str,
        *,
        delay_ms: int,
        reason: str,
        token: int,
        timeout_s: float,
    ) -> Returned | Rejected:
        """Give a leased task back after a delay; `delay_ms` 0 for the back-off policy."""

    async def submit(
        self, tenant: str, worker: str, items: Sequence[NewResult], *, timeout_s: float
    ) -> list[Submitted | Rejected | CodeqError]:
        """End leased tasks with results; one answer an item, order kept, errors as values."""

    async def upload(
        self,
        tenant: str,
        worker: str,
        task_id: str,
        *,
        name: str,
        content_type: str,
        chunks: AsyncIterator[bytes],
        token: int,
        timeout_s: float,
    ) -> Uploaded | Rejected:
        """Store an artifact of a leased task; raises what `chunks` raises, too."""

    async def cancel(self, tenant: str, task_id: str, *, timeout_s: float) -> Cancelled | Rejected:
        """End a task that is not terminal yet."""

    async def task(
        self, tenant: str, task_id: str, *, stale: bool, timeout_s: float
    ) -> FoundTask | None:
        """Return the tenant's task, or None; `stale` reads the local replica."""

    async def result(
        self, tenant: str, task_id: str, *, wait_s: float, stale: bool, timeout_s: float
    ) -> tuple[FoundTask, Result | None] | None:
        """Return a task and its result, waiting up to `wait_s` for one; None for no such task."""

    async def queues(self, tenant: str, queue: str = "", *, timeout_s: float) -> list[QueueDepth]:
        """Return the depth of every queue of the tenant, or of the one named."""

    def shard_status(self) -> list[ShardStatus]:
        """Return one status a local group, by shard."""

    def missing(self, *, in_full: bool) -> list[str]:
        """Return what keeps this node from being ready; empty when it is ready.

        Args:
            in_full: With directories of the node's machine, for an operator.
        """
