"""Keeping: the leases that a worker holds, renewed together until each ends or is lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from codeq_cluster.client.connection import as_json
from codeq_cluster.client.leases import KeptLease, Leases
from codeq_cluster.client.records import TaskRecord
from codeq_cluster.client.refusals import Refused, Unreachable
from codeq_cluster.client.retrying import may_succeed
from codeq_cluster.client.saying import LINES_A_REPORT_MAX, LINES_KEPT_MAX, Said
from codeq_cluster.portions import in_parts

log = logging.getLogger(__name__)

# Three beats a lease: after a failed one there is time for another before the lease ends.
BEATS_A_LEASE: Final = 3
NO_LONGER_OURS: Final = frozenset({"not-found", "not-owner", "not-in-progress", "lease-lost"})

_LEASES_MAX: Final = 1000  # In one request, as brokers have it.
_WAIT_S_MAX: Final = 20
# A new lease is watched after a quarter of a beat at the latest. A task that ends before then,
# which most do, costs no request; and at most so many requests wait at once.
_LOOKS_A_BEAT: Final = 4
# A node that says nothing for so long after a wait is left for another one.
_ANSWER_S: Final = 5.0
_PAUSE_S: Final = 0.25  # After an answer that came early.
_PAUSE_S_MAX: Final = 4.0
_SINGLES_AT_ONCE: Final = 10
_REPORT_S: Final = 1.0
# What a handler has said last is flushed in so many reports at most.
_FLUSHES_MAX: Final = LINES_KEPT_MAX // LINES_A_REPORT_MAX + 1
_REPORT_BYTES_MAX: Final = 2**19  # What one request says, but for a single task.
_PASSING: Final = frozenset({"no-leader", "overloaded", "outcome-unknown"})
# Those of a node of a release without the route.
_NO_ROUTE: Final = frozenset({404, 405})


class _Held:
    """A lease that is being kept.

    Attributes:
        ends: When the broker gives the task to another worker, monotonic seconds.
        due: It is to be renewed.
        watched: A request that will hear of its loss is under way, or will be.
        lost: Resolved with the reason when it is lost.
        said: What its handler says.
    """

    __slots__ = ("due", "ends", "lost", "said", "task", "watched")

    def __init__(self, task: TaskRecord, said: Said, *, ends: float) -> None:
        self.task = task
        self.said = said
        self.ends = ends
        self.due = False
        self.watched = False
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def lose(self, reason: str) -> None:
        """Tell the delivery."""
        if not self.lost.done():
            self.lost.set_result(reason)

    def hear(self, kept: KeptLease, *, ends: float) -> None:
        """Take in a heartbeat's answer; an error that passes leaves the lease due."""
        if kept.cancel is not None:
            self.said.cancel = kept.cancel
        if kept.code in NO_LONGER_OURS:
            self.lose(kept.error)
        elif kept.code:
            log.warning("task %s: its lease is not renewed: %s", self.task.id, kept.error)
        elif self.due:
            self.ends, self.due = ends, False


class Keeper:
    """Renews all leases of one worker: at each beat, a third of a lease, in one request.

    That request waits until the next beat for the loss of a lease, so that the worker hears of it
    at once. Against a node that does not know such requests, each lease has its own.
    """

    def __init__(self, leases: Leases, *, lease_s: int) -> None:
        self._leases = leases
        self._lease_s = lease_s
        self._beat_s = lease_s / BEATS_A_LEASE
        self._held: dict[str, _Held] = {}
        self._knows_batches = True  # The node that answers; asked again at each beat.
        self._news = asyncio.Event()
        self._reporting = asyncio.Lock()  # An older report must not come after a newer one.

    async def hold(self, task: TaskRecord, said: Said) -> str:
        """Keep a lease that has just begun; return the reason when it is lost."""
        held = _Held(task, said, ends=time.monotonic() + self._lease_s)
        self._held[task.id] = held
        loop = asyncio.get_running_loop()
        said.notify = lambda: _from_any_thread(loop, self._news.set)
        self._news.set()  # The handler may have said something already.
        try:
            while (left_s := held.ends - time.monotonic()) > 0:
                await asyncio.wait({held.lost}, timeout=left_s)
                if held.lost.done():
                    return held.lost.result()
            return "the lease ended without an answer to its heartbeat"
        finally:
            if self._held.get(task.id) is held:
                del self._held[task.id]

    async def run(self) -> None:
        """Keep what is held, until cancelled."""
        async with asyncio.TaskGroup() as requests:
            begun, look = time.monotonic(), 0
            look_s = self._beat_s / _LOOKS_A_BEAT
            requests.create_task(self._report())
            while True:
                look += 1
                await asyncio.sleep(begun + look * look_s - time.monotonic())
                is_beat = look % _LOOKS_A_BEAT == 0
                self._knows_batches = self._knows_batches or is_beat
                beats_in = _LOOKS_A_BEAT - look % _LOOKS_A_BEAT
                until = begun + (look + beats_in) * look_s
                fresh = [held for held in self._held.values() if is_beat or not held.watched]
                for part in in_parts(fresh, count_max=_LEASES_MAX):
                    for held in part:
                        held.watched = True
                        held.due = is_beat
                    requests.create_task(self._keep(part, until=until))

    async def flush(self, task: TaskRecord, said: Said) -> None:
        """Report what a handler has said, now that it has ended and its task is to end with it.

        That takes at most a beat, so that the lease stands when the end is reported.
        """
        within_s = min(_ANSWER_S, self._beat_s)
        try:
            async with asyncio.timeout(within_s), self._reporting:
                for _ in range(_FLUSHES_MAX):
                    fields = said.take()
                    if not fields:
                        return
                    await self._leases.heartbeat(
                        task, extend_s=self._lease_s, report=fields, within_s=within_s
                    )
        except (Refused, Unreachable, TimeoutError) as error:
            why = error or "no answer"
            log.warning("task %s: what its handler said last is lost: %s", task.id, why)

    async def _report(self) -> None:
        """Report what handlers say, at most once a second for all of them."""
        while True:
            await self._news.wait()
            self._news.clear()
            async with self._reporting:
                taken = [(held, held.said.take()) for held in self._held.values()]
                said = [(held, fields) for held, fields in taken if fields]
                for part in in_parts(
                    said, _bytes_of, size_max=_REPORT_BYTES_MAX, count_max=_LEASES_MAX
                ):
                    await self._say(dict(part))
                if any(held.said.has_lines for held in self._held.values()):
                    self._news.set()
            await asyncio.sleep(_REPORT_S)

    async def _say(self, part: Mapping[_Held, Mapping[str, object]]) -> None:
        """Report of some tasks, whose leases it extends; what passes is said again."""
        asked = time.monotonic()
        try:
            heard = await self._leases.heartbeats(
                [(held.task, self._lease_s) for held in part],
                reports={held.task.id: fields for held, fields in part.items()},
                within_s=_ANSWER_S,
            )
        except (Refused, Unreachable) as error:
            log.warning("what handlers have said is not reported: %s", error)
            if may_succeed(error):
                for held, fields in part.items():
                    held.said.put_back(fields)
                self._news.set()
            return
        for (held, fields), kept in zip(part.items(), heard, strict=True):
            held.hear(kept, ends=asked + self._lease_s)
            if kept.code in _PASSING:
                held.said.put_back(fields)
                self._news.set()

    async def _keep(self, part: Sequence[_Held], *, until: float) -> None:
        """Renew leases that are due, and hear of the loss of any, until the next beat."""
        pause_s = _PAUSE_S / 2
        while part := [held for held in part if self._is_held(held)]:
            if not self._knows_batches:
                await self._one_by_one(part)
                return
            asked = time.monotonic()
            # An answer that waits for too long would come when the lease has ended.
            ends_in = min(held.ends for held in part) - asked
            wait_s = int(max(0.0, min(_WAIT_S_MAX, until - asked, ends_in / 2)))
            if not wait_s and not any(held.due for held in part):
                return
            is_well = await self._ask(part, wait_s=wait_s)
            early = not is_well or time.monotonic() < asked + wait_s - 1
            # What ends many leases, one after the other, causes so many requests at most.
            pause_s = min(2 * pause_s, _PAUSE_S_MAX) if early else _PAUSE_S
            await asyncio.sleep(pause_s)

    async def _ask(self, part: Sequence[_Held], *, wait_s: int) -> bool:
        """Send one request for these leases; return whether it was answered."""
        asked = time.monotonic()
        try:
            heard = await self._leases.heartbeats(
                [(held.task, self._lease_s if held.due else 0) for held in part],
                known={held.task.id for held in part if held.said.cancel is not None},
                wait_s=wait_s,
                within_s=min(_ANSWER_S, self._beat_s),
            )
        except (Refused, Unreachable) as error:
            if isinstance(error, Refused) and error.status in _NO_ROUTE:
                self._knows_batches = False
            elif not may_succeed(error):
                for held in part:
                    held.lose(str(error))
            return False
        for held, kept in zip(part, heard, strict=True):
            held.hear(kept, ends=asked + self._lease_s)
        return True

    async def _one_by_one(self, part: Sequence[_Held]) -> None:
        """Renew leases as nodes of earlier releases have it."""
        places = asyncio.Semaphore(_SINGLES_AT_ONCE)

        async def renew(held: _Held) -> None:
            async with places:
                asked = time.monotonic()
                if not self._is_held(held):
                    return
                try:
                    await self._leases.heartbeat(
                        held.task, extend_s=self._lease_s, within_s=self._beat_s
                    )
                except (Refused, Unreachable) as error:
                    if not may_succeed(error):
                        held.lose(str(error))
                    return
                held.ends, held.due = asked + self._lease_s, False

        async with asyncio.TaskGroup() as group:
            for held in part:
                if held.due:
                    group.create_task(renew(held))

    def _is_held(self, held: _Held) -> bool:
        return self._held.get(held.task.id) is held and not held.lost.done()


def _from_any_thread(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    # A handler that was left alone may go on when the loop is closed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)


def _bytes_of(said: tuple[_Held, Mapping[str, object]]) -> int:
    return len(as_json(said[1]))
