"""Gathering: creates that reach a node at about the same time go to its broker in one call.

The batch routes send many creates in one call, and the broker decides such a call in another way
than single ones. Each client still has its own answer.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import RequestedTask
from codeq_cluster.core.outcomes import Created, Rejected
from codeq_cluster.errors import CodeqError, OutcomeUnknown

_GATHER_S = 0.05

_Answer = Created | Rejected | CodeqError
_Waiting = list[tuple[RequestedTask, asyncio.Future[_Answer]]]


class GatheredCreates:
    """The creates on their way to each node's broker."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[Broker, _Waiting] = WeakKeyDictionary()
        self._calls: set[asyncio.Task[None]] = set()

    async def create(
        self, broker: Broker, tenant: str, new: RequestedTask, *, timeout_s: float
    ) -> _Answer:
        """Create a task, with others that come within 50 ms; called on the broker's loop.

        Args:
            broker: Of the node that got the request.
            tenant: The same for all creates.
            new: The task.
            timeout_s: For the call; that of its first create counts.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[_Answer] = loop.create_future()
        waiting = self._waiting.setdefault(broker, [])
        waiting.append((new, answer))
        if len(waiting) == 1:
            call = loop.create_task(self._send(broker, tenant, timeout_s))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
        return await answer

    async def _send(self, broker: Broker, tenant: str, timeout_s: float) -> None:
        await asyncio.sleep(_GATHER_S)
        waiting = self._waiting.pop(broker)
        answers: list[_Answer]
        try:
            answers = await broker.create(
                tenant, tuple(new for new, _ in waiting), timeout_s=timeout_s
            )
        except CodeqError as error:
            answers = [error] * len(waiting)
        except Exception as error:  # noqa: BLE001 - what the server answers with 500
            answers = [OutcomeUnknown(f"{type(error).__name__}: {error}")] * len(waiting)
        for (_, answer), got in zip(waiting, answers, strict=True):
            if not answer.done():
                answer.set_result(got)
