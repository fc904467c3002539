"""Shard calls: calls of other nodes' routers, answered for the shards that this node leads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from codeq_cluster.broker.engine.batch import OutcomeSlot
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.ports import Head
from codeq_cluster.broker.questions import AnyQuestion
from codeq_cluster.core.new_task import Create, CreateKeyed, CreateTagged, CreateUnique
from codeq_cluster.core.operations import Import, Operation
from codeq_cluster.core.relays import TakeRelays
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.errors import MethodUnknown, NotLeader
from codeq_cluster.telemetry.tracing import Tracing

_METHODS = frozenset(("operate", "read", "heads", "ask", "depths"))

_T = TypeVar("_T")


class _Carried(msgspec.Struct):
    """A call with its trace."""

    trace: tuple[str, str]
    call: msgspec.Raw


_MAPS = tuple(bytes((first,)) for first in range(0x80, 0x90))  # First bytes of a packed map.
_read_operate = msgspec.msgpack.Decoder(tuple[int, list[Operation]]).decode
_read_carried = msgspec.msgpack.Decoder(_Carried).decode


class ShardCalls:
    """Answers the routers of other nodes.

    Args:
        engines: One per shard, in the order of shards.
    """

    def __init__(self, engines: Sequence[Engine], *, tracing: Tracing | None = None) -> None:
        self._engines = engines
        self._tracing = tracing

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Answer a peer's call for a shard this node leads; never forward it again.

        Raises:
            NotLeader: This node does not lead the shard; nothing was done.
            MethodUnknown: This release does not know the method or its body; nothing was done.
            ValueError: The shard does not exist.
        """
        del peer, timeout_s  # The link has authenticated the peer and enforces the timeout.
        if method not in _METHODS:
            raise MethodUnknown(f"this release knows no method {method}")
        if not isinstance(body, dict):
            return await self._serve(method, body)
        # A call with its trace, from a node that makes spans; this node may make none.
        trace_parent, trace_state = _taken(method, body.get("trace"), tuple[str, str])
        if self._tracing is None:
            return await self._serve(method, body.get("call"))
        with self._tracing.carried(trace_parent, trace_state):
            return await self._serve(method, body.get("call"))

    def serve_operate(self, body: bytes, place: OutcomeSlot) -> None:
        """Answer a peer's packed `operate` without a task, as `serve` does.

        Raises:
            NotLeader: This node does not lead the shard; nothing was done.
            MethodUnknown: The body does not fit this release; nothing was done.
        """
        try:
            # A call with its trace, from a node that makes spans; this node makes none.
            call = _read_carried(body).call if body[:1] in _MAPS else body
            shard, operations = _read_operate(call)
        except msgspec.MsgspecError as error:
            raise MethodUnknown(f"this release takes no such operate: {error}") from error
        self._check_home(shard, operations)
        _engine_of(self._engines, shard).begin(operations, place)

    async def _serve(self, method: str, body: object) -> object:
        match method:
            case "operate":
                shard, operations = _taken(method, body, tuple[int, list[Operation]])
                self._check_home(shard, operations)
                answer: object = await _engine_of(self._engines, shard).operate(operations)
            case "read":
                shard, keys = _taken(method, body, tuple[int, list[bytes]])
                answer = await _engine_of(self._engines, shard).read(keys)
            case "heads":
                shards, tenant, queues = _taken(
                    method, body, tuple[list[int], str, tuple[str, ...]]
                )
                answer = heads_here(self._engines, shards, tenant, queues)
            case "ask":
                shard, question = _taken(method, body, tuple[int, AnyQuestion])
                answer = await _engine_of(self._engines, shard).answer(question)
            case "depths":
                shard, tenant, queue = _taken(method, body, tuple[int, str, str])
                answer = await _engine_of(self._engines, shard).depths(tenant, queue)
            case _:
                raise AssertionError(method)
        return answer

    def _check_home(self, shard: int, operations: Sequence[Operation]) -> None:
        """Assert that new tasks belong to the shard: nobody would find them anywhere else."""
        shards = len(self._engines)
        for operation in operations:
            create: Operation = operation
            if isinstance(operation, CreateKeyed | CreateTagged | CreateUnique):
                create = operation.create
            if isinstance(create, Create):
                homes = {shard_of(create.id, shards)}
            elif isinstance(operation, TakeRelays):
                homes = {each.effect.home(shards) for each in operation.relays}
            elif isinstance(operation, Import):
                homes = {shard_of(arrival.task.id, shards) for arrival in operation.tasks}
            else:
                continue
            assert homes <= {shard}, "a task sent to a foreign shard"


def heads_here(
    engines: Sequence[Engine], shards: list[int], tenant: str, queues: tuple[str, ...]
) -> tuple[list[Head], list[int]]:
    """Return the first ready tasks of the shards led here, and the shards that are not.

    Raises:
        NotLeader: None of them is led here.
        ValueError: A shard does not exist.
    """
    led = [shard for shard in shards if _engine_of(engines, shard).leads]
    if not led:
        raise NotLeader(engines[shards[0]].leader)
    heads = (engines[shard].head(tenant, queues) for shard in led)
    return (
        [head for head in heads if head is not None],
        [shard for shard in shards if shard not in led],
    )


def _taken(method: str, body: object, form: type[_T]) -> _T:
    """Return a peer's body in this release's form; raises MethodUnknown if it does not fit."""
    try:
        return msgspec.convert(body, form, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise MethodUnknown(f"this release takes no such {method}: {error}") from error


def _engine_of(engines: Sequence[Engine], shard: int) -> Engine:
    if not 0 <= shard < len(engines):
        raise ValueError(f"no such shard: {shard}")
    return engines[shard]
