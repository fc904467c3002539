"""Ask all: asks all connected nodes at once for facts that only each node has.

A node that is away, too slow or of an earlier release is left out of what is displayed; who must
know that it has not answered uses `ask_until`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from codeq_cluster.errors import CodeqError, MethodUnknown
from codeq_cluster.wire import Mesh

log = logging.getLogger(__name__)

GATHER = "gather"

WAIT_S = 1.0  # For the slowest peer; pages that show it refresh in two seconds.

_Q = TypeVar("_Q")
_A = TypeVar("_A")


@dataclass(frozen=True, slots=True)
class Fact(Generic[_Q, _A]):
    """A fact that only each node itself has.

    Attributes:
        name: Its name on the link.
        question: The type of the question, which is sent as plain values.
        answer: The type of a node's answer, which is sent as plain values.
    """

    name: str
    question: type[_Q]
    answer: type[_A]


class AskAll:
    """Asks the other nodes and answers them.

    Args:
        peers: Returns the nodes that are connected.
    """

    def __init__(self, *, node_id: str, peers: Callable[[], Sequence[str]], calls: Mesh) -> None:
        self._node_id = node_id
        self._peers = peers
        self._calls = calls
        self._answers: dict[str, tuple[type[Any], Callable[[Any], Awaitable[object]]]] = {}

    def register(self, fact: Fact[_Q, _A], answer: Callable[[_Q], Awaitable[_A]]) -> None:
        """Register this node's answer to the questions for a fact."""
        self._answers[fact.name] = (fact.question, answer)

    async def ask(self, fact: Fact[_Q, _A], question: _Q) -> dict[str, _A]:
        """Return the answer of each node that answers in time, this node first."""
        _, answer = self._answers[fact.name]
        own = msgspec.to_builtins(await answer(question))
        found = {self._node_id: msgspec.convert(own, fact.answer)}
        peers = self._others()
        said = await asyncio.gather(*(self._ask(peer, fact.name, question) for peer in peers))
        for peer, each in zip(peers, said, strict=True):
            try:
                found[peer] = msgspec.convert(each, fact.answer)
            except msgspec.ValidationError:
                continue  # The peer did not answer, or its release answers otherwise.
        return found

    async def ask_until(
        self, fact: Fact[_Q, _A], question: _Q, enough: Callable[[_A], bool]
    ) -> list[_A | None]:
        """Return what the other nodes say up to the first answer that is enough.

        None stands for a node that has not answered in time, or whose release answers otherwise.
        """
        said: list[_A | None] = []

        async def one(peer: str) -> None:
            try:
                answer = msgspec.convert(await self._ask(peer, fact.name, question), fact.answer)
            except msgspec.ValidationError:
                said.append(None)
                return
            said.append(answer)
            if enough(answer):
                for each in asking:
                    each.cancel()

        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(one(peer)) for peer in self._others()]
        return said

    def _others(self) -> list[str]:
        return [peer for peer in self._peers() if peer != self._node_id]

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Return this node's answer to a peer.

        Raises:
            MethodUnknown: This release does not know the fact, or not the form of the question.
        """
        del peer, timeout_s
        try:
            name, plain = msgspec.convert(body, tuple[str, object])
            form, answer = self._answers[name]
            question = msgspec.convert(plain, form)
        except (msgspec.ValidationError, KeyError) as unknown:
            raise MethodUnknown(f"this release knows no such {method}") from unknown
        return msgspec.to_builtins(await answer(question))

    async def _ask(self, peer: str, name: str, question: object) -> object:
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._calls.call(peer, GATHER, [name, question], timeout_s=WAIT_S)
        except (CodeqError, TimeoutError) as error:
            log.debug(
                "peer did not answer", extra={"peer": peer, "kind": name, "reason": str(error)}
            )
            return None
