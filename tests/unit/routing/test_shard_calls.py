"""Shard calls between releases: an unknown method is refused before anything is done."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from codeq_cluster.broker.engine.batch import NO_CALLER
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.errors import MethodUnknown
from codeq_cluster.routing.shard_calls import ShardCalls


class Replica:
    """A leader's replica that records the calls it gets."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def begin(self, operations: list[Operation], place: object) -> None:
        """Record it."""
        self.asked += operations

    async def operate(self, operations: list[Operation]) -> list[Outcome]:
        """Record it."""
        self.asked += operations
        return []

    async def answer(self, question: object) -> object:
        """Record it."""
        self.asked.append(question)
        return None


def served(replica: Any) -> ShardCalls:
    return ShardCalls([replica])


HEARTBEAT = ["heartbeat", "id", "tenant", "worker", 1000, 7]


@pytest.mark.parametrize(
    ("method", "body"),
    [
        ("of-a-later-release", [0]),
        ("operate", [0, [HEARTBEAT, ["of-a-later-release", 1]]]),
        ("ask", [0, ["of-a-later-release", 1]]),
        ("read", {"trace": ["", ""], "call": [0, "no list"]}),
    ],
    ids=["method", "operation", "question", "form"],
)
async def test_a_later_releases_operation_is_refused_as_unknown(method: str, body: object) -> None:
    """The rest of its batch is refused with it; the caller learns at once that nothing was done."""
    replica = Replica()

    with pytest.raises(MethodUnknown, match="this release"):
        await served(replica).serve("n2", method, body, 1.0)

    assert [] == replica.asked


async def test_a_later_releases_appended_fields_may_be_ignored() -> None:
    """The operation keeps its meaning, so only optional fields may be appended."""
    replica = Replica()

    await served(replica).serve("n2", "operate", [0, [[*HEARTBEAT, "appended"]]], 1.0)

    assert 1 == len(replica.asked)


@pytest.mark.parametrize("key", ["", "k"])
async def test_a_new_task_of_another_shard_is_refused(key: str) -> None:
    """Nobody would find it there: another node has placed it by other rules."""
    replicas: Any = [Replica(), Replica()]
    home = shard_of("acme/k", 2) if key else 1
    task_id = with_shard("0" * 32, shards=2, wanted=home)
    new = Create(id=task_id, tenant="acme", command="c", payload="{}", idempotency_key=key)
    calls = ShardCalls(replicas)

    with pytest.raises(AssertionError, match="foreign shard"):
        calls.serve_operate(msgspec.msgpack.encode((1 - home, [new])), NO_CALLER)
    with pytest.raises(AssertionError, match="foreign shard"):
        await calls.serve("n2", "operate", msgspec.to_builtins((1 - home, [new])), 1.0)

    assert [] == replicas[1 - home].asked

    calls.serve_operate(msgspec.msgpack.encode((home, [new])), NO_CALLER)

    assert [new] == replicas[home].asked
