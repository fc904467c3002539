"""Worker: claims tasks and hands each to a handler, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from codeq_cluster.client.delivery import HEARTBEATS_A_LEASE, Delivery
from codeq_cluster.client.handling import Ended, Handler
from codeq_cluster.client.leases import Leases, Task
from codeq_cluster.client.refusals import Refused, Unreachable
from codeq_cluster.client.retrying import retried
from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

# The least bound a broker is known to have on a claim of several.
_CLAIM_MAX: Final = 10


class Worker:
    """A worker of one cluster; runs once.

    A task's lease is extended while its handler runs. A handler whose lease is lost is cancelled,
    since somebody else may have the task. What a handler returns is the task's result, as JSON;
    None stands for an empty object. `TaskFailed` fails the task for good, any other exception gives
    it back. Handlers must bear that a task is delivered more than once.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        token: str,
        events: Sequence[str] = (),
        concurrency: int = 1,
        lease_s: int = 60,
        wait_s: int = 20,
        drain_s: float = 30.0,
        give_up_s: float = 300.0,
        ca_file: Path | None = None,
        ended: Callable[[Ended], None] | None = None,
    ) -> None:
        """Prepare a worker.

        Args:
            urls: Base URLs of nodes, at least one, tried in order.
            token: A worker's.
            events: Commands claimed; none for all the token allows.
            concurrency: Tasks handled at once, at least 1.
            lease_s: A lease's length, at least 3; a worker that dies is noticed after that long.
            wait_s: Of one claim, 0 to 30.
            drain_s: After a stop, handlers may go on for so long.
            give_up_s: Claims that nobody answers are repeated for so long; then the worker ends.
            ca_file: As for `Session`.
            ended: Told of each delivery that ended; without it, they are logged.

        Raises:
            ConfigInvalid: The file of authorities holds no certificate.
        """
        assert concurrency >= 1
        assert lease_s >= HEARTBEATS_A_LEASE
        self._leases = Leases(urls, token=token, ca_file=ca_file)
        self._events = tuple(events)
        self._concurrency = concurrency
        self._lease_s = lease_s
        self._wait_s = wait_s
        self._drain_s = drain_s
        self._give_up_s = give_up_s
        self._tell = ended or _log
        self._stopping = asyncio.Event()
        self._failure: CodeqError | None = None

    def stop(self) -> None:
        """Claim no more; handlers that run on beyond `drain_s` are cancelled, their tasks go back.

        A task whose claim is answered in this very moment comes again when its lease ends.
        """
        self._stopping.set()

    async def run(self, handler: Handler, *, tasks_max: int | None = None) -> None:
        """Work until `stop`, or until so many tasks were delivered and have ended.

        When it is cancelled, it cancels its handlers and gives their tasks back at once.

        Raises:
            Refused: The broker does not let this worker go on.
            Unreachable: No node took a claim for `give_up_s`.
            HandlerUnfit: As the handler raised it.
        """
        running: set[asyncio.Task[None]] = set()
        async with self._leases, asyncio.TaskGroup() as group:
            stopping = group.create_task(self._stopped())
            left = tasks_max
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
                    work = group.create_task(self._work(handler, task))
                    running.add(work)
                    work.add_done_callback(running.discard)
                    left = None if left is None else left - 1
            await self._drain(stopping, running)
            stopping.cancel()
        if self._failure is not None:
            raise self._failure

    async def _claim(self, count: int) -> list[Task]:
        """Claim tasks; none when it cannot go on, which stops the worker."""

        async def claim() -> list[Task]:
            return await self._leases.claim(
                self._events, count=count, lease_s=self._lease_s, wait_s=self._wait_s
            )

        try:
            return await retried(claim, within_s=self._give_up_s, what="claim")
        except (Refused, Unreachable) as error:
            self._fail(error)
            return []

    async def _work(self, handler: Handler, task: Task) -> None:
        ended = await Delivery(self._leases, task, handler, lease_s=self._lease_s).run()
        if ended.failure is not None:
            self._fail(ended.failure)
        self._tell(ended)

    async def _drain(self, stopping: asyncio.Task[None], running: set[asyncio.Task[None]]) -> None:
        """Wait for the handlers: without a stop as long as they take, with one within the bound."""
        while running and not self._stopping.is_set():
            await _first(stopping, *running)
        if running:
            _, late = await asyncio.wait(running, timeout=self._drain_s)
            for work in late:
                work.cancel()

    def _fail(self, failure: CodeqError) -> None:
        self._failure = self._failure or failure
        self.stop()

    async def _stopped(self) -> None:
        await self._stopping.wait()


async def _first(*tasks: asyncio.Task[None] | asyncio.Task[list[Task]]) -> None:
    """Return when one of them has ended."""
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _log(ended: Ended) -> None:
    log.info(
        "task ended",
        extra={"task_id": ended.task.id, "ending": ended.ending.value, "reason": ended.note},
    )
