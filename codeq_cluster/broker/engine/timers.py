"""Timers: acts on what is due in one shard, for as long as one leadership lasts.

It acts by an operation of its own, an `Advance` for a bounded number of tasks and items. If one of
them makes the decision fail, the advance is halved until that one is alone, and then it is set
aside: its neighbours must not wait for a mend of our code or of its record.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context

from codeq_cluster.broker.engine.faults import is_fault, setting_aside
from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.records import RecordInvalid
from codeq_cluster.core.bulk import PAUSE_MS_MAX, RESTS
from codeq_cluster.core.items import NO_OWNER
from codeq_cluster.core.operations import Advance, Operation
from codeq_cluster.errors import NotLeader, OutcomeUnknown

log = logging.getLogger(__name__)

RETRY_S = 1.0  # After a failure that is not that of one task or item.
ADVANCE_COUNT = 256  # Tasks that one advance of time may change: ~5 ms on the loop.


class Timers:
    """The timers of one shard during one leadership.

    Args:
        now_ms: The clock of decisions, Unix milliseconds.
        leases_from_ms: No lease ends before.
        act: Has an operation decided and waits until that is durable; never refuses it for a full
            queue.
        failed: Called for everything that is set aside.
    """

    def __init__(
        self,
        shard: int,
        view: ShardView,
        *,
        now_ms: Callable[[], int],
        leases_from_ms: int,
        act: Callable[[Operation], Awaitable[object]],
        failed: Callable[[], None],
    ) -> None:
        self._shard = shard
        self._view = view
        self._now_ms = now_ms
        self._leases_from_ms = leases_from_ms
        self._act = act
        self._failed = failed
        self._count = ADVANCE_COUNT
        self._pause_ms = 0  # Of bulk jobs, by how long their last step took.
        self._timer: asyncio.TimerHandle | None = None
        self._due_ms = 0
        self._running: set[asyncio.Task[None]] = set()
        self._stopped = False

    def arm(self) -> None:
        """Set the timer for the next instant at which a lease, delay or retention ends."""
        due_ms = self._view.time.next_due_ms(leases_from_ms=self._leases_from_ms)
        if due_ms is None or self._stopped:
            return
        if self._timer is not None:
            if self._due_ms <= due_ms:
                return
            self._timer.cancel()
        # Add a millisecond: a timer that fires early would find nothing due.
        self._set(due_ms, (max(0, due_ms - self._now_ms()) + 1) / 1000)

    def stop(self) -> None:
        """Act no more: the leadership has ended."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self, due_ms: int, delay_s: float) -> None:
        self._due_ms = due_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._begin)

    def _begin(self) -> None:
        self._timer = None
        # Run in a fresh context: the timer inherited the tracing context of the request that set
        # it.
        task = asyncio.get_running_loop().create_task(self._advance(), context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _advance(self) -> None:
        """Act on what is due, in one bounded batch; then set the timer for the rest."""
        if self._stopped:
            return
        begun_ms = self._now_ms()
        leases_too = begun_ms >= self._leases_from_ms
        try:
            await self._act(
                Advance(count=self._count, leases_too=leases_too, pause_ms=self._pause_ms)
            )
        except (NotLeader, OutcomeUnknown):
            return  # The next leader's timers take over.
        except Exception as error:
            timer = self._view.time.first(now_ms=self._view.now_ms, leases_too=leases_too)
            if not is_fault(error) or timer is None:
                # Without a new timer, leases and delays of this shard would never end.
                log.exception("timers failed", extra={"shard": self._shard})
                if not self._stopped and self._timer is None:
                    self._set(self._view.now_ms, RETRY_S)
                return
            if self._count == 1:
                await self._set_aside(timer, error)
            self._count = max(1, self._count // 2)
        else:
            self._count = min(2 * self._count, ADVANCE_COUNT)
            took_ms = self._now_ms() - begun_ms
            # Down by halves alone: one quick step among slow ones says little.
            self._pause_ms = min(max(RESTS * took_ms, self._pause_ms // 2), PAUSE_MS_MAX)
        self.arm()

    async def _set_aside(self, timer: bytes, error: Exception) -> None:
        operation = setting_aside(timer, error, tenant=self._owner(timer))
        log.error(
            "set aside",
            exc_info=error,
            extra={"shard": self._shard, "kind": operation.kind, "item": operation.subject},
        )
        self._failed()
        try:
            await self._act(operation)
        except (NotLeader, OutcomeUnknown):
            pass  # The next leader finds it.
        except Exception:
            # The others must go on even if this one can be neither acted on nor set aside.
            log.exception("passed over", extra={"shard": self._shard, "item": operation.subject})
            self._view.time.pass_over(timer)

    def _owner(self, timer: bytes) -> str:
        """Return the tenant of the task that a timer is for; the keys of items name theirs."""
        if timer.startswith(keyspace.EXPIRY_PREFIX):
            return NO_OWNER
        try:
            task = self._view.task(keyspace.timed_parts(timer)[1])
        except RecordInvalid as error:
            log.warning("owner unknown", extra={"shard": self._shard, "error": str(error)})
            return NO_OWNER
        return NO_OWNER if task is None else task.tenant
