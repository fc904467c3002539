"""Router: a write or a read of any shard, wherever it is led.

The policy in one place:

- Try the leader this node knows; if it is another node, call it over the link.
- If there is no leader, or it has gone, wait for the next one within the caller's deadline.
- A node whose own replica is out of service does not learn of leaders. It briefly asks its peers.

A call may be sent twice: every operation carries its own name (a task id, a request id). So a call
whose outcome is unknown is sent again to the next leader and takes effect once. The caller gets
"outcome unknown" if a send may have had an effect and the deadline ends without an answer, or the
answer is that the caller does not hold the task: it may have held it when it asked first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from codeq_cluster.broker.deadlines import Deadlines
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.ports import Depth, Head, Snapshot
from codeq_cluster.broker.questions import Answer, AnyQuestion, Question
from codeq_cluster.core.operations import Claim, Operation
from codeq_cluster.core.outcomes import Claimed, Outcome, Rejected, Rejection
from codeq_cluster.errors import (
    LinkLost,
    MethodUnknown,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
    first_of,
)
from codeq_cluster.routing.leaders import PAUSE_S, Leaders
from codeq_cluster.routing.shard_calls import heads_here
from codeq_cluster.telemetry.tracing import Tracing

# Time for peers to name a leader: an election takes up to two seconds. If they know none either,
# the caller gets an answer soon, because another node may know more.
HINT_S = 3.0

# Refusals of what only the holder of a task may do.
_NOT_HELD = frozenset(
    {Rejection.NOT_FOUND, Rejection.NOT_OWNER, Rejection.NOT_IN_PROGRESS, Rejection.LEASE_LOST}
)

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)

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


class _Call(Protocol[_T_co]):
    """One call to a leader, in its local and its remote form."""

    @property
    def method(self) -> str:
        """The call that asks another node's engine."""

    @property
    def answer(self) -> Callable[[bytes], _T_co]:
        """Decodes its packed answer."""

    def here(self) -> Awaitable[_T_co]:
        """Ask this node's engine; a future that it returns may be ended from outside."""

    def body(self) -> object:
        """Return the body of the call to another node: plain values and structs."""

    def again(self) -> bool:
        """Prepare another send after one that may have had an effect; False if none can have."""


@dataclass(slots=True, kw_only=True)
class _Read(Generic[_T]):
    """A call without an effect."""

    here: Callable[[], Awaitable[_T]]
    method: str
    body: Callable[[], object]
    answer: Callable[[bytes], _T]

    def again(self) -> bool:
        """Return that no send has had an effect."""
        return False


class _Operate:
    """Operations on one shard."""

    __slots__ = ("_engine", "_operations", "_traced")

    method = "operate"
    answer = staticmethod(_read_outcomes)

    def __init__(self, engine: Engine, operations: Sequence[Operation], *, traced: bool) -> None:
        self._engine = engine
        self._operations = operations
        self._traced = traced

    def here(self) -> Awaitable[list[Outcome]]:
        """Decide them here."""
        if self._traced:
            return self._engine.operate(self._operations)
        place: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self._engine.begin(self._operations, place)
        return place

    def body(self) -> object:
        """Return the shard and the operations."""
        return self._engine.shard, self._operations

    def again(self) -> bool:
        """Mark the operations as repeated; return that they may have had an effect."""
        self._operations = [_retry(operation) for operation in self._operations]
        return True


class Router:
    """Every shard of the cluster, from this node.

    Args:
        engines: One per shard, in the order of shards.
        leaders: Know who leads each shard.
        on_answered: Called with (method, seconds) of every call another node has answered.
    """

    def __init__(
        self,
        *,
        node_id: str,
        engines: Sequence[Engine],
        leaders: Leaders,
        calls: RouterCalls,
        on_answered: Callable[[str, float], None],
        tracing: Tracing | None = None,
    ) -> None:
        self._node_id = node_id
        self._engines = engines
        self._calls = calls
        self._on_answered = on_answered
        self._tracing = tracing
        self._leaders = leaders
        self._deadlines = Deadlines()

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return len(self._engines)

    @property
    def isolated(self) -> bool:
        """Return whether some shard's entries do not reach this node."""
        return any(map(self._leaders.isolated, range(self.count)))

    def local(self, shard: int) -> Engine:
        """Return this node's replica."""
        return self._engines[shard]

    # -- asking any shard ------------------------------------------------------------------------

    def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> Coroutine[Any, Any, list[Outcome]]:
        """Run the operations in order, as `Shards` says."""
        call = _Operate(self._engines[shard], operations, traced=self._tracing is not None)
        return self._at_leader(shard, call, deadline=deadline)

    async def read(self, shard: int, keys: Sequence[bytes], *, deadline: float) -> Snapshot:
        """Return rows as of now; raises NoLeader."""
        call = _Read(
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
        asked: _Call[object] = _Read(
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
                _Read(
                    here=partial(self._engines[shard].depths, tenant, queue),
                    method="depths",
                    body=partial(list, (shard, tenant, queue)),
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
    ) -> _T:
        """Ask the shard's leader until one answers or the deadline, monotonic seconds, passes."""
        loop = asyncio.get_running_loop()
        engine = self._engines[shard]
        effect_possible = False
        since = now = loop.time()
        while now < deadline:
            leader = engine.leader
            if leader is None and self._leaders.isolated(shard):
                leader = self._leaders.hints.of(shard)
                if leader is None or now - since >= HINT_S:
                    break  # Another node may know a leader sooner.
            try:
                answer = await self._ask(leader, shard, call, deadline=deadline)
            except (NotLeader, NoLeader, PeerUnreachable) as refused:
                self._leaders.hints.astray(shard, leader, refused)  # Nothing was done.
            except (LinkLost, OutcomeUnknown, TimeoutError) as lost:
                self._leaders.hints.astray(shard, leader, lost)
                since = loop.time()
                effect_possible = call.again()
            except (Overloaded, MethodUnknown):
                if not effect_possible:
                    raise
                # "Nothing was done" is true only of this send; an earlier one may have acted.
            else:
                return _doubted(answer) if effect_possible else answer
            await self._rest(shard, leader, left_s=deadline - loop.time())
            now = loop.time()
        if effect_possible:
            raise OutcomeUnknown(f"no answer from a leader of shard {shard} in time")
        what = "no answer from the leader" if self._leaders.of(shard) else "no leader is known"
        raise NoLeader(f"shard {shard}: {what}")

    async def _rest(self, shard: int, leader: str | None, *, left_s: float) -> None:
        """Wait before the next try, unless another leader has become known."""
        if leader == self._leaders.of(shard) or self._leaders.isolated(shard):
            await self._leaders.change(shard, min(PAUSE_S, max(0, left_s)))

    def _ask(
        self, leader: str | None, shard: int, call: _Call[_T], *, deadline: float
    ) -> Awaitable[_T]:
        if leader is None:
            raise NotLeader
        if leader != self._node_id:
            return self._ask_peer(leader, shard, call, deadline=deadline)
        asked = call.here()
        if isinstance(asked, asyncio.Future):
            self._deadlines.watch(asked, deadline)
            return asked
        return _until(deadline, asked)

    async def _ask_peer(self, leader: str, shard: int, call: _Call[_T], *, deadline: float) -> _T:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        left_s = deadline - asked_at
        method, body, ask = call.method, call.body(), self._calls.ask
        if self._tracing is None:
            said = await ask(leader, method, _pack(body), timeout_s=left_s, topic=shard)
        else:
            with self._tracing.forward(method, shard=shard, peer=leader) as span:
                if span is not None:
                    # Wrap the call instead of changing its body: each method keeps its format.
                    body = {"trace": [span.trace_parent, span.trace_state], "call": body}
                said = await ask(leader, method, _pack(body), timeout_s=left_s, topic=shard)
        self._on_answered(method, loop.time() - asked_at)
        return call.answer(said)

    async def _heads_of(
        self, shards: list[int], tenant: str, queues: tuple[str, ...], *, deadline: float
    ) -> list[Head]:
        """Ask one leader for several shards; ask alone for those it does not lead after all."""

        async def here() -> tuple[list[Head], list[int]]:
            return heads_here(self._engines, shards, tenant, queues)

        call = _Read(
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


async def _until(deadline: float, asked: Awaitable[_T]) -> _T:
    async with asyncio.timeout_at(deadline):
        return await asked


def _retry(operation: Operation) -> Operation:
    """Return the operation for a retry: a repeated claim looks for tasks it may have leased."""
    return (
        msgspec.structs.replace(operation, retry=True)
        if isinstance(operation, Claim)
        else operation
    )


def _doubted(answer: _T) -> _T:
    """Return the answer to a send that was repeated, with what its claims may lack.

    The lease of an earlier send may have ended, or a leader that was replaced may not know of it.

    Raises:
        OutcomeUnknown: A caller does not hold its task now, and may have when it asked first.
    """
    assert isinstance(answer, list), "only operations have an effect"
    for position, outcome in enumerate(answer):
        if isinstance(outcome, Rejected) and outcome.rejection in _NOT_HELD:
            raise OutcomeUnknown(f"{outcome.rejection} when it was asked again")
        if isinstance(outcome, Claimed) and not outcome.tasks:
            answer[position] = msgspec.structs.replace(outcome, lost=True)
    return answer


async def _together(asked: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all at once and return their values in order; the first error ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asked]
    except BaseExceptionGroup as errors:
        # Callers handle the error of one question, not a group of several.
        raise first_of(errors) from errors
    return [task.result() for task in tasks]
