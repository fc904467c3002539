"""Router: a write or a read of any shard, wherever it is led.

The policy in one place:

- Try the leader this node knows; if it is another node, call it over the link.
- If there is no leader, or it has gone, wait for the next one within the caller's deadline.
- A node whose own replica is out of service does not learn of leaders. It briefly asks its peers.

A call may be sent twice: every operation carries its own name (a task id, a request id). So a call
whose outcome is unknown is sent again to the next leader and takes effect once. The caller gets
"outcome unknown" only if the deadline ends without an answer and a send may have had an effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.ports import Depth, Head, Snapshot
from codeq_cluster.broker.questions import Answer, AnyQuestion, Question
from codeq_cluster.core.operations import Claim, Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.errors import (
    LinkLost,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)
from codeq_cluster.routing.deadlines import Deadlines
from codeq_cluster.routing.leader_hints import LeaderHints
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.shard_calls import heads_here
from codeq_cluster.telemetry.tracing import Tracing

# Between two looks for a leader while no event announces one; a change ends the wait at once.
PAUSE_S = 0.05
# Time for peers to name a leader: an election takes up to two seconds. If they know none either,
# the caller gets an answer soon, because another node may know more.
HINT_S = 3.0

_T = TypeVar("_T")

_pack = msgspec.msgpack.Encoder().encode
_read_outcomes = msgspec.msgpack.Decoder(list[Outcome]).decode
_read_snapshot = msgspec.msgpack.Decoder(Snapshot).decode
_read_answer = msgspec.msgpack.Decoder[Answer](Answer).decode
_read_heads = msgspec.msgpack.Decoder(tuple[list[Head], list[int]]).decode
_read_depths = msgspec.msgpack.Decoder(list[Depth]).decode


class RouterCalls(Protocol):
    """The link's RPC."""

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Ask a peer, both ways packed; raises PeerUnreachable, LinkLost or the peer's error."""

    def give_up(self, peer: str, topic: int) -> None:
        """End the waiting calls to a peer about a topic with LinkLost."""


@dataclass(slots=True, kw_only=True)
class _Call(Generic[_T]):
    """One call to a leader, in its local and its remote form.

    Attributes:
        here: Asks this node's engine; a future it returns may be ended from outside.
        method: The call that asks another node's engine.
        body: Makes that call's body: plain values and structs.
        answer: Decodes its packed answer.
    """

    here: Callable[[], Awaitable[_T]]
    method: str
    body: Callable[[], object]
    answer: Callable[[bytes], _T]


class Router:
    """Every shard of the cluster, from this node.

    Args:
        node_id: This node.
        engines: One per shard, in the order of shards.
        calls: The link.
        on_answered: Called with (method, seconds) of every call another node has answered.
        tracing: Makes spans of the calls; None for none.
        is_out: Returns whether this node's replica of a shard is out of service; then it learns of
            no leader, however long it waits.
        peers: Returns the connected nodes, which are then asked.
    """

    def __init__(
        self,
        *,
        node_id: str,
        engines: Sequence[Engine],
        calls: RouterCalls,
        on_answered: Callable[[str, float], None],
        tracing: Tracing | None = None,
        is_out: Callable[[int], bool] = lambda _shard: False,
        peers: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._node_id = node_id
        self._engines = engines
        self._calls = calls
        self._on_answered = on_answered
        self._tracing = tracing
        self._is_out = is_out
        self._hints = LeaderHints(peers)
        self._deadlines = Deadlines()
        # A paused leader, or one behind a silent cut, stops answering while its connection stays
        # up. The other nodes then elect a new leader: end the calls to the old one.
        self._leaders = Leaders(
            engines, replaced=lambda shard, leader: calls.give_up(leader, shard)
        )

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return len(self._engines)

    @property
    def isolated(self) -> bool:
        """Return whether some shard's entries do not reach this node."""
        return any(map(self._is_isolated, range(self.count)))

    def local(self, shard: int) -> Engine:
        """Return this node's replica."""
        return self._engines[shard]

    # -- asking any shard ------------------------------------------------------------------------

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Run the operations in order, one outcome each, all durable when it returns.

        Raises:
            NoLeader: No leader was found before `deadline`; nothing was done.
            OutcomeUnknown: The deadline passed and some may have taken effect.
            Overloaded: The shard's queue is full; nothing was done.
        """
        sent = operations

        def again() -> None:
            nonlocal sent
            sent = [_retry(operation) for operation in operations]

        def here() -> Awaitable[list[Outcome]]:
            engine = self._engines[shard]
            if self._tracing is not None:
                return engine.operate(sent)
            place: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
            engine.begin(sent, place)
            return place

        call = _Call(
            here=here,
            method="operate",
            body=lambda: (shard, sent),
            answer=_read_outcomes,
        )
        return await self._at_leader(shard, call, deadline=deadline, again=again)

    async def read(self, shard: int, keys: Sequence[bytes], *, deadline: float) -> Snapshot:
        """Return rows as of now; raises NoLeader."""
        call = _Call(
            here=lambda: self._engines[shard].read(keys),
            method="read",
            body=lambda: [shard, list(keys)],
            answer=_read_snapshot,
        )
        return await self._at_leader(shard, call, deadline=deadline)

    async def ask(self, shard: int, question: Question[_T], *, deadline: float) -> _T:
        """Return the answer of a shard's leader as of now; raises NoLeader or Overloaded."""
        expected = question.answer
        assert isinstance(question, AnyQuestion), "a question that no leader knows"
        asked: _Call[object] = _Call(
            here=lambda: self._engines[shard].answer(question),
            method="ask",
            body=lambda: (shard, question),
            answer=_read_answer,
        )
        answer = await self._at_leader(shard, asked, deadline=deadline)
        assert isinstance(answer, expected), "a question is answered with something else"
        return answer

    async def heads(self, tenant: str, queues: tuple[str, ...], *, deadline: float) -> list[Head]:
        """Return the first ready task of every shard that has one; raises NoLeader."""
        asked = [
            self._heads_of(shards, tenant, queues, deadline=deadline)
            for shards in self._by_leader().values()
        ]
        return [head for heads in await _together(asked) for head in heads]

    async def depths(self, tenant: str, queue: str = "", *, deadline: float) -> list[Depth]:
        """Return every queue of the tenant, or the one named, shard by shard; raises NoLeader."""
        asked = [
            self._at_leader(
                shard,
                _Call(
                    here=partial(self._engines[shard].depths, tenant, queue),
                    method="depths",
                    body=partial(_list, shard, tenant, queue),
                    answer=_read_depths,
                ),
                deadline=deadline,
            )
            for shard in range(self.count)
        ]
        return [depth for depths in await _together(asked) for depth in depths]

    # -- the policy ------------------------------------------------------------------------------

    async def _at_leader(
        self,
        shard: int,
        call: _Call[_T],
        *,
        deadline: float,
        again: Callable[[], None] | None = None,
    ) -> _T:
        """Ask the shard's leader until one answers or the deadline passes.

        Args:
            shard: The shard's number.
            call: The call.
            deadline: Monotonic seconds.
            again: Called if a send may have had an effect that the next one must not repeat; None
                for a read, which has no effect.
        """
        loop = asyncio.get_running_loop()
        effect_possible = False
        since = loop.time()
        while (left_s := deadline - loop.time()) > 0 and not self._in_vain(shard, since=since):
            leader = self._whom(shard)
            try:
                return await self._ask(leader, shard, call, left_s=left_s)
            except (NotLeader, NoLeader, PeerUnreachable) as refused:
                self._hints.astray(shard, leader, refused)  # Nothing was done.
            except (LinkLost, OutcomeUnknown, TimeoutError) as lost:
                self._hints.astray(shard, leader, lost)
                since = loop.time()
                if again is not None:
                    effect_possible = True
                    again()
            except (Overloaded, MethodUnknown):
                if not effect_possible:
                    raise
                # "Nothing was done" is true only of this send; an earlier one may have acted.
            await self._rest(shard, leader, left_s=deadline - loop.time())
        if effect_possible:
            raise OutcomeUnknown(f"no answer from a leader of shard {shard} in time")
        raise NoLeader(f"no leader for shard {shard}")

    def _is_isolated(self, shard: int) -> bool:
        return self._leaders.of(shard) is None and self._is_out(shard)

    def _whom(self, shard: int) -> str | None:
        return self._hints.of(shard) if self._is_isolated(shard) else self._leaders.of(shard)

    def _in_vain(self, shard: int, *, since: float) -> bool:
        """Return whether to stop trying, because another node may know a leader sooner."""
        if not self._is_isolated(shard):
            return False
        return self._hints.of(shard) is None or asyncio.get_running_loop().time() - since >= HINT_S

    async def _rest(self, shard: int, leader: str | None, *, left_s: float) -> None:
        """Wait before the next try, unless another leader has become known."""
        if leader == self._leaders.of(shard) or self._is_isolated(shard):
            await self._leaders.change(shard, min(PAUSE_S, max(0, left_s)))

    async def _ask(self, leader: str | None, shard: int, call: _Call[_T], *, left_s: float) -> _T:
        if leader is None:
            raise NotLeader
        loop = asyncio.get_running_loop()
        if leader == self._node_id:
            asked = call.here()
            if isinstance(asked, asyncio.Future):
                self._deadlines.watch(asked, loop.time() + left_s)
                answer: _T = await asked
                return answer
            async with asyncio.timeout(left_s):
                return await asked
        asked_at = loop.time()
        said = await self._send(leader, shard, call, left_s=left_s)
        self._on_answered(call.method, loop.time() - asked_at)
        return call.answer(said)

    async def _send(self, peer: str, shard: int, call: _Call[_T], *, left_s: float) -> bytes:
        method, body = call.method, call.body()
        if self._tracing is None:
            return await self._calls.ask(peer, method, _pack(body), timeout_s=left_s, topic=shard)
        with self._tracing.forward(method, shard=shard, peer=peer) as span:
            if span is not None:
                # Wrap the call instead of changing its body: each method keeps its format.
                body = {"trace": [span.trace_parent, span.trace_state], "call": body}
            return await self._calls.ask(peer, method, _pack(body), timeout_s=left_s, topic=shard)

    async def _heads_of(
        self, shards: list[int], tenant: str, queues: tuple[str, ...], *, deadline: float
    ) -> list[Head]:
        """Ask one leader for several shards; ask alone for those it does not lead after all."""

        async def here() -> tuple[list[Head], list[int]]:
            return heads_here(self._engines, shards, tenant, queues)

        call = _Call(
            here=here,
            method="heads",
            body=lambda: [shards, tenant, list(queues)],
            answer=_read_heads,
        )
        heads, elsewhere = await self._at_leader(shards[0], call, deadline=deadline)
        alone = [self._heads_of([shard], tenant, queues, deadline=deadline) for shard in elsewhere]
        return [*heads, *(head for part in await _together(alone) for head in part)]

    def _by_leader(self) -> dict[str | int, list[int]]:
        """Return the shards by their leader; each shard without a leader alone."""
        groups: dict[str | int, list[int]] = {}
        for shard in range(self.count):
            groups.setdefault(self._leaders.of(shard) or shard, []).append(shard)
        return groups


def _retry(operation: Operation) -> Operation:
    """Return the operation for a retry: a repeated claim looks for tasks it may have leased."""
    return (
        msgspec.structs.replace(operation, retry=True)
        if isinstance(operation, Claim)
        else operation
    )


def _list(*values: object) -> list[object]:
    return list(values)


async def _together(asked: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all at once and return their values in order; the first error ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asked]
    except BaseExceptionGroup as errors:
        # Callers handle the error of one question, not a group of several.
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]
