"""Dependencies: tasks that wait for the ends of others, and the rows that lead from one to another.

A dependent has a row with everything that it waits for, on its own shard. Each task that it waits
for, its parent, has an edge to it on the parent's shard. The end of a parent leaves a walk, which
tells the dependents step by step; those of another shard are told by relays.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from hashlib import blake2b
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from codeq_cluster.core.bounds import (
    DIGEST,
    ID,
    REASON_CHARS_MAX,
    TASK_ID,
    Error,
    Id,
    IdOrNone,
    Instant,
    JsonOrNone,
    NameOrNone,
    Number,
    Owner,
    listed,
    sound,
    sound_or_none,
    that,
)
from codeq_cluster.core.crossing import Crossing
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.sharding import shard_of, shard_of_key
from codeq_cluster.core.stored_item import Place, StoredItem
from codeq_cluster.core.task import COMPLETED, FAILED, State, Task

NODES_MAX = 200  # Tasks of one graph.
GRAPH_EDGES_MAX = 1000  # Of one graph, so that it fits an entry: 1000 x about 500 bytes.
NEEDS_MAX = 100  # Dependencies of one task that is created by itself.
EDGES_MAX = 10_000  # Dependents of one task.

# A larger result is not handed on; its task is named instead.
INPUT_BYTES_MAX = 65_536
INPUTS_BYTES_MAX = 2**20  # Of one task.

# What one step of walks tells, so that it delays no other decision for long.
WALKED_MAX = 48
WALKED_BYTES_MAX = 2**19

# An import brings a dependent's parents within this time, and so do the relays of a backup.
GRACE_MS = 3_600_000
_RESTORED_MS = 1  # Due at once, as no row is that has asked.
# The shard of a graph sends each of its tasks to the shard of its key within this time: unless it
# is without a majority for longer, a parent that is not there yet will come.
SENT_GRACE_MS = 86_400_000

# A dependent asks again for its parents on other shards, the first time after this; it doubles.
ASK_AGAIN_MS = 60_000
ASK_AGAIN_MS_MAX = 3_600_000

REF = re.compile(r"[A-Za-z0-9._-]{1,64}")
_NAME = that(lambda name: TASK_ID.fullmatch(name) or REF.fullmatch(name), "a ref or a task's id")

# What is known of a parent, beside the statuses of results. Empty while it has not ended.
CANCELLED = "CANCELLED"
DEAD = "DEAD"
DELETED = "DELETED"  # A dead letter that was deleted: it will never be completed.
UNKNOWN = "UNKNOWN"  # It was deleted before its shard knew of the dependent.

# Why a dependent ends without having run.
DEPENDENCY_FAILED = "DEPENDENCY_FAILED"
DEPENDENCY_UNKNOWN = "DEPENDENCY_UNKNOWN"


class RunIf(StrEnum):
    """How a parent must end."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ENDED = "ended"


class Otherwise(StrEnum):
    """What becomes of a dependent whose parent cannot end as it must."""

    CANCEL = "cancel"
    DEAD_LETTER = "dead-letter"


class OnDead(StrEnum):
    """Whether a dependent waits for a dead letter to be requeued, or takes it as failed."""

    HOLD = "hold"
    FAIL = "fail"


class Verdict(StrEnum):
    """What is to be said of a dependency now."""

    WAITS = "waits"
    MET = "met"
    IMPOSSIBLE = "impossible"


class Terms(Struct, frozen=True, array_like=True, kw_only=True):
    """When a dependency is met, and what happens if it cannot be."""

    run_if: RunIf = RunIf.SUCCEEDED
    otherwise: Otherwise = Otherwise.CANCEL
    on_dead: OnDead = OnDead.HOLD

    def verdict(self, status: str) -> Verdict:
        """Return what the parent's status says; only a wait is not final."""
        if not status:
            return Verdict.WAITS
        if status == UNKNOWN:
            return Verdict.IMPOSSIBLE
        if self.run_if is RunIf.ENDED:
            return Verdict.MET
        if status == COMPLETED:
            return Verdict.MET if self.run_if is RunIf.SUCCEEDED else Verdict.IMPOSSIBLE
        if self.run_if is RunIf.FAILED:
            return Verdict.MET
        waits = status == DEAD and self.on_dead is OnDead.HOLD
        return Verdict.WAITS if waits else Verdict.IMPOSSIBLE


class Ended(Struct, frozen=True, array_like=True, kw_only=True):
    """How a parent has ended, as its dependents are told.

    Attributes:
        status: COMPLETED, FAILED, CANCELLED, DEAD, DELETED or UNKNOWN; empty for one that an
            operator has revived.
        body: Its result's JSON text.
        left_out: The result is too large to be handed on.
        takes: It was cancelled with its dependents, whatever these say of its end.
    """

    status: NameOrNone = ""
    body: JsonOrNone = ""
    error: Error = ""
    left_out: bool = False
    takes: bool = False

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return len(self.body) + len(self.error) + 128


class Dependency(Struct, frozen=True, array_like=True, kw_only=True):
    """One task that another waits for.

    Attributes:
        name: What the dependent's worker finds the input under: the ref, or the parent's id.
        status: What is known of the parent; see `Ended`.
    """

    parent: Id
    name: Annotated[str, _NAME]
    terms: Annotated[Terms, lambda _value: ""] = Terms()
    status: NameOrNone = ""

    @property
    def verdict(self) -> Verdict:
        """Return what is to be said of it now."""
        return self.terms.verdict(self.status)


class Dependencies(StoredItem, frozen=True, array_like=True, tag="deps", kw_only=True):
    """Everything that a task waits for, or has waited for; it is deleted with the task.

    Attributes:
        id: The task's.
        start_ms: The earliest start that the task asks for; 0 for none.
        asked: How often it has asked for parents on other shards.
        expires_ms: When it asks, or asks again; 0 for never.
        grace_ms: Until then, a parent that is not there may still come: by the same import, from
            the shard of its graph, or from the relays of a restored copy.
    """

    place = Place.TASK

    tenant: Owner
    id: Id
    of: Annotated[tuple[Dependency, ...], Meta(max_length=NODES_MAX), listed(NODES_MAX, sound)]
    start_ms: Instant = 0
    asked: Number = 0
    expires_ms: Instant = 0
    grace_ms: Instant = 0

    @property
    def all_met(self) -> bool:
        """Return whether the task may run."""
        return all(each.verdict is Verdict.MET for each in self.of)


def _are_two(name: str) -> bool:
    first, dot, second = name.partition(".")
    return bool(TASK_ID.fullmatch(first) and dot and TASK_ID.fullmatch(second))


class Edge(StoredItem, frozen=True, array_like=True, tag="edge", kw_only=True):
    """The way from a parent to one dependent, on the parent's shard.

    Attributes:
        id: `<parent>.<dependent>`.
        done: The dependent has been told all that it needs; it may run, or will not.
    """

    place = Place.TASK

    tenant: Owner
    id: Annotated[str, that(_are_two, "a task's id, a dot and a task's id")]
    terms: Annotated[Terms, lambda _value: ""] = Terms()
    done: bool = False

    @property
    def parent(self) -> str:
        """Return the parent's id."""
        return self.id.partition(".")[0]

    @property
    def dependent(self) -> str:
        """Return the dependent's id."""
        return self.id.partition(".")[2]


def edge_id(parent: str, dependent: str) -> str:
    """Return the id of an edge, or what it begins with for any dependent."""
    return f"{parent}.{dependent}"


class Input(StoredItem, frozen=True, array_like=True, tag="input", kw_only=True):
    """The result of a parent, kept for the dependent's worker.

    Attributes:
        id: The dependent's, a dot and the place among its dependencies.
        name: See `Dependency`.
        ended: The parent's end; `left_out` if the inputs of the task would become too large.
    """

    place = Place.TASK

    tenant: Owner
    id: Annotated[
        str, that(re.compile(rf"{TASK_ID.pattern}\.[0-9]{{1,3}}").fullmatch, "an id and a number")
    ]
    name: Annotated[str, _NAME]
    parent: Id
    ended: Annotated[Ended, sound]


def input_id(dependent: str, place: int) -> str:
    """Return the id of the input at a place among the dependencies."""
    return f"{dependent}.{place}"


class Walk(StoredItem, frozen=True, array_like=True, tag="walk", kw_only=True):
    """The end of a parent on its way to the dependents; a later end takes the place of this one.

    Attributes:
        id: The parent's.
        ended: A copy, because the parent may be deleted before the walk is over.
        gone: The parent is deleted, so the edges go as well.
        walked: The last dependent that was told.
        expires_ms: When the walk goes on.
    """

    place = Place.TASK

    tenant: Owner
    id: Id
    ended: Annotated[Ended, sound]
    gone: bool = False
    walked: IdOrNone = ""
    expires_ms: Instant = 0


class GraphKey(StoredItem, frozen=True, array_like=True, tag="graph", kw_only=True):
    """The idempotency key of a graph, and the tasks that it has made.

    Attributes:
        id: The digest of the key.
        digest: Of the request, so that a repetition is told from another graph.
        expires_ms: When the key is forgotten.
    """

    place = Place.NAME

    tenant: Owner
    id: Annotated[str, that(re.compile(r"[0-9a-f]{32}").fullmatch, "a digest")]
    digest: Annotated[str, DIGEST]
    tasks: Annotated[tuple[str, ...], Meta(max_length=NODES_MAX), listed(NODES_MAX, ID)]
    expires_ms: Instant

    @property
    def shard_name(self) -> str:
        """Return the name that decides its shard."""
        return f"graph/{self.id}"


def graph_key(key: str) -> str:
    """Return the id of a graph's idempotency key, which may be any text."""
    return blake2b(key.encode(), digest_size=16).hexdigest()


def graph_shard(tenant: str, key_id: str, shards: int) -> int:
    """Return the shard of a graph with an idempotency key."""
    return shard_of_key(tenant, f"graph/{key_id}", shards)


class Need(Struct, frozen=True, array_like=True, kw_only=True):
    """What a new task is to wait for.

    Attributes:
        ended: How a parent of another shard had ended when it was asked; None if it had not, or is
            of this shard.
    """

    parent: Id
    name: Annotated[str, _NAME]
    terms: Annotated[Terms, lambda _value: ""] = Terms()
    ended: Annotated[Ended | None, sound_or_none] = None


sound_needs = listed(NODES_MAX, sound)


def waiting_for(task: Task, needs: Iterable[Need], *, grace_ms: int = 0) -> Dependencies:
    """Return the row of a new task that waits for others."""
    return Dependencies(
        tenant=task.tenant,
        id=task.id,
        of=tuple(
            Dependency(parent=each.parent, name=each.name, terms=each.terms) for each in needs
        ),
        start_ms=task.due_ms if task.state is State.DELAYED else 0,
        grace_ms=grace_ms,
    )


class Node(Struct, frozen=True, array_like=True):
    """A new task with what it is to wait for."""

    create: Create
    needs: tuple[Need, ...] = ()


class CreateDependent(Struct, frozen=True, array_like=True, tag="create_dependent"):
    """Add a task that waits for others."""

    node: Node


class CreateGraph(Struct, frozen=True, array_like=True, tag="create_graph", kw_only=True):
    """Add the tasks of a graph, all or none; a second one with the same key is a retry.

    Attributes:
        shard: That of the graph; some task is of it, or there is a key.
        key: The id of its `GraphKey`; empty for none.
        digest: Of the request.
        nodes: With their ids; each may wait for any other. Those with keys may be of other shards,
            which get them by relays.
    """

    tenant: str
    shard: int
    nodes: tuple[Node, ...]
    key: str = ""
    digest: str = ""


class Watch(Crossing, frozen=True, array_like=True, tag="watch", kw_only=True):
    """A dependent's question after a parent on another shard; asked again, it changes nothing."""

    tenant: Owner
    parent: Id
    dependent: Id
    terms: Annotated[Terms, lambda _value: ""] = Terms()

    def home(self, shards: int) -> int:
        """Return the shard of the parent, of so many."""
        return shard_of(self.parent, shards)


class Resolve(Crossing, frozen=True, array_like=True, tag="resolve", kw_only=True):
    """What becomes of a parent, on its way to a dependent; told again, it changes nothing."""

    tenant: Owner
    parent: Id
    dependent: Id
    ended: Annotated[Ended, sound]

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        return self.ended.size

    def home(self, shards: int) -> int:
        """Return the shard of the dependent, of so many."""
        return shard_of(self.dependent, shards)


def restored(row: Dependencies) -> Dependencies:
    """Return a row of a backup as it begins here: a task that waits asks again at once."""
    return row if row.all_met else replace(_open(row), asked=0, expires_ms=_RESTORED_MS)


def asking(row: Dependencies, *, now_ms: int) -> Dependencies:
    """Return a row that is asking; parents of a restored one may still be on their way."""
    grace_ms = now_ms + GRACE_MS if row.expires_ms == _RESTORED_MS else row.grace_ms
    return replace(row, expires_ms=0, grace_ms=grace_ms)


def arriving(row: Dependencies, *, tenant: str, now_ms: int) -> Dependencies:
    """Return a row of an import as it stands here: its parents may come behind it."""
    row = replace(row, tenant=tenant, asked=0, expires_ms=0)
    if row.all_met:
        return row
    return replace(_open(row), expires_ms=now_ms + ASK_AGAIN_MS, grace_ms=now_ms + GRACE_MS)


def _open(row: Dependencies) -> Dependencies:
    """Return a row without what is not final: a dead letter may be alive where it is now."""
    of = (
        replace(each, status="") if each.verdict is Verdict.WAITS and each.status else each
        for each in row.of
    )
    return replace(row, of=tuple(of))


def told(*, status: str, body: str, error: str) -> Ended:
    """Return an end as it is told: without a result that is too large."""
    size = len(body.encode()) + len(error.encode())
    if size <= INPUT_BYTES_MAX:
        return Ended(status=status, body=body, error=error)
    return Ended(status=status, error=error[:REASON_CHARS_MAX], left_out=True)


def shown_status(status: str) -> str:
    """Return a parent's status as its dependent's worker reads it: that of a result."""
    return COMPLETED if status == COMPLETED else FAILED
