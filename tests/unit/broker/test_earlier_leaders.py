"""Leaders of an earlier release: unknown methods are refused at once, and nothing was done."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.api.http.errors import from_failure
from codeq_cluster.errors import LinkLost, MethodUnknown, OutcomeUnknown
from codeq_cluster.routing.router import Router
from codeq_cluster.routing.shard_calls import ShardCalls

from .conftest import Shard, create, shards_of

pytestmark = pytest.mark.asyncio


class Earlier:
    """A link to a leader that knows no method; some calls break before its answer arrives."""

    def __init__(self, *, breaks: int = 0) -> None:
        self.breaks = breaks
        self.asked = 0

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Refuse, or break."""
        del peer, body, timeout_s, topic
        self.asked += 1
        if self.asked <= self.breaks:
            raise LinkLost("cut")
        raise MethodUnknown(f"this release knows no method {method}")

    def give_up(self, peer: str, topic: int) -> None:
        """Do nothing, because no call waits."""


def forwarder(shard: Shard, calls: Earlier) -> Router:
    """Return the shards of a node that has another leader."""
    shard.log.depose("n2")
    return shards_of(shard, calls=calls)


async def test_a_method_unknown_to_the_leader_is_not_retried(shard: Shard) -> None:
    """A retry would not help, and the caller learns that nothing was done."""
    calls = Earlier()
    with pytest.raises(MethodUnknown) as refused:
        await forwarder(shard, calls).operate(
            0, [create("t")], deadline=asyncio.get_running_loop().time() + 600
        )
    told = from_failure(refused.value)

    assert 1 == calls.asked
    assert (503, "upgrade-under-way", True) == (told.status, told.code, told.retryable)
    assert "not-applied" == told.headers["X-Outcome"]


async def test_an_operation_with_a_lost_attempt_is_not_reported_as_not_done(shard: Shard) -> None:
    """An earlier attempt was lost, and may have reached a leader that knew the method."""
    calls = Earlier(breaks=1)
    with pytest.raises(OutcomeUnknown):
        await forwarder(shard, calls).operate(
            0, [create("t")], deadline=asyncio.get_running_loop().time() + 2
        )

    assert calls.asked > 1


async def test_a_method_of_a_later_release_is_refused_by_name(shard: Shard) -> None:
    """It is refused before its body is read."""
    for body in (None, {"no": "trace"}, [0, []]):
        with pytest.raises(MethodUnknown, match="knows no method consult"):
            await ShardCalls([shard.engine]).serve("n2", "consult", body, 1.0)
