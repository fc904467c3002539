"""Questions: reads that a shard's leader answers, apart from rows, and their answers.

They are sent between nodes unchanged, so each is a tagged array.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from msgspec import Struct

from codeq_cluster.codec.keyspace import PLACE_OF, QueuePlace
from codeq_cluster.core.bulk import BulkAction
from codeq_cluster.core.explaining import Explanation
from codeq_cluster.core.items import Item
from codeq_cluster.core.outcomes import Rejection
from codeq_cluster.core.selecting import ALL_TASKS, Selection, TaskFilter, is_among
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Cancelling, Task

_A = TypeVar("_A")

# Sorts after every position: those of dead deliveries begin with eight bytes, some of them 0xFF.
END = b"\xff" * 9


class ShardPage(Struct, frozen=True, array_like=True, tag="page"):
    """One shard's part of a list.

    Attributes:
        rows: (position, task), ascending.
        edge: The list is complete up to this position; `END` if nothing follows.
    """

    rows: tuple[tuple[bytes, Task], ...]
    edge: bytes


class ItemPage(Struct, frozen=True, array_like=True, tag="item_page"):
    """One shard's part of a list of items; fields as in `ShardPage`."""

    rows: tuple[tuple[bytes, Item], ...]
    edge: bytes


class Explained(Struct, frozen=True, array_like=True, tag="explained"):
    """The explanation of a task; None if the tenant has no task of this id."""

    explanation: Explanation | None


class Settled(Struct, frozen=True, array_like=True, tag="settled"):
    """The entry is applied."""


class Watched(Struct, frozen=True, array_like=True, tag="watched"):
    """What holders of leases have to hear of; nothing if the wait is over.

    Attributes:
        lost: Task ids, each with why its lease is none any more.
        cancelling: Task ids, each with what is said of their end.
    """

    lost: tuple[tuple[str, Rejection], ...] = ()
    cancelling: tuple[tuple[str, Cancelling], ...] = ()

    @property
    def is_news(self) -> bool:
        """Return whether it says anything."""
        return bool(self.lost or self.cancelling)


class Counted(Struct, frozen=True, array_like=True, tag="counted", kw_only=True):
    """One shard's part of a count; it is complete up to `edge`, `END` if nothing follows.

    Attributes:
        looked: Records read.
        selected: Tasks that the selection is about.
        changes: How many of them the action would change, as far as one task alone can say.
        by_error: How many of them have each error; those without one are left out.
    """

    edge: bytes
    looked: int
    selected: int
    changes: int
    by_state: dict[int, int]
    by_error: dict[str, int]


Answer = ShardPage | ItemPage | Counted | Explained | Settled | Watched


class Question(Generic[_A]):
    """A read, by the type of its answer.

    Attributes:
        answer: That type, for a decoder.
    """

    __slots__ = ()
    answer: type[_A]


class _Read(Struct, frozen=True, array_like=True):
    """What all questions are as bytes."""


class Browse(Question[ShardPage], _Read, frozen=True, tag="browse", kw_only=True):
    """List a tenant's tasks by queue, place and the place's own order.

    Attributes:
        queue: In lower case; empty for every queue.
        after: Position after which to begin; empty for the start.
        count: Rows at most.
        error: Only tasks with this error; empty for all.
        ended_before_ms: In the places of ended tasks, only those that ended before; 0 for all.
    """

    answer = ShardPage

    tenant: str
    queue: str
    places: tuple[QueuePlace, ...]
    after: bytes
    count: int
    error: str = ""
    ended_before_ms: int = 0
    only: TaskFilter = ALL_TASKS


class BrowseDelayed(Question[ShardPage], _Read, frozen=True, tag="browse_delayed", kw_only=True):
    """List a tenant's delayed tasks of all queues by when they become ready.

    Attributes:
        queue: In lower case; empty for every queue.
        after: Position after which to begin; empty for the start.
    """

    answer = ShardPage

    tenant: str
    queue: str
    after: bytes
    count: int
    only: TaskFilter = ALL_TASKS


class BrowseTags(Question[ShardPage], _Read, frozen=True, tag="browse_tags", kw_only=True):
    """List a tenant's tasks with some tags, the newest first.

    Attributes:
        tags: (name, value), at least one, all of which a task must have.
        queue: In lower case; empty for every queue.
        after: Position after which to begin; empty for the start.
        error: Only tasks with this error; empty for all.
    """

    answer = ShardPage

    tenant: str
    tags: tuple[tuple[str, str], ...]
    queue: str
    places: tuple[QueuePlace, ...]
    after: bytes
    count: int
    error: str = ""
    only: TaskFilter = ALL_TASKS

    def fits(self, task: Task) -> bool:
        """Return whether the task is selected."""
        return (
            is_among(task, tags=self.tags, queue=self.queue, only=self.only)
            and PLACE_OF[task.state] in self.places
            and self.error in ("", task.error)
        )


class CountSelected(Question[Counted], _Read, frozen=True, tag="count_selected", kw_only=True):
    """Count the tasks that a bulk job would be about, by its own walk.

    Attributes:
        after: Position after which to begin; empty for the start.
    """

    answer = Counted

    tenant: str
    select: Selection
    action: BulkAction
    after: bytes


class BrowseIds(Question[ShardPage], _Read, frozen=True, tag="browse_ids", kw_only=True):
    """List a tenant's tasks whose ids begin with a prefix, by id."""

    answer = ShardPage

    tenant: str
    prefix: str
    count: int


class Explain(Question[Explained], _Read, frozen=True, tag="explain", kw_only=True):
    """Ask why a task is in its state."""

    answer = Explained

    tenant: str
    id: str


class ListItems(Question[ItemPage], _Read, frozen=True, tag="list_items", kw_only=True):
    """List a tenant's items of one kind by id; of deliveries only the dead ones if so asked.

    Dead deliveries have the order of their deaths, the latest first. Of groups those that have not
    ended come first, the newest first, and then the others, the last end first.

    Attributes:
        after: Position after which to begin; empty for the start.
        owner: Only the schedules of this set; empty for all.
        prefix: Only those whose ids begin with it; positions do not repeat it.
    """

    answer = ItemPage

    tenant: str
    kind: ItemKind
    after: bytes
    count: int
    dead_only: bool = False
    owner: str = ""
    prefix: str = ""


class ListKeys(Question[ItemPage], _Read, frozen=True, tag="list_keys", kw_only=True):
    """List the keys of a queue, those with the most held tasks first; it has no next page.

    Attributes:
        queue: In lower case.
    """

    answer = ItemPage

    tenant: str
    queue: str
    count: int


class Settle(Question[Settled], _Read, frozen=True, tag="settle", kw_only=True):
    """Wait until the node that leads this shard has applied entry `index` of another one."""

    answer = Settled

    shard: int
    index: int


class Watch(Question[Watched], _Read, frozen=True, tag="watch", kw_only=True):
    """Wait until one of a worker's leases is lost, other than by what the worker says itself.

    Or until the task of one is to end.

    Attributes:
        leases: Task ids, each once, with the lease's token; 0 for any.
        wait_ms: At most so long; 0 to look at them only.
        known: Task ids of which the worker knows that they are to end.
    """

    answer = Watched

    tenant: str
    worker: str
    leases: tuple[tuple[str, int], ...]
    wait_ms: int
    known: tuple[str, ...] = ()


AnyQuestion = (
    Browse
    | BrowseDelayed
    | BrowseIds
    | BrowseTags
    | CountSelected
    | Explain
    | ListItems
    | ListKeys
    | Settle
    | Watch
)
