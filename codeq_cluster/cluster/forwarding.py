"""Forwarding: a write or a read of any shard, wherever it is led.

The policy in one place: try the leader this node knows; when it is another node, call it over the
link; when there is none, or it has gone, wait for the next one inside the caller's deadline.

What may be sent twice: every operation names itself (a task id, a request id), so a call whose fate
is unknown is sent again to the next leader and takes effect once. Only when the deadline ends
before anybody answered does the caller learn that the outcome is unknown, and only if at least one
send may have had an effect.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from codeq_cluster.cluster.leaders import Leaders, Replica
from codeq_cluster.core.operations import Claim, Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.errors import (
    LinkLost,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
)

# Between two looks for a leader when nothing tells of one; a change ends the wait at once.
PAUSE_S = 0.05

_T = TypeVar("_T")


class Engine(Replica, Protocol):
    """An engine of one shard on this node, as callers of a leader use it.

    What reads return is the broker's own; it only has to survive `msgspec`'s conversion to plain
    values and back, so this package names no type for it.
    """

    async def operate(self, operations: Sequence[Operation]) -> list[Outcome]:
        """Decide and commit; raises NotLeader, Overloaded or OutcomeUnknown."""

    async def read(self, keys: Sequence[bytes]) -> Any:
        """Read rows as of now; raises NotLeader."""

    async def depths(self, tenant: str) -> Any:
        """Return the tenant's queues; raises NotLeader."""

    @property
    def leads(self) -> bool:
        """Tell whether this node decides for the shard."""

    def head(self, tenant: str, queues: tuple[str, ...]) -> Any:
        """Return the first ready task known here, or None."""


class Calls(Protocol):
    """The link's RPC."""

    async def call(
        self, peer: str, method: str, body: object, *, timeout_s: float, topic: int | None = None
    ) -> object:
        """Call a peer; raises PeerUnreachable, LinkLost and what the peer raised."""

    def give_up(self, peer: str, topic: int) -> None:
        """End the waiting calls to a peer about a topic with LinkLost."""


class Forwarder:
    """Every shard of the cluster, from this node.

    Args:
        node_id: This node.
        engines: One a shard, in the order of shards.
        calls: The link.
        snapshot: Type of what `Engine.read` returns, likewise `head` and `depth`.
    """

    def __init__(
        self,
        *,
        node_id: str,
        engines: Sequence[Engine],
        calls: Calls,
        snapshot: type,
        head: type,
        depth: type,
    ) -> None:
        self._node_id = node_id
        self._engines = engines
        self._calls = calls
        # A leader that stopped answering without its connection breaking (a paused process, a
        # silent cut) is noticed by the others electing a new one; its calls then wait no longer.
        self._leaders = Leaders(
            engines, replaced=lambda shard, leader: calls.give_up(leader, shard)
        )
        self._snapshot = snapshot
        self._heads = list[head]  # type: ignore[valid-type]
        self._depths = list[depth]  # type: ignore[valid-type]

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return len(self._engines)

    def local(self, shard: int) -> Any:
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

        return await self._at_leader(
            shard,
            lambda: self._engines[shard].operate(sent),
            "operate",
            lambda: [shard, msgspec.to_builtins(sent)],
            list[Outcome],
            deadline=deadline,
            again=again,
        )

    async def read(self, shard: int, keys: Sequence[bytes], *, deadline: float) -> Any:
        """Read rows as of now; raises NoLeader."""
        return await self._at_leader(
            shard,
            lambda: self._engines[shard].read(keys),
            "read",
            lambda: [shard, list(keys)],
            self._snapshot,
            deadline=deadline,
        )

    async def heads(self, tenant: str, queues: tuple[str, ...], *, deadline: float) -> list[Any]:
        """Return the first ready task of every shard that has one; raises NoLeader."""
        asked = [
            self._heads_of(shards, tenant, queues, deadline=deadline)
            for shards in self._by_leader().values()
        ]
        return [head for heads in await _together(asked) for head in heads]

    async def depths(self, tenant: str, *, deadline: float) -> list[Any]:
        """Return every queue of the tenant, shard by shard; raises NoLeader."""
        asked = [
            self._at_leader(
                shard,
                lambda shard=shard: self._engines[shard].depths(tenant),  # type: ignore[misc]
                "depths",
                lambda shard=shard: [shard, tenant],  # type: ignore[misc]
                self._depths,
                deadline=deadline,
            )
            for shard in range(self.count)
        ]
        return [depth for depths in await _together(asked) for depth in depths]

    # -- answering a peer ------------------------------------------------------------------------

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Answer a peer's call for a shard this node leads; never forwards again.

        Raises:
            NotLeader: This node does not lead the shard; nothing was done.
            ValueError: The body is not what the method takes.
        """
        del peer, timeout_s  # The link has authenticated the one and enforces the other.
        match method:
            case "operate":
                shard, operations = msgspec.convert(body, tuple[int, list[Operation]])
                answer: object = await self._engine(shard).operate(operations)
            case "read":
                shard, keys = msgspec.convert(body, tuple[int, list[bytes]], builtin_types=(bytes,))
                answer = await self._engine(shard).read(keys)
            case "heads":
                shards, tenant, queues = msgspec.convert(
                    body, tuple[list[int], str, tuple[str, ...]]
                )
                answer = self._own_heads(shards, tenant, queues)
            case "depths":
                shard, tenant = msgspec.convert(body, tuple[int, str])
                answer = await self._engine(shard).depths(tenant)
            case _:
                raise ValueError(f"no such method: {method}")
        return msgspec.to_builtins(answer, builtin_types=(bytes,))

    def _engine(self, shard: int) -> Engine:
        if not 0 <= shard < self.count:
            raise ValueError(f"no such shard: {shard}")
        return self._engines[shard]

    # -- the policy ------------------------------------------------------------------------------

    async def _at_leader(
        self,
        shard: int,
        here: Callable[[], Awaitable[_T]],
        method: str,
        body: Callable[[], object],
        answer: Any,
        *,
        deadline: float,
        again: Callable[[], None] = lambda: None,
    ) -> _T:
        """Ask the shard's leader until one answers or the deadline passes.

        Args:
            shard: Which one.
            here: Asks this node's engine.
            method: Of the call that asks another node's.
            body: Makes that call's body.
            answer: Type of its answer.
            deadline: Monotonic seconds.
            again: Called before the first send that may repeat one with an effect.
        """
        loop = asyncio.get_running_loop()
        effect_possible = False
        while (left_s := deadline - loop.time()) > 0:
            leader = self._leaders.of(shard)
            try:
                if leader == self._node_id:
                    async with asyncio.timeout(left_s):
                        return await here()
                if leader is not None:
                    said = await self._calls.call(
                        leader, method, body(), timeout_s=left_s, topic=shard
                    )
                    return msgspec.convert(said, answer, builtin_types=(bytes,))  # type: ignore[no-any-return]
            except (NotLeader, NoLeader, PeerUnreachable):
                pass  # Nothing was done.
            except (LinkLost, OutcomeUnknown, TimeoutError):
                effect_possible = True
                again()
            except Overloaded:
                if not effect_possible:
                    raise
                # "Nothing was done" is true of this send alone; an earlier one may have acted.
            if leader == self._leaders.of(shard):
                await self._leaders.change(shard, min(PAUSE_S, max(0, deadline - loop.time())))
        if effect_possible:
            raise OutcomeUnknown(f"no answer from a leader of shard {shard} in time")
        raise NoLeader(f"no leader for shard {shard}")

    async def _heads_of(
        self, shards: list[int], tenant: str, queues: tuple[str, ...], *, deadline: float
    ) -> list[Any]:
        """Ask one leader for several shards; a shard it does not lead after all is asked alone."""

        def here() -> Awaitable[list[Any]]:
            return _done(self._own_heads(shards, tenant, queues))

        try:
            return await self._at_leader(
                shards[0],
                here,
                "heads",
                lambda: [shards, tenant, list(queues)],
                self._heads,
                deadline=deadline if len(shards) == 1 else _soon(deadline),
            )
        except NoLeader:
            if len(shards) == 1:
                raise
        alone = [self._heads_of([shard], tenant, queues, deadline=deadline) for shard in shards]
        return [head for heads in await _together(alone) for head in heads]

    def _own_heads(self, shards: list[int], tenant: str, queues: tuple[str, ...]) -> list[Any]:
        engines = [self._engine(shard) for shard in shards]
        for engine in engines:
            if not engine.leads:
                raise NotLeader(engine.leader)
        heads = (engine.head(tenant, queues) for engine in engines)
        return [head for head in heads if head is not None]

    def _by_leader(self) -> dict[str | int, list[int]]:
        """Return the shards by their leader; each without one alone."""
        groups: dict[str | int, list[int]] = {}
        for shard in range(self.count):
            groups.setdefault(self._leaders.of(shard) or shard, []).append(shard)
        return groups


def _retry(operation: Operation) -> Operation:
    """Return the operation as it is sent again: a claim looks for what it may have leased."""
    return (
        msgspec.structs.replace(operation, retry=True)
        if isinstance(operation, Claim)
        else operation
    )


def _soon(deadline: float) -> float:
    return min(deadline, asyncio.get_running_loop().time() + PAUSE_S)


async def _together(asked: Sequence[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Run all at once and return their values in order; the first error ends the rest."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in asked]
    except BaseExceptionGroup as errors:
        # Callers know the errors of one question, not of several at once.
        raise errors.exceptions[0] from errors
    return [task.result() for task in tasks]


async def _done(value: _T) -> _T:
    return value
