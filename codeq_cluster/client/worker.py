"""Worker: claims tasks and passes each to the handler of its command, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.delivery import ClaimedDelivery
from codeq_cluster.client.handlers import Limit, Meaning, Registered
from codeq_cluster.client.handling import Ended, HandlersStuck
from codeq_cluster.client.health import Health
from codeq_cluster.client.keeping import BEATS_A_LEASE, Keeper
from codeq_cluster.client.leases import Leases
from codeq_cluster.client.producing import Duration, NewTask, seconds_of
from codeq_cluster.client.records import TaskRecord
from codeq_cluster.client.refusals import Refused, Unreachable
from codeq_cluster.client.scheduling import (
    Applied,
    Interval,
    NewSchedule,
    ScheduleLike,
    document_of,
)
from codeq_cluster.client.threads import Threads
from codeq_cluster.errors import CodeqError, ConfigInvalid, first_of

log = logging.getLogger(__name__)

EVERY_COMMAND: Final = "*"
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

# The smallest bound on a claim of several tasks that a broker is known to have.
_CLAIM_MAX: Final = 10
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,40}")
_UNNAMED: Final = re.compile(r"[^A-Za-z0-9._-]")  # What a host's name may not have in a worker's.
_HOST_CHARS_MAX: Final = 64
# The longest lease that a broker gives at once, so a stuck handler holds its task no longer.
_TIMEOUT_S: Final = 12 * 3600
TIMEOUT_S_MAX: Final = 366 * 86_400
_SILENT_S_MAX: Final = 60.0  # Two claims that wait for the longest time.

H = TypeVar("H", bound=Callable[..., Any])


@dataclass(eq=False, repr=False)
class Worker:
    """A worker for one cluster; runs once.

    Handlers are registered by command. A task's lease is extended while its handler runs. A handler
    is cancelled when its lease is lost or its task is cancelled, since another worker may have the
    task. The return value of a handler is the task's result; None means an empty object. `Fail`
    fails the task for good, `Reject` makes it a dead letter; `Retry` and any other exception return
    it to the queue. Handlers must tolerate that a task is delivered more than once.

    Attributes:
        urls: Base URLs of nodes, at least one, the preferred ones first.
        token: A worker's token.
        name: By which people tell workers apart. What is given, of A-Za-z0-9._- and at most 40
            characters, stands before the host and the process.
        concurrency: Tasks handled at once, at least 1.
        lease_s: The length of a lease, at least 3; after that long a dead worker is noticed.
        wait_s: How long one claim waits for tasks, 0 to 30.
        grace_s: How long handlers may go on after a stop.
        timeout: How long a handler may take that has no limit of its own; a number in seconds. At
            its end the task is returned as after an error.
        overtime_s: How long a handler that was asked to end may take for it. A thread cannot be
            ended: after that its slot serves other tasks, for at most `concurrency` threads.
        give_up_s: How long unanswered claims are repeated before the worker ends.
        discover: Learn the other nodes.
        ca_file: The only authorities trusted for https.
        codec: Converts payloads and results.
        health_port: The port of `/healthz`; 0 for any free port, None to serve nothing.
        health_host: The address of `/healthz`; 0.0.0.0 in a container.
        silent_s_max: `/healthz` fails when a claim has had no answer for this long; must be above
            `wait_s`.
        ended: Called with each finished delivery, after it is logged.

    Raises:
        ConfigInvalid: A value is out of bounds, or the file of authorities has none.
    """

    urls: Sequence[str]
    _: KW_ONLY
    token: str
    name: str = ""
    concurrency: int = 1
    lease_s: int = 60
    wait_s: int = 20
    grace_s: float = 30.0
    timeout: Duration = _TIMEOUT_S
    overtime_s: float = 10.0
    give_up_s: float = 300.0
    discover: bool = True
    ca_file: Path | None = None
    codec: Codec = JSON
    health_port: int | None = None
    health_host: str = "127.0.0.1"
    silent_s_max: float = _SILENT_S_MAX
    ended: Callable[[Ended], None] = lambda _: None

    def __post_init__(self) -> None:
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigInvalid(f"name={self.name!r}: must be 1 to 40 of A-Za-z0-9._-")
        host = _UNNAMED.sub("-", socket.gethostname())[:_HOST_CHARS_MAX] or "host"
        process = f"{host}:{os.getpid()}"
        self.name = f"{self.name}@{process}" if self.name else process
        _check("concurrency", self.concurrency, least=1)
        _check("lease_s", self.lease_s, least=BEATS_A_LEASE)
        _check("wait_s", self.wait_s, least=0)
        _check("overtime_s", self.overtime_s, least=0)
        _check("silent_s_max", self.silent_s_max, least=self.wait_s + 1)
        self._limit = Limit(_limit_s(self.timeout), "worker")
        self._leases = Leases(
            self.urls, token=self.token, discover=self.discover, ca_file=self.ca_file
        )
        self._keeper = Keeper(self._leases, lease_s=self.lease_s)
        self.health = Health(
            host=self.health_host, port=self.health_port, silent_s_max=self.silent_s_max
        )
        self._threads = Threads()
        self._commands: list[str] = []  # As registered: tokens compare their case.
        self._handlers: dict[str, Registered] = {}  # By command in lower case, as queues ignore it.
        self._schedules: dict[str, NewSchedule] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = False
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._stuck: set[asyncio.Future[object]] = set()
        self._failure: CodeqError | None = None

    def task(
        self,
        *commands: str,
        errors: Mapping[type[Exception], Meaning] | None = None,
        timeout: Duration | None = None,
        cron: str | None = None,
        zone: str | None = None,
        every: Interval | None = None,
        schedule_id: str | None = None,
        payload: object = None,
        overlap: str | None = None,
    ) -> Callable[[H], H]:
        """Register the decorated function as the handler of these commands.

        It takes one `Task`; as `Task[Resize]`, the payload is read as a `Resize`. It is a coroutine
        function, or any other, which runs in a thread.

        Args:
            commands: At least one; queues ignore case, and so does this. `*` stands for every
                command that the token allows and that has no handler.
            errors: What to do when the handler raises one of these or a subclass: `Fail()`, or
                `Retry(after=60)`.
            timeout: How long the handler may take, a number in seconds; None for the worker's.
            cron: When the broker is to create such a task by itself, once `apply_schedules` has
                said so; this and the others are those of `NewSchedule`.
            zone: The time zone of `cron`.
            every: Instead of `cron`.
            schedule_id: The schedule's name; None for the command.
            payload: Of each of these tasks; None for an empty object.
            overlap: What happens while an earlier one has not ended.

        Raises:
            ConfigInvalid: No command is named, a command has a handler already, the handler does
                not take one `Task`, the time limit is not above 0, or a schedule has no command of
                its own, no calendar or another one's name.
        """
        limit = self._limit if timeout is None else Limit(_limit_s(timeout), "handler")
        if not commands:
            raise ConfigInvalid("task(): no command is named; name at least one, or *")
        taken = [each for each in commands if each.lower() in self._handlers]
        if taken:
            raise ConfigInvalid(f"task({taken[0]!r}): it has a handler; give one per command")
        scheduled: dict[str, NewSchedule] = {}
        if cron is not None or every is not None:
            made = NewSchedule(
                commands[0] if schedule_id is None else schedule_id,
                NewTask(commands[0], {} if payload is None else payload),
                cron=cron,
                zone=zone,
                every=every,
                overlap=overlap,
            )
            self._check_schedule(made, commands)
            scheduled[made.id] = made
        elif any(each is not None for each in (zone, schedule_id, payload, overlap)):
            raise ConfigInvalid(f"task({commands[0]!r}): of a schedule; give it cron or every")

        def register(handler: H) -> H:
            registered = Registered(
                handler,
                errors=errors or {},
                codec=self.codec,
                threads=self._threads,
                limit=limit,
            )
            self._commands += commands
            self._handlers.update((each.lower(), registered) for each in commands)
            self._schedules.update(scheduled)
            return handler

        return register

    async def apply_schedules(
        self,
        *,
        owner: str,
        revision: int = 0,
        others: Iterable[ScheduleLike] = (),
        dry_run: bool = False,
    ) -> Applied:
        """Make an owner's schedules exactly those of the handlers: create, change and remove.

        Call it when a release is rolled out, before or while the worker works. The token needs the
        scope `codeq:schedule`.

        Args:
            owner: The set, one for each program.
            revision: Of the set, growing with each release: the call of an earlier release fails
                once a later one's stands. 0 for none.
            others: More schedules of the set, for commands that the token allows.
            dry_run: Change nothing; return what would change.

        Raises:
            Refused: The broker does not take the set.
            Unreachable: No node takes a connection.
            ValueError: An instant has no time zone.
        """
        own = [document_of(each, self.codec) for each in self._schedules.values()]
        # One of its own: the connection of the claims is open while the worker works.
        connection = Leases(
            self.urls, token=self.token, discover=self.discover, ca_file=self.ca_file
        )
        async with connection:
            return await connection.apply_schedules(
                owner, [*own, *others], revision=revision, dry_run=dry_run
            )

    @property
    def running(self) -> int:
        """How many tasks are in progress."""
        return len(self._running)

    def wants(self, command: str) -> bool:
        """Return whether the worker can take a task of a command now."""
        serves = self._loop is not None and not self._stopping.is_set()
        return serves and self.running < self.concurrency and self._handler_of(command) is not None

    def stop(self) -> None:
        """Stop claiming; handlers that outlast `grace_s` are cancelled, and their tasks returned.

        Can be called from any thread. Tasks of a claim that is being answered at this moment return
        to their queue when their leases end.
        """
        self._asked_to_stop = True
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._stopping.set)

    def run(
        self, *, tasks_max: int | None = None, signals: Sequence[signal.Signals] = STOPPING
    ) -> None:
        """Work until a signal; the program's main thread calls this, and nothing else runs in it.

        The first signal stops the worker as `stop` does; a second one cancels its handlers and
        gives their tasks back at once.

        Args:
            tasks_max: As for `serve`.
            signals: The signals that stop it; their previous handlers are restored afterwards.

        Raises:
            CodeqError: As `serve` does.
        """
        try:
            asyncio.run(self._until_signal(tasks_max, signals))
        except (Refused, Unreachable, HandlersStuck) as error:
            # The text says everything; the path through this package would hide it on a terminal.
            raise error.with_traceback(None) from None

    async def serve(self, *, tasks_max: int | None = None) -> None:
        """Work until `stop`; for programs that have an event loop and take signals themselves.

        If it is cancelled, it cancels its handlers and returns their tasks at once.

        Args:
            tasks_max: Also end after so many deliveries.

        Raises:
            ConfigInvalid: No handler is registered.
            Refused: The broker does not let this worker go on.
            Unreachable: No node took a claim for `give_up_s`.
            HandlerUnfit: A handler raised it.
            HandlersStuck: More than `concurrency` handlers cannot be ended.
            OSError: The port for `/healthz` is taken.
            Exception: `ended` raised it.
        """
        if not self._handlers:
            raise ConfigInvalid("no handler: register one with @worker.task(COMMAND)")
        self._loop = asyncio.get_running_loop()
        log.info(
            "%s works on %s, %d at once, at %s",
            self.name,
            ", ".join(self._commands),
            self.concurrency,
            ", ".join(self._leases.nodes),
        )
        if self._asked_to_stop:  # Stopped before a loop existed to notify.
            self._stopping.set()
        try:
            async with self._leases, self.health:
                await self._work_off(tasks_max)
        except BaseExceptionGroup as group:
            raise first_of(group) from None
        finally:
            self._loop = None
            self._threads.stop()
        if self._failure is not None:
            raise self._failure

    def _check_schedule(self, schedule: NewSchedule, commands: Sequence[str]) -> None:
        if len(commands) > 1 or EVERY_COMMAND in commands:
            raise ConfigInvalid(f"task{commands}: a schedule is for one command; name it alone")
        if schedule.id in self._schedules:
            raise ConfigInvalid(f"schedule {schedule.id!r}: it is there; give another schedule_id")

    async def _work_off(self, left: int | None) -> None:
        """Claim and deliver until it is stopped or nothing is left, then wait for the handlers."""
        running = self._running
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stopped())
            keeping = group.create_task(self._keeper.run())
            while not self._stopping.is_set() and left != 0:
                free = min(self.concurrency - len(running), _CLAIM_MAX, left or _CLAIM_MAX)
                if free == 0:
                    await _first(stopping, *running)
                    continue
                claiming = group.create_task(self._claim(free))
                await _first(stopping, claiming)
                if not claiming.done():
                    claiming.cancel()
                    break
                for task in claiming.result():
                    work = group.create_task(self._work(task, stopping))
                    running.add(work)
                    work.add_done_callback(running.discard)
                    left = None if left is None else left - 1
            await self._drain(stopping)
            stopping.cancel()
            keeping.cancel()

    async def _claim(self, count: int) -> Sequence[TaskRecord]:
        """Return claimed tasks; none if the worker cannot go on, which also stops it."""
        commands = () if EVERY_COMMAND in self._commands else self._commands
        self.health.claiming()
        try:
            claimed = await self._leases.claim(
                commands,
                count=count,
                lease_s=self.lease_s,
                wait_s=self.wait_s,
                within_s=self.give_up_s,
                worker_name=self.name,
            )
        except (Refused, Unreachable) as error:
            self._fail(error)
            return ()
        self.health.claimed()
        return claimed

    def _handler_of(self, command: str) -> Registered | None:
        return self._handlers.get(command.lower()) or self._handlers.get(EVERY_COMMAND)

    async def _work(self, task: TaskRecord, stopping: asyncio.Task[None]) -> None:
        handler = self._handler_of(task.command)
        assert handler is not None, "the broker gave a task of a command that was not claimed"
        delivery = ClaimedDelivery(
            self._leases,
            self._keeper,
            task,
            handler,
            lease_s=self.lease_s,
            overtime_s=self.overtime_s,
        )
        ended = await delivery.run()
        if ended.failure is not None:
            self._fail(ended.failure)
        self.ended(ended)
        unfinished = delivery.call.unfinished()
        if unfinished is not None and not self._stopping.is_set():
            # The slot of a lost task is free when its thread is free, or out of time.
            either: set[asyncio.Future[Any]] = {unfinished, stopping}
            await asyncio.wait(
                either, timeout=delivery.call.left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not unfinished.done() and not self._stopping.is_set():
                self._leave(task, unfinished)

    def _leave(self, task: TaskRecord, unfinished: asyncio.Future[object]) -> None:
        """Give the slot of a handler that cannot be ended to other tasks, if there are not many."""
        self._stuck.add(unfinished)
        unfinished.add_done_callback(self._stuck.discard)
        text = f"task {task.id} {task.command}: its handler still runs after its time limit"
        if len(self._stuck) <= self.concurrency:
            log.error("%s; %d of at most %d such", text, len(self._stuck), self.concurrency)
        else:
            # A supervisor starts the process again, which is the only way to end a thread.
            self._fail(HandlersStuck(f"{text}, as do {self.concurrency} others; start it again"))

    async def _drain(self, stopping: asyncio.Task[None]) -> None:
        """Wait for the handlers: within `grace_s` after a stop, without a bound otherwise."""
        running = self._running
        while running and not self._stopping.is_set():
            await _first(stopping, *running)
        if running:
            _, late = await asyncio.wait(running, timeout=self.grace_s)
            for work in late:
                work.cancel()

    async def _until_signal(self, tasks_max: int | None, signals: Sequence[signal.Signals]) -> None:
        serving = asyncio.ensure_future(self.serve(tasks_max=tasks_max))
        try:
            with _heard(signals, self._hear, serving):
                await asyncio.wait({serving})
        finally:
            serving.cancel()
            await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()

    def _hear(self) -> None:
        log.warning(
            "stopping: nothing more is claimed, handlers may finish; a second signal ends them"
        )
        self.stop()

    def _fail(self, failure: CodeqError) -> None:
        self._failure = self._failure or failure
        self._stopping.set()

    async def _stopped(self) -> None:
        await self._stopping.wait()


@contextmanager
def _heard(
    signals: Sequence[signal.Signals], first: Callable[[], None], serving: asyncio.Task[None]
) -> Iterator[None]:
    """Call `first` at the first of these signals, and cancel `serving` at the second."""
    loop = asyncio.get_running_loop()
    asked = False

    def heard() -> None:
        nonlocal asked
        if asked:
            log.warning("stopping at once: the tasks in progress are returned")
            serving.cancel()
        else:
            asked = True
            first()

    # Only the main thread gets signals; in other threads the program must call `stop` itself.
    taken = signals if threading.current_thread() is threading.main_thread() else ()
    for number in taken:
        loop.add_signal_handler(number, heard)
    try:
        yield
    finally:
        for number in taken:
            loop.remove_signal_handler(number)


async def _first(*tasks: asyncio.Task[None] | asyncio.Task[Sequence[TaskRecord]]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _limit_s(timeout: Duration) -> float:
    limit_s = seconds_of(timeout)
    if not 0 < limit_s <= TIMEOUT_S_MAX:
        raise ConfigInvalid(f"timeout={timeout}: must be above 0 s, at most {TIMEOUT_S_MAX} s")
    return limit_s


def _check(name: str, value: float, *, least: float) -> None:
    if value < least:
        raise ConfigInvalid(f"{name}={value}: must be {least:g} or more")
