"""Ask all: asks all connected nodes at once for facts that only each node has.

The answers are only for display: a node that is away, too slow or of an earlier release is left
out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from codeq_cluster.errors import CodeqError, MethodUnknown
from codeq_cluster.wire import Mesh

log = logging.getLogger(__name__)

GATHER = "gather"

WAIT_S = 1.0  # For the slowest peer; pages that show it refresh in two seconds.

_T = TypeVar("_T")


class AskAll:
    """Asks the other nodes and answers them.

    Args:
        node_id: This node.
        peers: Returns the nodes that are connected.
        calls: The link.
    """

    def __init__(self, *, node_id: str, peers: Callable[[], Sequence[str]], calls: Mesh) -> None:
        self._node_id = node_id
        self._peers = peers
        self._calls = calls
        self._answers: dict[str, Callable[[object], Awaitable[object]]] = {}

    def offer(self, kind: str, answer: Callable[[object], Awaitable[object]]) -> None:
        """Register the answer to a kind of question on this node.

        Args:
            kind: The question's name.
            answer: Takes the question as plain values; returns a value that `msgspec` can convert.
        """
        self._answers[kind] = answer

    async def ask(self, kind: str, question: object, answer: type[_T]) -> dict[str, _T]:
        """Return the answer of each node that answers in time, this node first."""
        own = msgspec.to_builtins(await self._answers[kind](question))
        found = {self._node_id: msgspec.convert(own, answer)}
        peers = [peer for peer in self._peers() if peer != self._node_id]
        said = await asyncio.gather(*(self._ask(peer, kind, question) for peer in peers))
        for peer, each in zip(peers, said, strict=True):
            try:
                found[peer] = msgspec.convert(each, answer)
            except msgspec.ValidationError:
                continue  # The peer did not answer, or its release answers otherwise.
        return found

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Return this node's answer to a peer.

        Raises:
            MethodUnknown: This release does not know the kind of question.
        """
        del peer, timeout_s
        try:
            kind, question = msgspec.convert(body, tuple[str, object])
            answer = self._answers[kind]
        except (msgspec.ValidationError, KeyError) as unknown:
            raise MethodUnknown(f"this release knows no such {method}") from unknown
        return msgspec.to_builtins(await answer(question))

    async def _ask(self, peer: str, kind: str, question: object) -> object:
        try:
            async with asyncio.timeout(WAIT_S):
                return await self._calls.call(peer, GATHER, [kind, question], timeout_s=WAIT_S)
        except (CodeqError, TimeoutError) as error:
            log.debug("not gathered", extra={"peer": peer, "kind": kind, "reason": str(error)})
            return None
