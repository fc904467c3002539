"""Asking: one operation of a logical process, from its line in the history to its answer's."""

from __future__ import annotations

import asyncio
import base64
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct

from jepsen_lite.history import Args, F, Out, Recorder, Type

PAUSE_S = 0.2
PAUSE_S_MAX = 2.0
BALLAST_BYTES = 32 * 2**10


class Answer(Struct, frozen=True, kw_only=True):
    """How an operation ended; `again` when the SDK would try once more."""

    type: Type
    out: Out
    again: bool


class Process:
    """A logical process: it gets a new name when an operation of it ended nobody knows how."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._lives = 0
        # Its own, so that what one process draws does not depend on the pace of the others.
        self.random = random.Random(f"{seed}/{name}")

    @property
    def p(self) -> str:
        """The name in the history."""
        return f"{self.name}.{self._lives}" if self._lives else self.name

    def forgotten(self) -> None:
        """Go on under a new name."""
        self._lives += 1


class Asker(ABC):
    """Asks nodes and records it.

    Args:
        choices: Whom processes choose from, as of now.
        recorder: Has what they ask and hear.
        deadline_ms: The broker must have answered by then, waits not counted.
    """

    def __init__(
        self, choices: Callable[[], Sequence[str]], recorder: Recorder, *, deadline_ms: int
    ) -> None:
        self._choices = choices
        self._recorder = recorder
        self._deadline_ms = deadline_ms
        self._ballast = random.Random("ballast")

    @property
    def nodes(self) -> Sequence[str]:
        """Whom processes choose from, as of now."""
        return self._choices()

    async def invoke(
        self, process: Process, f: F, args: Args, *, node: str = "", worker: str = ""
    ) -> Answer:
        """Carry out one operation, at a node of the process's choice unless one is named.

        Args:
            process: Who asks; it has no other operation under way.
            f: What.
            args: The rest; the deadline is filled in here.
            node: Asked.
            worker: On whose behalf, for what workers do.
        """
        node = node or process.random.choice(self.nodes)
        args = msgspec.structs.replace(args, deadline_ms=self._deadline_ms)
        p = process.p
        self._recorder.record(p, f, Type.INVOKE, node=node, args=args)
        try:
            answer = await self._asked(f, args, node, worker)
        except asyncio.CancelledError:
            self._recorder.record(p, f, Type.INFO, node=node, out=Out(code="given up"))
            process.forgotten()
            raise
        self._recorder.record(p, f, answer.type, node=node, out=answer.out)
        if answer.type is Type.INFO:
            process.forgotten()
        return answer

    async def retried(
        self, process: Process, f: F, args: Args, *, tries: int, worker: str = ""
    ) -> Answer:
        """Ask again, ever less often, while the SDK would; only for what may happen twice."""
        answer = await self.invoke(process, f, args, worker=worker)
        for failures in range(tries - 1):
            if answer.type is Type.OK or not answer.again:
                break
            longest = min(PAUSE_S_MAX, PAUSE_S * 2**failures)
            await asyncio.sleep(process.random.uniform(longest / 2, longest))
            answer = await self.invoke(process, f, args, worker=worker)
        return answer

    async def weigh_down(self) -> bool:
        """Create a large task that is no part of the history: nobody claims it or asks for it."""
        # Bytes of a generator with a seed compress as little as those of the machine.
        pad = base64.b64encode(self._ballast.randbytes(BALLAST_BYTES * 3 // 4)).decode()
        args = Args(command="ballast", content=content_of({"pad": pad}))
        answer = await self._asked(F.CREATE, args, self._ballast.choice(self.nodes), "")
        return answer.type is Type.OK

    @abstractmethod
    async def _asked(self, f: F, args: Args, node: str, worker: str) -> Answer:
        """Have a node do something, and say what is known of it."""


def content_of(value: object) -> str:
    """Return a JSON value as the one text that compares equal for equal values."""
    return msgspec.json.encode(value, order="sorted").decode()
