"""Forwarding from a node whose replica is out: it hears of no leader, so callers must not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.errors import LinkLost, NoLeader
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.router import Router
from tests.unit.no_peers import NoPeers

FAR_S = 3600.0


class Replica:
    """A shard's replica on this node, which follows no leader."""

    leader: str | None = None
    leads = False

    def on_leader(self, call: Callable[[], None]) -> None:
        """Nothing changes."""

    async def operate(self, operations: object) -> list[Outcome]:
        """Never called."""
        raise AssertionError(operations)


def forwarder(is_out: Callable[[int], bool]) -> Router:
    replicas: list[Any] = [Replica(), Replica()]
    leaders = Leaders(replicas)
    leaders.ask_peers(while_out=is_out, peers=tuple)
    return Router(
        node_id="n1",
        engines=replicas,
        leaders=leaders,
        calls=NoPeers(),
        on_answered=lambda method, seconds: None,
    )


async def test_nobody_waits_for_a_replica_that_is_out() -> None:
    """The caller learns at once that nothing was done, and may ask another node."""
    operations: list[Operation] = []
    deadline = asyncio.get_running_loop().time() + FAR_S

    async with asyncio.timeout(60):
        with pytest.raises(NoLeader):
            await forwarder(lambda shard: shard == 1).operate(1, operations, deadline=deadline)


async def test_without_an_outage_a_leader_is_waited_for() -> None:
    """An election takes only moments."""
    operations: list[Operation] = []
    deadline = asyncio.get_running_loop().time() + FAR_S

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await forwarder(lambda shard: shard == 1).operate(0, operations, deadline=deadline)


class Following(Replica):
    """A replica that follows another node."""

    leader = "n2"


class Silent(NoPeers):
    """A link on which no call is answered in time."""

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Fail at once."""
        lost: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        lost.set_exception(LinkLost("timeout"))
        return lost


@pytest.mark.parametrize(
    ("replica", "what"), [(Following(), "no answer from the leader"), (Replica(), "is known")]
)
async def test_a_leader_that_does_not_answer_is_told_from_none(replica: Any, what: str) -> None:
    """A read that takes too long is not repeated elsewhere, so its caller should ask for less."""
    router = Router(
        node_id="n1",
        engines=[replica],
        leaders=Leaders([replica]),
        calls=Silent(),
        on_answered=lambda method, seconds: None,
    )

    with pytest.raises(NoLeader, match=f"shard 0: .*{what}"):
        await router.heads("acme", (), deadline=asyncio.get_running_loop().time() + 0.1)
