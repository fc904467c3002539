"""RPC: the calls this node waits for, and the calls it answers."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

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
from codeq_cluster.wire.counters import LinkCounters
from codeq_cluster.wire.messages import (
    ITEM_BYTES,
    Failure,
    RpcAnswer,
    RpcRequest,
    answer_item,
    failure_item,
    pack,
    unpack,
)

log = logging.getLogger(__name__)

Serve = Callable[[str, str, object, float], Awaitable[object]]
# Sends an item of that many packed bytes, or drops it if its connection is closed.
Reply = Callable[[list[object], int], None]

# One timer serves all calls, so a call may wait up to this much longer than its timeout.
_SWEEP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Waiting:
    peer: str
    topic: int | None
    answer: asyncio.Future[bytes]
    timeout_s: float
    ends_at: float


class PendingCalls:
    """The calls of this node that have no answer yet, at most `in_flight_max`."""

    def __init__(self, *, in_flight_max: int, counters: LinkCounters) -> None:
        self._in_flight_max = in_flight_max
        self._counters = counters
        self._waiting: dict[int, _Waiting] = {}
        # A random start: an answer to an earlier process of this node matches no call.
        self._numbers = itertools.count(secrets.randbits(62))
        self._sweep: asyncio.TimerHandle | None = None

    def begin(
        self,
        peer: str,
        send: Callable[[int], bool],
        *,
        timeout_s: float,
        topic: int | None = None,
    ) -> asyncio.Future[bytes]:
        """Send a call; return a future with its answer, packed.

        The future ends with LinkLost when no answer came, so that the peer may have acted, or with
        the error that the peer answered. A cancelled call is forgotten.

        Args:
            peer: The only node that may answer.
            topic: What the call is about, for `give_up`.
            send: Queues the request under the given number; False when nothing was sent.
            timeout_s: Above 0.

        Raises:
            Overloaded: Too many calls wait already; nothing was sent.
            PeerUnreachable: Nothing was sent.
        """
        if len(self._waiting) >= self._in_flight_max:
            raise Overloaded("the queue of calls to other nodes")
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        if not send(number):
            raise PeerUnreachable(f"nothing can be sent to {peer}: not connected or queue full")
        self._counters.calls += 1
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[number] = _Waiting(peer, topic, answer, timeout_s, loop.time() + timeout_s)
        if self._sweep is None:
            self._sweep = loop.call_later(_SWEEP_S, self._expire, loop)
        return answer

    def settle(self, peer: str, message: RpcAnswer | Failure) -> None:
        """Hand an answer to its call; an answer that is late or of another peer is dropped."""
        waiting = self._waiting.get(message.number)
        if waiting is None or waiting.peer != peer:
            return
        del self._waiting[message.number]
        if waiting.answer.done():
            return
        if isinstance(message, RpcAnswer):
            waiting.answer.set_result(message.body)
        else:
            waiting.answer.set_exception(message.error)

    def lose(self, peer: str | None = None) -> None:
        """End every call to `peer` (None: to all peers): the answer can no longer come."""
        self._end(
            lambda waiting: peer is None or waiting.peer == peer,
            lambda waiting: f"the connection with {waiting.peer} broke before an answer came",
        )

    def give_up(self, peer: str, topic: int) -> None:
        """End every call to `peer` about `topic`: the answer is no longer of use."""
        self._end(
            lambda waiting: waiting.peer == peer and waiting.topic == topic,
            lambda _waiting: f"{peer} is not asked any more",
        )

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        self._end(
            lambda waiting: now >= waiting.ends_at or waiting.answer.done(),
            lambda waiting: f"{waiting.peer} did not answer within {waiting.timeout_s:.3f} s",
        )
        self._sweep = loop.call_later(_SWEEP_S, self._expire, loop) if self._waiting else None

    def _end(self, which: Callable[[_Waiting], bool], text: Callable[[_Waiting], str]) -> None:
        ended = [(number, waiting) for number, waiting in self._waiting.items() if which(waiting)]
        for number, waiting in ended:
            del self._waiting[number]
            if not waiting.answer.done():
                self._counters.calls_lost += 1
                waiting.answer.set_exception(LinkLost(text(waiting)))


class Slot:
    """The place for the answer of a quick handler, with the interface of a future.

    Takes one result or one exception; later ones are dropped.
    """

    __slots__ = ("_done", "_method", "_number", "_owner", "_peer", "_reply")

    def __init__(self, owner: Handlers, peer: str, request: RpcRequest, reply: Reply) -> None:
        self._owner = owner
        self._peer = peer
        self._method = request.method
        self._number = request.number
        self._reply = reply
        self._done = False

    def done(self) -> bool:
        """Return whether the answer has been given."""
        return self._done

    def set_result(self, value: object) -> None:
        """Answer with a value: plain, or structs."""
        if not self._done:
            self._done = True
            self._owner.answered_quickly(self._number, self._method, value, self._reply)

    def set_exception(self, error: BaseException) -> None:
        """Answer with an error."""
        if not self._done:
            self._done = True
            self._owner.failed_quickly(self._number, self._method, error, self._reply)


# Starts to answer a packed body and takes care that the slot is filled, or raises.
Quick = Callable[[bytes, Slot], None]


class Handlers:
    """Answers each request, at most `in_flight_max` at a time."""

    def __init__(
        self,
        serve: Serve,
        *,
        quick: Mapping[str, Quick],
        in_flight_max: int,
        frame_bytes_max: int,
        counters: LinkCounters,
    ) -> None:
        self._serve = serve
        self._quick = quick
        self._in_flight_max = in_flight_max
        self._frame_bytes_max = frame_bytes_max
        self._counters = counters
        self._running = 0

    def accept(
        self,
        peer: str,
        request: RpcRequest,
        *,
        tasks: asyncio.TaskGroup,
        reply: Reply,
    ) -> None:
        """Start the handler, or answer at once that too many run.

        Args:
            tasks: Owns the handler's task and cancels it when the node stops.
            reply: Sends the answer.
        """
        if self._running >= self._in_flight_max:
            busy = Overloaded("the queue of calls from other nodes")
            reply(failure_item(request.number, busy), 0)
            return
        self._running += 1
        self._counters.calls_served += 1
        quick = self._quick.get(request.method)
        if quick is None:
            task = tasks.create_task(self._handle(peer, request, reply))
            task.add_done_callback(self._done)
            return
        slot = Slot(self, peer, request, reply)
        try:
            quick(request.body, slot)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller is told
            slot.set_exception(error)

    async def _handle(self, peer: str, request: RpcRequest, reply: Reply) -> None:
        try:
            async with asyncio.timeout(request.timeout_s) as deadline:
                body = unpack(request.body)
                value = await self._serve(peer, request.method, body, request.timeout_s)
            self._answer(request.number, request.method, value, reply)
        except Exception as error:  # noqa: BLE001 - the caller is told
            expired = isinstance(error, TimeoutError) and deadline.expired()
            self._fail(request.number, request.method, error, reply, is_news=not expired)

    def answered_quickly(self, number: int, method: str, value: object, reply: Reply) -> None:
        """Send the result of a quick handler."""
        self._running -= 1
        try:
            self._answer(number, method, value, reply)
        except Exception as error:  # noqa: BLE001 - the caller is told
            self._fail(number, method, error, reply, is_news=True)

    def failed_quickly(self, number: int, method: str, error: BaseException, reply: Reply) -> None:
        """Send the error of a quick handler."""
        self._running -= 1
        self._fail(number, method, error, reply, is_news=True)

    def _answer(self, number: int, method: str, value: object, reply: Reply) -> None:
        try:
            packed = pack(value)
        except (msgspec.MsgspecError, TypeError, OverflowError) as error:
            log.exception("rpc answer not sent", extra={"method": method})
            raise OutcomeUnknown(f"{method}: the answer cannot be sent") from error
        if len(packed) + ITEM_BYTES > self._frame_bytes_max:
            log.error("rpc answer too large", extra={"method": method, "bytes": len(packed)})
            raise OutcomeUnknown(f"{method}: the answer is too large")
        reply(answer_item(number, packed), len(packed))

    def _fail(
        self, number: int, method: str, error: BaseException, reply: Reply, *, is_news: bool
    ) -> None:
        if isinstance(error, _SAID):
            assert isinstance(error, CodeqError), "what is said has a code"
            reply(failure_item(number, error), 0)
            return
        if is_news:
            log.error("rpc handler failed", extra={"method": method}, exc_info=error)
        reply(failure_item(number, _unknown(method, error)), 0)

    def _done(self, task: asyncio.Task[None]) -> None:
        del task
        self._running -= 1


_SAID = (MethodUnknown, NotLeader, NoLeader, OperationTooLarge, OutcomeUnknown, Overloaded)


def _unknown(method: str, error: BaseException) -> CodeqError:
    match error:
        case TimeoutError():
            return OutcomeUnknown(f"{method}: no answer in time")
        case _:
            return OutcomeUnknown(f"{method}: the handler failed")
