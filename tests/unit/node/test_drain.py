"""Drain: the nodes that a leaving node asks to lead in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from codeq_cluster.node import drain
from codeq_cluster.node.drain import Drain
from codeq_cluster.settings import RaftSettings
from tests.simulator.cluster import SimCluster
from tests.simulator.scenes import propose, settled

# A log so short that a follower behind it needs a snapshot.
SHORT_LOG = RaftSettings(keep_entries=20, log_entries_max=512, entries_in_flight_max=64)


class Leaders:
    """Reports no change of leaders, so that no attempt ends before its simulated pause."""

    leader = None

    def on_leader(self, call: Callable[[], None]) -> None:
        """Forget it."""


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain, "TRY_S", 0.0)


async def leave(cluster: SimCluster) -> float:
    """Let the leading node A leave; return the seconds without an accepted entry."""
    group = cluster.nodes["A"].group
    leaving = Drain(node_id="A", groups=[group], replicas=[Leaders()])
    before = cluster.clock.now
    gone = asyncio.ensure_future(leaving.transfer_all())
    while not gone.done():
        await asyncio.sleep(0)
        while group._leader.transfer.peer is not None:
            cluster.run(0.01)
    took_s = cluster.clock.now - before
    cluster.run(0.1)
    return took_s


async def test_the_heir_is_asked_when_it_can_lead() -> None:
    """Shards get their next leaders in turn: the first shard gets the next voter."""
    cluster = settled()

    took_s = await leave(cluster)

    assert took_s < 0.1
    assert "B" == cluster.leader()


async def test_an_heir_that_fetches_a_snapshot_is_passed_over() -> None:
    """That heir is connected but could not lead for long, and writes must not wait for it."""
    cluster = settled(settings=SHORT_LOG)
    cluster.cut("B", "AC")
    for batch in range(8):
        propose(cluster, 100, prefix=f"{batch}/")
    cluster.snapshot_s = lambda: 1000.0
    cluster.heal()
    cluster.run(1.0)
    assert cluster.nodes["A"].group.acknowledges("B") is False

    took_s = await leave(cluster)

    assert took_s < 0.1
    assert "C" == cluster.leader()


async def test_an_heir_that_has_gone_silent_is_passed_over() -> None:
    """A peer whose replica is out is connected but does not answer."""
    cluster = settled()
    cluster.nodes["B"].group.pause(lambda _error: None)
    cluster.run(2.0)
    assert "A" == cluster.leader()

    took_s = await leave(cluster)

    assert took_s < 0.1
    assert "C" == cluster.leader()


async def test_who_was_asked_in_vain_is_not_asked_again() -> None:
    """The peer had answered moments before; the second try asks the peer with most of the log."""
    cluster = settled()
    cluster.nodes["B"].group.pause(lambda _error: None)
    cluster.propose(b"what B lacks")
    cluster.run(0.1)

    took_s = await leave(cluster)

    assert 0.5 <= took_s < 0.6
    assert "C" == cluster.leader()


async def test_peers_out_of_reach_for_a_moment_are_asked_until_one_leads() -> None:
    """A pause of the network or of a machine takes longer than a try or two."""
    cluster = settled()
    cluster.propose(b"what both lack")
    cluster.cut("A", "BC")
    cluster.clock.at(cluster.clock.now + 1.2, cluster.heal)

    took_s = await leave(cluster)

    assert 1.2 < took_s < 1.3
    assert cluster.leader() in {"B", "C"}


async def test_a_node_whose_peers_never_take_over_asks_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time stands still in this cluster, so every try is in vain."""
    monkeypatch.setattr(drain, "TRANSFER_S", 0.05)
    cluster = settled()
    leaving = Drain(node_id="A", groups=[cluster.nodes["A"].group], replicas=[Leaders()])

    async with asyncio.timeout(60):
        await leaving.transfer_all()

    assert "A" == cluster.leader()
