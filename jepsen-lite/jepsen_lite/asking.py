"""Asking: one operation of a logical process, from invocation to answer, both recorded."""

from __future__ import annotations

import asyncio
import base64
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import msgspec
from msgspec import Struct

from jepsen_lite.history import Args, F, Out, Recorder, Type

PAUSE_S = 0.2
PAUSE_S_MAX = 2.0
GOVERN_TRIES = 50
BALLAST_BYTES = 32 * 2**10


class Answer(Struct, frozen=True, kw_only=True):
    """The end of an operation; `again` if the SDK would retry it."""

    type: Type
    out: Out
    again: bool


class Process:
    """A logical process; it gets a new name after an operation with an unknown outcome."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._lives = 0
        # Each process has its own generator: its draws must not depend on the pace of the others.
        self.random = random.Random(f"{seed}/{name}")

    @property
    def p(self) -> str:
        """The name in the history."""
        return f"{self.name}.{self._lives}" if self._lives else self.name

    def forgotten(self) -> None:
        """Continue under a new name."""
        self._lives += 1


class Asker(ABC):
    """Sends operations to nodes and records them.

    Args:
        choices: The nodes that processes currently choose from.
        recorder: Records requests and answers.
        deadline_ms: The broker must have answered each request by then, waits not counted.
    """

    requests_max: ClassVar[Mapping[F, int]] = {}  # Per operation; 1 unless named.

    def __init__(
        self, choices: Callable[[], Sequence[str]], recorder: Recorder, *, deadline_ms: int
    ) -> None:
        self._choices = choices
        self._recorder = recorder
        self._deadline_ms = deadline_ms
        self._ballast = random.Random("ballast")

    @property
    def nodes(self) -> Sequence[str]:
        """The nodes that processes currently choose from."""
        return self._choices()

    async def invoke(
        self, process: Process, f: F, args: Args, *, node: str = "", worker: str = ""
    ) -> Answer:
        """Carry out one operation, at a node of the process's choice unless one is named.

        Args:
            process: The process; it has no other operation in flight.
            f: The kind of operation.
            args: Its arguments; the deadline is filled in here.
            node: The node to ask.
            worker: The worker that acts, for a worker's operation.
        """
        node = node or process.random.choice(self.nodes)
        deadline_ms = self._deadline_ms * self.requests_max.get(f, 1)
        args = msgspec.structs.replace(args, deadline_ms=deadline_ms)
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
        """Repeat an operation with growing pauses, as the SDK would; only if that is safe."""
        answer = await self.invoke(process, f, args, worker=worker)
        for failures in range(tries - 1):
            if answer.type is Type.OK or not answer.again:
                break
            longest = min(PAUSE_S_MAX, PAUSE_S * 2**failures)
            await asyncio.sleep(process.random.uniform(longest / 2, longest))
            answer = await self.invoke(process, f, args, worker=worker)
        return answer

    async def unrecorded(self, process: Process, f: F, args: Args, *, worker: str) -> Answer:
        """Carry out an operation outside of the history."""
        return await self._asked(f, args, process.random.choice(self.nodes), worker)

    async def weigh_down(self) -> bool:
        """Create a large task outside of the history: nobody claims or reads it."""
        # Bytes from a seeded generator compress as little as the machine's random bytes.
        pad = base64.b64encode(self._ballast.randbytes(BALLAST_BYTES * 3 // 4)).decode()
        args = Args(command="ballast", content=content_of({"pad": pad}))
        answer = await self._asked(F.CREATE, args, self._ballast.choice(self.nodes), "")
        return answer.type is Type.OK

    async def govern(self, command: str) -> bool:
        """Put the rule of `keys` in force; return whether all tasks follow it."""
        for tried in range(GOVERN_TRIES):
            if await self._govern(self.nodes[tried % len(self.nodes)], command):
                return True
            await asyncio.sleep(PAUSE_S)
        return False

    @abstractmethod
    async def _govern(self, node: str, command: str) -> bool:
        """Put the rule of keys through a node; return whether every task follows it."""

    @abstractmethod
    async def _asked(self, f: F, args: Args, node: str, worker: str) -> Answer:
        """Send an operation to a node, and return its outcome as far as it is known."""


def content_of(value: object) -> str:
    """Return a JSON value as canonical text: equal values give equal texts."""
    return msgspec.json.encode(value, order="sorted").decode()
