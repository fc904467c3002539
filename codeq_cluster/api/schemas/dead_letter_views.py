"""Dead-letter views: a queue's dead letters, and the results of actions on them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.schemas.task_views import TaskView


class ErrorGroup(Struct):
    """The number of dead letters with one error."""

    error: str
    count: int


class DeadLetters(Struct):
    """A page of a list, whose cursor is missing at its end; or the causes of the dead letters.

    Groups come with the most frequent first, and `more` says that not all `matched` were examined.
    """

    tasks: list[TaskView] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    groups: list[ErrorGroup] | UnsetType = UNSET
    matched: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Requeued(Struct, rename="camel"):
    """The result of requeueing dead letters; a dry run only counts them."""

    matched: int
    requeued: int
    by_error: dict[str, int]
    more: bool
    dry_run: bool


class Deleted(Struct, rename="camel"):
    """The result of deleting dead letters; a dry run only counts them."""

    matched: int
    deleted: int
    by_error: dict[str, int]
    more: bool
    dry_run: bool
