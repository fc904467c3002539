"""Verify load: tasks of one queue that are handled in every way that workers have."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from uuid import uuid4

from msgspec import Raw

from codeq_cluster.cli.work.load_flags import tasks_of_others, workers_of_others
from codeq_cluster.cli.work.verify_checks import Act, Delivery, Story, Verb
from codeq_cluster.cli.work.whole_creates import CLEAN_S_MAX, WholeCreates
from codeq_cluster.client import Client, Leases, NotFinished, Refused, TaskRecord, Unreachable
from codeq_cluster.errors import first_of

LEASE_S = 3

_ATTEMPTS_MAX = 100  # No task may die of what is done with it here.
_ADVENTURES_MAX = 4  # Later deliveries of a task are completed, so that there is an end.
_REPEATED = 0.2  # Of the creates.
_KEPT_S = LEASE_S * 4 / 3  # A worker that keeps its lease holds its task for so long.
_AHEAD = 10  # For each worker, at most so many tasks are open: they end in a known time.
_CLAIM_WAIT_S = 1
_LOOK_S = 0.1
_READ_S = 0.05  # For each task, to read it.
# Every open task is kept by its worker in turn; the last one is lost again and again.
DRAIN_S_MIN = int(_AHEAD * _KEPT_S + _ADVENTURES_MAX * (LEASE_S + _CLAIM_WAIT_S)) + 4
# What a worker does with a task that it has got, and how often of a hundred times.
_FATES = {
    "complete": 40,
    "complete twice": 10,
    "keep, then complete": 10,
    "fail": 5,
    "nack": 10,
    "abandon": 15,
    "lose": 10,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyLoad:
    """The load to apply.

    Attributes:
        queue: The queue; nobody else may work on it.
        tasks: Create at most so many.
        seconds: Create for at most so long.
        drain_s: Wait for at most so long until all have ended, `DRAIN_S_MIN` or more.
        in_flight: Creates under way at once, and as many tasks in the hands of workers.
    """

    queue: str
    tasks: int
    seconds: float
    drain_s: float
    in_flight: int


@dataclass(slots=True)
class Tried:
    """What was done.

    Attributes:
        counts: How often each kind of thing was done.
        unanswered: Requests whose outcome is unknown.
        left: Tasks that did not end in time; they are cancelled.
    """

    stories: list[Story] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    left: int = 0


class Verification:
    """Loads a cluster once, and notes what was asked and answered.

    Args:
        clients: Create and read, in turn.
        workers: Claim and end, in turn.
    """

    def __init__(
        self,
        clients: Sequence[Client],
        workers: Sequence[Leases],
        load: VerifyLoad,
        *,
        on_progress: Callable[[Tried], None],
    ) -> None:
        self._clients = clients
        self._workers = workers
        self._load = load
        self._on_progress = on_progress
        self._tried = Tried()
        self._run = uuid4().hex[:8]
        self._by_payload: dict[str, Story] = {}
        self._open: set[str] = set()  # Payloads of tasks that are not known to have ended.
        self._creates = WholeCreates()
        self._lost: dict[str, tuple[TaskRecord, Delivery]] = {}  # By id; their workers come late.
        self._strangers: Counter[str] = Counter()  # Tasks that other workers got, by worker.
        self._asked = 0
        self._ends_s = 0.0
        self._random = random.Random(self._run)  # noqa: S311 (draws work, and keeps no secret)

    async def run(self) -> Tried:
        """Create, wait until all have ended, read each task, cancel what is left.

        Raises:
            CodeqError: A token or a create is refused, or others have tasks or workers here.
        """
        self._ends_s = time.monotonic() + self._load.seconds
        try:
            async with asyncio.TaskGroup() as working:
                workers = [working.create_task(self._work()) for _ in range(self._load.in_flight)]
                async with asyncio.TaskGroup() as creating:
                    for _ in range(self._load.in_flight):
                        creating.create_task(self._create())
                until_s = time.monotonic() + self._load.drain_s
                while self._open and time.monotonic() < until_s:
                    self._on_progress(self._tried)
                    await asyncio.sleep(_LOOK_S)
                for each in workers:
                    each.cancel()
        except BaseExceptionGroup as group:
            raise first_of(group) from group  # The others repeat it: all ask one cluster.
        finally:
            await self._creates.settle()
            await self._clean()
        made = [each for each in self._tried.stories if each.ids]
        with suppress(TimeoutError):
            async with asyncio.timeout(self._load.drain_s + len(made) * _READ_S):
                await self._in_turn(self._read, made)
        if self._strangers:
            [(worker, _)] = self._strangers.most_common(1)
            got = self._strangers.total()
            raise workers_of_others(self._load.queue, worker, got)
        return self._tried

    async def _create(self) -> None:
        while self._asked < self._load.tasks and time.monotonic() < self._ends_s:
            if len(self._open) >= self._load.in_flight * _AHEAD:
                await asyncio.sleep(_LOOK_S)
                continue
            self._asked += 1
            number = self._asked
            story = Story(payload=f'"{self._run}-{number}"')
            self._tried.stories.append(story)
            self._by_payload[story.payload] = story
            self._open.add(story.payload)
            repeated = number == 1 or self._random.random() < _REPEATED
            for _ in range(1 + repeated):
                await self._creates.run(self._create_once(story, number))
            if not story.ids:
                self._open.discard(story.payload)  # Perhaps it was not made.
            self._on_progress(self._tried)

    async def _create_once(self, story: Story, number: int) -> None:
        with self._asking("create", may_be_refused=False):
            made = await self._random.choice(self._clients).create(
                self._load.queue,
                Raw(story.payload.encode()),
                idempotency_key=f"verify-{self._run}-{number}",
                max_attempts=_ATTEMPTS_MAX,
            )
            story.ids.append(made.id)
            story.answers += 1

    async def _work(self) -> None:
        while True:
            called_s = time.monotonic()
            claimed: Sequence[TaskRecord] | None = None
            with self._asking("claim"):
                claimed = await self._worker().claim(
                    [self._load.queue],
                    lease_s=LEASE_S,
                    wait_s=_CLAIM_WAIT_S,
                    worker_name=self._run,
                )
            told_s = time.monotonic()
            if claimed is None:
                await asyncio.sleep(_LOOK_S)
            for task in claimed or ():
                story = self._story_of(task)
                delivery = Delivery(
                    token=task.lease_token,
                    payload=task.payload,
                    called_s=called_s,
                    told_s=told_s,
                    lease_s=LEASE_S,
                )
                story.deliveries.append(delivery)
                if task.id not in story.ids:
                    story.ids.append(task.id)
                await self._come_late(task.id)
                await self._handle(task, story, delivery)

    def _worker(self) -> Leases:
        return self._random.choice(self._workers)

    def _story_of(self, task: TaskRecord) -> Story:
        """Return the story of a task; one whose create was not answered is known by its payload."""
        story = self._by_payload.get(task.payload)
        if story is not None:
            return story
        for each in self._tried.stories:
            if task.id in each.ids:
                return each
        raise tasks_of_others(self._load.queue, task.id)

    async def _come_late(self, task_id: str) -> None:
        """Send the result of the worker that has lost this task, now that another has it."""
        late = self._lost.pop(task_id, None)
        if late is not None:
            await self._complete(*late)

    def _fate_of(self, story: Story) -> str:
        """Draw what becomes of a delivery; the run's first one shows what every check asks for."""
        if len(story.deliveries) > _ADVENTURES_MAX:
            return "complete"
        if len(story.deliveries) == 1 and story is self._tried.stories[0]:
            return "lose"
        [fate] = self._random.choices(list(_FATES), weights=list(_FATES.values()))
        return fate

    async def _handle(self, task: TaskRecord, story: Story, delivery: Delivery) -> None:
        fate = self._fate_of(story)
        worker = self._worker()
        match fate:
            case "nack":
                await self._act(delivery, Verb.NACK, worker.nack(task, "verify", delay_s=1))
                return
            case "abandon":
                await self._act(delivery, Verb.ABANDON, worker.abandon(task))
                return
            case "fail":
                content = _content(task)
                ending = worker.fail(task, content)
                self._ended(task, await self._act(delivery, Verb.FAIL, ending, content))
                return
            case "keep, then complete":
                await asyncio.sleep(_KEPT_S / 2)
                beat = worker.heartbeat(task, extend_s=LEASE_S)
                await self._act(delivery, Verb.HEARTBEAT, beat)
                await asyncio.sleep(_KEPT_S / 2)
            case "lose":
                self._tried.counts["lost lease"] += 1
                self._lost[task.id] = task, delivery
                return
            case _:
                pass
        for _ in range(1 + (fate == "complete twice")):
            await self._complete(task, delivery)

    async def _complete(self, task: TaskRecord, delivery: Delivery) -> None:
        content = _content(task)
        ending = self._worker().complete(task, content.encode())
        self._ended(task, await self._act(delivery, Verb.COMPLETE, ending, content))

    def _ended(self, task: TaskRecord, act: Act) -> None:
        if act.accepted:
            self._open.discard(task.payload)

    async def _act(
        self, delivery: Delivery, verb: Verb, act: Awaitable[object], content: str = ""
    ) -> Act:
        noted = Act(verb=verb, content=content, called_s=time.monotonic())
        delivery.acts.append(noted)
        with self._asking(verb):
            await act
            noted.accepted = True
        noted.told_s = time.monotonic()
        return noted

    async def _read(self, story: Story) -> None:
        client = self._random.choice(self._clients)
        with self._asking("read"):
            try:
                ended = await client.wait(story.ids[0], timeout_s=0)
            except NotFinished:
                return
            except Refused as error:
                story.gone = error.status == HTTPStatus.NOT_FOUND
                raise
            story.status = ended.record.status
            story.content = ended.text.decode() or ended.error
            if story.content not in {act.content for act in story.acts}:
                for last in (await client.task(story.ids[0])).history[-1:]:
                    if last.worker_name != self._run:
                        self._strangers[last.worker_name or last.worker] += 1

    @contextmanager
    def _asking(self, kind: str, *, may_be_refused: bool = True) -> Iterator[None]:
        """Count a request, and note it if its outcome is unknown.

        Raises:
            Refused: The token is refused, or what may not be: nothing would be tried.
        """
        self._tried.counts[kind] += 1
        try:
            yield
        except Refused as error:
            if error.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
                raise
            unanswered = error.code == "outcome-unknown" or error.retryable
            if not unanswered and not may_be_refused:
                raise
            self._tried.unanswered += unanswered
        except Unreachable:
            self._tried.unanswered += 1

    async def _clean(self) -> None:
        """Cancel the remaining tasks: no worker would ever take them."""
        left = [story for each in self._open if (story := self._by_payload[each]).ids]
        self._tried.left = len(left)

        async def cancel(story: Story) -> None:
            story.cancelled = True
            with self._asking("cancel"):
                await self._clients[0].cancel(story.ids[0])

        with suppress(TimeoutError):
            async with asyncio.timeout(CLEAN_S_MAX):
                await self._in_turn(cancel, left)

    async def _in_turn(
        self, act: Callable[[Story], Awaitable[None]], stories: Sequence[Story]
    ) -> None:
        waiting = iter(stories)

        async def each_next() -> None:
            for story in waiting:
                await act(story)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._load.in_flight):
                group.create_task(each_next())


def _content(task: TaskRecord) -> str:
    """Return the result or the error of a delivery, which no other has."""
    return f'"{task.lease_token} of {task.payload[1:-1]}"'
