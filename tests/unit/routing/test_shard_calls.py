"""Shard calls between releases: an unknown method is refused before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.errors import MethodUnknown
from codeq_cluster.routing.shard_calls import ShardCalls


class Replica:
    """A leader's replica that records the calls it gets."""

    def __init__(self) -> None:
        self.asked: list[object] = []

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
