"""RPC: calls this node waits for, and calls it answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import cbor2

from codeq_cluster.errors import (
    CodeqError,
    LinkLost,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OperationTooLarge,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)
from codeq_cluster.wire.counters import Tally
from codeq_cluster.wire.messages import Answer, Failure, Request, answer_body, failure_body

log = logging.getLogger(__name__)

Serve = Callable[[str, str, object, float], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class _Waiting:
    peer: str
    topic: int | None
    answer: asyncio.Future[object]
    deadline: asyncio.TimerHandle


class Calls:
    """The calls of this node that have no answer yet, at most `in_flight_max`."""

    def __init__(self, *, in_flight_max: int, tally: Tally) -> None:
        self._in_flight_max = in_flight_max
        self._tally = tally
        self._waiting: dict[int, _Waiting] = {}
        # A random start: an answer meant for an earlier process of this node matches no call.
        self._numbers = itertools.count(secrets.randbits(62))

    async def call(
        self,
        peer: str,
        send: Callable[[int], bool],
        *,
        timeout_s: float,
        topic: int | None = None,
    ) -> object:
        """Send a call and wait for its answer.

        Args:
            peer: Who alone may answer.
            topic: What the call is about, for `give_up`.
            send: Queues the request under the number it is given; False when nothing was sent.
            timeout_s: Above 0.

        Raises:
            Overloaded: Too many calls wait already; nothing was sent.
            PeerUnreachable: Nothing was sent.
            LinkLost: No answer came; the peer may have acted.
            CodeqError: What the peer answered instead of a value.
        """
        if len(self._waiting) >= self._in_flight_max:
            raise Overloaded("the queue of calls to other nodes")
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        if not send(number):
            raise PeerUnreachable(f"nothing can be sent to {peer}: not connected or queue full")
        self._tally.calls += 1
        answer: asyncio.Future[object] = loop.create_future()
        deadline = loop.call_later(timeout_s, self._expire, number, timeout_s)
        self._waiting[number] = _Waiting(peer, topic, answer, deadline)
        try:
            return await answer
        finally:
            deadline.cancel()
            self._waiting.pop(number, None)

    def settle(self, peer: str, message: Answer | Failure) -> None:
        """Hand an answer to its call; one that is late, or of another peer, is no answer."""
        waiting = self._waiting.get(message.number)
        if waiting is None or waiting.peer != peer or waiting.answer.done():
            return
        if isinstance(message, Answer):
            waiting.answer.set_result(message.body)
        else:
            waiting.answer.set_exception(message.error)

    def lose(self, peer: str | None = None) -> None:
        """End every call to `peer` (None: to all): the answer cannot come any more."""
        for waiting in self._waiting.values():
            if (peer is None or waiting.peer == peer) and not waiting.answer.done():
                self._tally.calls_lost += 1
                waiting.answer.set_exception(
                    LinkLost(f"the connection with {waiting.peer} broke before an answer came")
                )

    def give_up(self, peer: str, topic: int) -> None:
        """End every call to `peer` about `topic`: its answer is of no use any more."""
        for waiting in self._waiting.values():
            if waiting.peer == peer and waiting.topic == topic and not waiting.answer.done():
                self._tally.calls_lost += 1
                waiting.answer.set_exception(LinkLost(f"{peer} is not asked any more"))

    def _expire(self, number: int, timeout_s: float) -> None:
        waiting = self._waiting[number]
        if not waiting.answer.done():
            self._tally.calls_lost += 1
            waiting.answer.set_exception(
                LinkLost(f"{waiting.peer} did not answer within {timeout_s:.3f} s")
            )


class Handlers:
    """Runs the handler of each request as a task, at most `in_flight_max` at a time."""

    def __init__(
        self, serve: Serve, *, in_flight_max: int, frame_bytes_max: int, tally: Tally
    ) -> None:
        self._serve = serve
        self._in_flight_max = in_flight_max
        self._frame_bytes_max = frame_bytes_max
        self._tally = tally
        self._running = 0

    def accept(
        self,
        peer: str,
        request: Request,
        *,
        tasks: asyncio.TaskGroup,
        reply: Callable[[bytes], None],
    ) -> None:
        """Start the handler, or answer at once that too many run.

        Args:
            peer: Who asks.
            request: What it asks.
            tasks: Owns the handler's task and cancels it when the node stops.
            reply: Sends the answer's body, or drops it when its connection is gone.
        """
        if self._running >= self._in_flight_max:
            busy = Overloaded("the queue of calls from other nodes")
            reply(failure_body(request.number, busy))
            return
        self._running += 1
        self._tally.calls_served += 1
        task = tasks.create_task(self._handle(peer, request, reply))
        task.add_done_callback(self._done)

    async def _handle(self, peer: str, request: Request, reply: Callable[[bytes], None]) -> None:
        try:
            async with asyncio.timeout(request.timeout_s) as deadline:
                value = await self._serve(peer, request.method, request.body, request.timeout_s)
            answer = answer_body(request.number, value)
        except (
            MethodUnknown,
            NotLeader,
            NoLeader,
            OperationTooLarge,
            OutcomeUnknown,
            Overloaded,
        ) as error:
            answer = failure_body(request.number, error)
        except Exception as error:
            if not (isinstance(error, TimeoutError) and deadline.expired()):
                log.exception("rpc handler failed", extra={"method": request.method, "peer": peer})
            answer = failure_body(request.number, _unknown(request.method, error))
        if len(answer) > self._frame_bytes_max:
            log.error(
                "rpc answer too large",
                extra={"method": request.method, "peer": peer, "bytes": len(answer)},
            )
            answer = failure_body(
                request.number, OutcomeUnknown(f"{request.method}: the answer is too large")
            )
        reply(answer)

    def _done(self, task: asyncio.Task[None]) -> None:
        del task
        self._running -= 1


def _unknown(method: str, error: Exception) -> CodeqError:
    match error:
        case TimeoutError():
            return OutcomeUnknown(f"{method}: no answer in time")
        case cbor2.CBOREncodeError():
            return OutcomeUnknown(f"{method}: the answer cannot be sent")
        case _:
            return OutcomeUnknown(f"{method}: the handler failed")
