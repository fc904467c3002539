"""Ends: the acknowledgements of a process, many in one request while others are under way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from codeq_cluster.client import Leases, Refused, TaskRecord, Unreachable

ACKNOWLEDGED: Final = b'"acknowledged"'  # What the task of a message shows as its result.

_TOGETHER_MAX: Final = 100  # The broker's default bound on one request.
# A shard without a leader delays what goes together with a task of it, and what waits for that.
_TOGETHER_WITHIN_S: Final = 5.0


@dataclass(eq=False, slots=True)
class _Waiting:
    """A task whose end is asked for.

    Attributes:
        is_sent: It was in a request, whatever became of that.
        is_taken: The broker has taken its end.
    """

    task: TaskRecord
    is_sent: bool = False
    is_taken: bool = False


class Ends:
    """Ends of tasks as acknowledged, with one request at a time for all that came meanwhile.

    All of its calls are for one event loop.
    """

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._waiting: deque[_Waiting] = deque()
        self._turn = asyncio.Lock()

    async def acknowledge(
        self,
        task: TaskRecord,
        *,
        following: Sequence[bytes] = (),
        within_s: float | None = None,
    ) -> None:
        """End a task as completed; once it returned, that is on a majority of the nodes.

        What is not taken together with others is asked for by itself, and repeated.

        Args:
            task: As claimed.
            following: What is created with its end, each as a request's body.
            within_s: How long the request by itself is repeated, in place of the connection's
                deadline.

        Raises:
            Refused: The broker refused it, or its outcome is unknown.
            Unreachable: No node took it.
        """
        # The broker bounds what follows all results of one request.
        if following or not await self._together(task):
            await self._leases.complete(task, ACKNOWLEDGED, following=following, within_s=within_s)

    async def _together(self, task: TaskRecord) -> bool:
        """Return whether the broker has taken an end in a request for several."""
        mine = _Waiting(task)
        self._waiting.append(mine)
        try:
            async with self._turn:
                # Another one that waited may have sent it.
                if not mine.is_sent:
                    await self._send()
        finally:
            if not mine.is_sent:
                self._waiting.remove(mine)
        return mine.is_taken

    async def _send(self) -> None:
        count = min(len(self._waiting), _TOGETHER_MAX)
        sent = [self._waiting.popleft() for _ in range(count)]
        for each in sent:
            each.is_sent = True
        try:
            answers = await self._leases.complete_many(
                [(each.task, ACKNOWLEDGED) for each in sent], within_s=_TOGETHER_WITHIN_S
            )
        except (Refused, Unreachable):
            # Each is asked for by itself then, and raises what is wrong with it.
            return
        for each, answer in zip(sent, answers, strict=True):
            each.is_taken = not answer.error
