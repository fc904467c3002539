"""Worker: claims tasks and passes each to the handler of its command, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

from codeq_cluster.client.codecs import JSON, Codec
from codeq_cluster.client.delivery import HEARTBEATS_A_LEASE, ClaimedDelivery
from codeq_cluster.client.handlers import Meaning, Registered
from codeq_cluster.client.handling import Ended
from codeq_cluster.client.health import Health
from codeq_cluster.client.leases import Leases
from codeq_cluster.client.records import TaskRecord
from codeq_cluster.client.refusals import Refused, Unreachable
from codeq_cluster.client.threads import Threads
from codeq_cluster.errors import CodeqError, ConfigInvalid

log = logging.getLogger(__name__)

EVERY_COMMAND: Final = "*"
STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

# The smallest bound on a claim of several tasks that a broker is known to have.
_CLAIM_MAX: Final = 10
_SILENT_S_MAX: Final = 60.0  # Two claims that wait for the longest time.

H = TypeVar("H", bound=Callable[..., Any])


class Worker:
    """A worker for one cluster; runs once.

    Handlers are registered by command. A task's lease is extended while its handler runs. A handler
    is cancelled when its lease is lost or its task is cancelled, since another worker may have the
    task. The return value of a handler is the task's result; None means an empty object. `Fail`
    fails the task for good; `Retry` and any other exception return it to the queue. Handlers must
    tolerate that a task is delivered more than once.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str,
        concurrency: int = 1,
        lease_s: int = 60,
        wait_s: int = 20,
        grace_s: float = 30.0,
        give_up_s: float = 300.0,
        discover: bool = True,
        ca_file: Path | None = None,
        codec: Codec = JSON,
        health_port: int | None = None,
        health_host: str = "127.0.0.1",
        silent_s_max: float = _SILENT_S_MAX,
        ended: Callable[[Ended], None] | None = None,
    ) -> None:
        """Prepare a worker.

        Args:
            urls: Base URLs of nodes, at least one, the preferred ones first.
            token: A worker's token.
            concurrency: Tasks handled at once, at least 1.
            lease_s: The length of a lease, at least 3; after that long a dead worker is noticed.
            wait_s: How long one claim waits for tasks, 0 to 30.
            grace_s: How long handlers may go on after a stop.
            give_up_s: How long unanswered claims are repeated before the worker ends.
            discover: Learn the other nodes.
            ca_file: The only authorities trusted for https.
            codec: Converts payloads and results.
            health_port: The port of `/healthz`; 0 for any free port, None to serve nothing.
            health_host: The address of `/healthz`; 0.0.0.0 in a container.
            silent_s_max: `/healthz` fails when a claim has had no answer for this long; must be
                above `wait_s`.
            ended: Called with each finished delivery; without it, deliveries are logged.

        Raises:
            ConfigInvalid: A value is out of bounds, or the file of authorities has none.
        """
        _check("concurrency", concurrency, least=1)
        _check("lease_s", lease_s, least=HEARTBEATS_A_LEASE)
        _check("wait_s", wait_s, least=0)
        _check("silent_s_max", silent_s_max, least=wait_s + 1)
        self._leases = Leases(urls, token=token, discover=discover, ca_file=ca_file)
        self._concurrency = concurrency
        self._lease_s = lease_s
        self._wait_s = wait_s
        self._grace_s = grace_s
        self._give_up_s = give_up_s
        self._codec = codec
        self._tell = ended or _log
        self._threads = Threads()
        self._handlers: dict[str, Registered] = {}
        self.health = Health(host=health_host, port=health_port, silent_s_max=silent_s_max)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked_to_stop = False
        self._stopping = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._failure: CodeqError | None = None

    def task(
        self, *commands: str, errors: Mapping[type[Exception], Meaning] | None = None
    ) -> Callable[[H], H]:
        """Register the decorated function as the handler of these commands.

        It takes one `Task`; as `Task[Resize]`, the payload is read as a `Resize`. It is a coroutine
        function, or any other, which runs in a thread.

        Args:
            commands: At least one; `*` stands for every command that the token allows and that has
                no handler.
            errors: What to do when the handler raises one of these or a subclass: `Fail()`, or
                `Retry(after=60)`.

        Raises:
            ConfigInvalid: No command is named, a command has a handler already, or the handler
                does not take one `Task`.
        """
        if not commands:
            raise ConfigInvalid("task(): no command is named; allowed is at least one, or *")
        taken = sorted(self._handlers.keys() & set(commands))
        if taken:
            raise ConfigInvalid(f"task({taken[0]!r}): it has a handler; allowed is one per command")

        def register(handler: H) -> H:
            registered = Registered(
                handler, errors=errors or {}, codec=self._codec, threads=self._threads
            )
            self._handlers.update(dict.fromkeys(commands, registered))
            return handler

        return register

    @property
    def running(self) -> int:
        """How many tasks are in progress."""
        return len(self._running)

    def wants(self, command: str) -> bool:
        """Return whether the worker can take a task of a command now."""
        known = {name.lower() for name in self._handlers}  # Queues ignore case.
        serves = self._loop is not None and not self._stopping.is_set()
        free = self.running < self._concurrency
        return serves and free and (EVERY_COMMAND in known or command.lower() in known)

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
        asyncio.run(self._until_signal(tasks_max, signals))

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
            OSError: The port for `/healthz` is taken.
        """
        if not self._handlers:
            raise ConfigInvalid("no handler: register one with @worker.task(COMMAND)")
        self._loop = asyncio.get_running_loop()
        if self._asked_to_stop:  # Stopped before a loop existed to notify.
            self._stopping.set()
        try:
            async with self._leases, self.health:
                await self._work_off(tasks_max)
        finally:
            self._loop = None
            self._threads.stop()
        if self._failure is not None:
            raise self._failure

    async def _work_off(self, left: int | None) -> None:
        """Claim and deliver until it is stopped or nothing is left, then wait for the handlers."""
        running = self._running
        async with asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stopped())
            while not self._stopping.is_set() and left != 0:
                free = min(self._concurrency - len(running), _CLAIM_MAX, left or _CLAIM_MAX)
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

    async def _claim(self, count: int) -> Sequence[TaskRecord]:
        """Return claimed tasks; none if the worker cannot go on, which also stops it."""
        commands = () if EVERY_COMMAND in self._handlers else tuple(self._handlers)
        self.health.claiming()
        try:
            claimed = await self._leases.claim(
                commands,
                count=count,
                lease_s=self._lease_s,
                wait_s=self._wait_s,
                within_s=self._give_up_s,
            )
        except (Refused, Unreachable) as error:
            self._fail(error)
            return ()
        self.health.claimed()
        return claimed

    async def _work(self, task: TaskRecord, stopping: asyncio.Task[None]) -> None:
        handler = self._handlers.get(task.command) or self._handlers.get(EVERY_COMMAND)
        assert handler is not None, "the broker gave a task of a command that was not claimed"
        delivery = ClaimedDelivery(self._leases, task, handler, lease_s=self._lease_s)
        ended = await delivery.run()
        if ended.failure is not None:
            self._fail(ended.failure)
        self._tell(ended)
        if not self._stopping.is_set():
            # A slot is free only when its thread is free; otherwise the number of threads would
            # grow without bound.
            settled = asyncio.ensure_future(delivery.settled())
            await asyncio.wait({settled, stopping}, return_when=asyncio.FIRST_COMPLETED)
            settled.cancel()

    async def _drain(self, stopping: asyncio.Task[None]) -> None:
        """Wait for the handlers: within `grace_s` after a stop, without a bound otherwise."""
        running = self._running
        while running and not self._stopping.is_set():
            await _first(stopping, *running)
        if running:
            _, late = await asyncio.wait(running, timeout=self._grace_s)
            for work in late:
                work.cancel()

    async def _until_signal(self, tasks_max: int | None, signals: Sequence[signal.Signals]) -> None:
        async with asyncio.TaskGroup() as group:
            serving = group.create_task(self.serve(tasks_max=tasks_max))
            with _heard(signals, self._hear, serving):
                await asyncio.wait({serving})

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
    """Return when one of them has ended."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _check(name: str, value: float, *, least: float) -> None:
    if value < least:
        raise ConfigInvalid(f"{name}={value}: allowed is {least:g} or more")


def _log(ended: Ended) -> None:
    log.info(
        "task ended",
        extra={"task_id": ended.task.id, "ending": ended.ending.value, "reason": ended.note},
    )
