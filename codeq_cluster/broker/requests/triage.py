"""Triage: list dead letters by kind of error, requeue or delete them, undo that; purge queues.

Every change leaves an audit record. An action that fails half way ends with OutcomeUnknown: some of
the tasks are changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.browsing import Browser
from codeq_cluster.broker.questions import END, Browse
from codeq_cluster.broker.requests.bulk import PAGE, Makes, act, carry_out, half_way, rows_of
from codeq_cluster.broker.requests.dead_letters import DeadLetterReader, DeadLetterSelection
from codeq_cluster.broker.values import Caller, count_error, new_request
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.error_kinds import error_kind
from codeq_cluster.core.operations import Delete, Operation, Purge, Requeue, Revise, UndoRequeue
from codeq_cluster.core.outcomes import Rejected
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Task
from codeq_cluster.portions import in_parts, in_portions

PAYLOADS_BYTES_MAX = 4 * 2**20  # Read and sent at once, so that one shard's part fits a frame.
KINDS_MAX = 200  # Distinct kinds in one answer; all others are counted together.
OTHER_KIND = "(other errors)"

# Changes dead letters; returns how many it changed, and how many it could not change.
_Change = Callable[[Sequence[Task]], Awaitable[tuple[int, int]]]


@dataclass(frozen=True, slots=True)
class Revising:
    """A change to payloads.

    Attributes:
        change: Returns a payload's new text, or None to leave its task alone.
        adds: Bytes that it makes a payload longer, at most.
    """

    change: Callable[[str], str | None]
    adds: int


class ErrorKind(Struct, kw_only=True):
    """Dead letters that died of the same kind of error.

    Attributes:
        sample: One of the errors, in full.
        newest_ms: When the last of them died, Unix milliseconds; `oldest_ms` the first.
    """

    kind: str
    sample: str
    count: int
    newest_ms: int
    oldest_ms: int


class Acted(Struct, frozen=True, kw_only=True):
    """The outcome of an action.

    Attributes:
        action: Names the action to undo it; empty if it cannot be undone.
        left_alone: How many of them could not be changed as asked.
        by_error: Counts of the selected dead letters by error.
        more: Whether more tasks may be selected: ask again.
        refused: Why one of them was not changed; None if none was refused.
    """

    action: str = ""
    ids: tuple[str, ...]
    changed: int
    left_alone: int = 0
    by_error: Mapping[str, int] = {}
    more: bool
    refused: Rejected | None = None


class Triage:
    """Operators' actions on dead and waiting tasks, over all shards."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._browser = Browser(shards)
        self._dead_letters = DeadLetterReader(shards)

    async def listed(
        self, caller: Caller, wanted: DeadLetterSelection, *, after: bytes, count: int
    ) -> tuple[list[Task], bytes]:
        """Return the next dead letters, newest first, and where to go on; empty at the end.

        A page may be short or empty although more pages follow.
        """
        found, edge = await self._dead_letters.page(caller, wanted, after, count=count)
        return found, b"" if edge == END else edge

    async def kinds(
        self, caller: Caller, queue: str, *, after: bytes, count: int
    ) -> tuple[list[ErrorKind], bytes]:
        """Return the error kinds of a queue's next `count` dead letters, and the next position."""
        wanted = DeadLetterSelection(queue=queue)
        found: dict[str, ErrorKind] = {}
        looked_at = 0
        while after != END and looked_at < count:
            tasks, after = await self._dead_letters.page(caller, wanted, after)
            looked_at += max(1, len(tasks))
            for task in tasks:
                _add(found, task)
        return list(found.values()), b"" if after == END else after

    async def preview(
        self, caller: Caller, wanted: DeadLetterSelection
    ) -> tuple[list[ErrorKind], str, bool]:
        """Return the selected dead letters by kind, the first id, and whether more may follow.

        The id is empty if no dead letter is selected.
        """
        found: dict[str, ErrorKind] = {}
        matched, first = 0, ""
        after = b""
        while after != END and matched < wanted.limit:
            tasks, after = await self._dead_letters.page(caller, wanted, after)
            for task in tasks[: wanted.limit - matched]:
                _add(found, task)
                first = first or task.id
            matched += len(tasks)
        return list(found.values()), first, after != END or matched > wanted.limit

    async def requeue(
        self,
        caller: Caller,
        wanted: DeadLetterSelection,
        *,
        dry_run: bool = False,
        revising: Revising | None = None,
    ) -> Acted:
        """Make dead letters ready again, with a new payload where `revising` returns one.

        A requeue with new payloads cannot be undone. A dry run only counts.
        """
        action = new_request()
        number = 0
        refused: list[Rejected] = []

        def operation(ids: tuple[str, ...]) -> Operation:
            nonlocal number
            number += 1
            request = f"{action}.{number}"
            return Requeue(request=request, tenant=caller.tenant, ids=ids, by=caller.by)

        if dry_run:
            return await self._each(caller, wanted, None)
        if revising is None:
            change = self._changing(caller, operation, refused)
            done = await self._each(caller, wanted, change, action=action)
        else:
            revise = partial(self._revise, caller, revising, refused)
            done = await self._each(caller, wanted, revise)
        return replace(done, refused=refused[0] if refused else None)

    async def delete(
        self,
        caller: Caller,
        wanted: DeadLetterSelection,
        *,
        dry_run: bool = False,
    ) -> Acted:
        """Delete dead letters permanently; a dry run only counts them."""

        def operation(ids: tuple[str, ...]) -> Operation:
            return Delete(**caller.signed(), ids=ids, dead_only=True)

        change = None if dry_run else self._changing(caller, operation, [])
        return await self._each(caller, wanted, change)

    async def take_back(self, caller: Caller, action: str, ids: Sequence[str]) -> int:
        """Undo a requeue for the tasks that no worker has claimed since; return their number."""

        def operation(part: tuple[str, ...]) -> Operation:
            return UndoRequeue(**caller.signed(), ids=part, requeue=action)

        return await act(self._shards, ids, operation, deadline=caller.deadline)

    async def purge(
        self, caller: Caller, queue: str, *, limit: int, dry_run: bool = False
    ) -> Acted:
        """Cancel tasks that wait in a queue: ready ones in claim order, then delayed and held ones.

        A dry run only counts them.
        """
        tenant, deadline = caller.tenant, caller.deadline

        def operation(ids: tuple[str, ...]) -> Operation:
            return Purge(**caller.signed(), queue=queue, ids=ids)

        meant: list[str] = []
        changed = 0
        after = b""
        while after != END and len(meant) < limit:
            asked = Browse(
                tenant=tenant,
                queue=queue,
                places=(QueuePlace.PENDING, QueuePlace.DELAYED, QueuePlace.HELD),
                after=after,
                count=min(PAGE, limit - len(meant)),
            )
            with half_way(changed):
                rows, after = await self._browser.tasks(asked, deadline=deadline)
                ids = [task.id for _, task in rows]
                if not dry_run:
                    changed += await act(self._shards, ids, operation, deadline=deadline)
            meant += ids
        return Acted(ids=tuple(meant), changed=changed, more=after != END)

    async def _each(
        self,
        caller: Caller,
        wanted: DeadLetterSelection,
        change: _Change | None,
        *,
        action: str = "",
    ) -> Acted:
        """Act on the selected dead letters page by page; without a change, only count them.

        A task that dies again meanwhile becomes the newest, so it sorts before the page and is not
        met a second time.
        """
        ids: list[str] = []
        by_error: Counter[str] = Counter()
        changed = left_alone = 0
        after = b""
        while after != END and len(ids) < wanted.limit:
            with half_way(changed):
                tasks, after = await self._dead_letters.page(caller, wanted, after)
            left = wanted.limit - len(ids)
            after = after if len(tasks) <= left else b""
            tasks = tasks[:left]
            ids += [task.id for task in tasks]
            for task in tasks:
                count_error(by_error, task.error)
            if change is not None:
                with half_way(changed):
                    some, alone = await change(tasks)
                changed += some
                left_alone += alone
        return Acted(
            action=action,
            ids=tuple(ids),
            changed=changed,
            left_alone=left_alone,
            by_error=dict(by_error),
            more=after != END,
        )

    def _changing(self, caller: Caller, operation: Makes, refused: list[Rejected]) -> _Change:
        async def change(tasks: Sequence[Task]) -> tuple[int, int]:
            ids = [task.id for task in tasks]
            deadline = caller.deadline
            return await act(self._shards, ids, operation, deadline=deadline, refused=refused), 0

        return change

    async def _revise(
        self,
        caller: Caller,
        revising: Revising,
        refused: list[Rejected],
        tasks: Sequence[Task],
    ) -> tuple[int, int]:
        """Requeue dead letters with new payloads; return how many, and how many were left alone."""
        changed = left_alone = 0
        sized = partial(_revised_bytes, revising)
        for part in in_parts(tasks, sized, size_max=PAYLOADS_BYTES_MAX):
            with half_way(changed):
                placed = await self._revisions(caller, revising, part)
                changed += await carry_out(
                    self._shards, placed, deadline=caller.deadline, refused=refused
                )
            left_alone += len(part) - len(placed)
        return changed, left_alone

    async def _revisions(
        self, caller: Caller, revising: Revising, tasks: Sequence[Task]
    ) -> list[tuple[int, Operation]]:
        keys = [(task.id, keyspace.payload(task.id)) for task in tasks]
        placed: list[tuple[int, Operation]] = []
        payloads = await rows_of(self._shards, keys, caller.deadline)
        async for task, payload in in_portions(zip(tasks, payloads, strict=True), at_once=1):
            revised = None if payload is None else revising.change(payload.decode())
            if revised is not None:
                operation = Revise(
                    **caller.signed(), id=task.id, payload=revised, endings=task.endings
                )
                placed.append((shard_of(task.id, self._shards.count), operation))
        return placed


def _revised_bytes(revising: Revising, task: Task) -> int:
    return task.payload_bytes + revising.adds


def _add(found: dict[str, ErrorKind], task: Task) -> None:
    name = error_kind(task.error)
    if name not in found and len(found) >= KINDS_MAX:
        name = OTHER_KIND
    died_ms = task.updated_ms
    known = found.get(name)
    if known is None:
        found[name] = ErrorKind(
            kind=name, sample=task.error, count=1, newest_ms=died_ms, oldest_ms=died_ms
        )
        return
    known.count += 1
    known.newest_ms = max(known.newest_ms, died_ms)
    known.oldest_ms = min(known.oldest_ms, died_ms)
