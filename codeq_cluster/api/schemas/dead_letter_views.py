"""Dead-letter views: a queue's dead letters, and what was done to them."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.schemas.task_views import TaskView


class ErrorGroup(Struct):
    """How many dead letters died of one error."""

    error: str
    count: int


class DeadLetters(Struct):
    """Part of a list, whose cursor is missing at its end; or what the dead letters died of.

    Of the groups the most frequent is first, and `more` says that not all `matched` were looked at.
    """

    tasks: list[TaskView] | UnsetType = UNSET
    cursor: str | UnsetType = UNSET
    groups: list[ErrorGroup] | UnsetType = UNSET
    matched: int | UnsetType = UNSET
    more: bool | UnsetType = UNSET


class Requeued(Struct, rename="camel"):
    """What came of a request to revive dead letters; a dry run only counts them."""

    matched: int
    requeued: int
    by_error: dict[str, int]
    more: bool
    dry_run: bool


class Deleted(Struct, rename="camel"):
    """What came of a request to delete dead letters; a dry run only counts them."""

    matched: int
    deleted: int
    by_error: dict[str, int]
    more: bool
    dry_run: bool
