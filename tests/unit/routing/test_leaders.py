"""Leaders: the peer to ask about a shard whose leader the node does not hear."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from codeq_cluster.errors import LinkLost, NoLeader, NotLeader, OutcomeUnknown, PeerUnreachable
from codeq_cluster.routing.leaders import LeaderHints, Leaders


def test_a_hinted_peer_is_asked_until_it_is_gone() -> None:
    """Each shard has its own hint; afterwards any connected peer is asked."""
    peers = ["n3", "n1"]
    hints = LeaderHints(lambda: peers)

    assert "n1" == hints.of(0)
    hints.astray(0, "n1", NotLeader("n3"))
    assert ("n3", "n1") == (hints.of(0), hints.of(1))
    peers.remove("n3")
    assert "n1" == hints.of(0)
    peers.clear()
    assert hints.of(0) is None


def test_without_a_word_the_next_is_asked() -> None:
    """A hint at a peer that is not connected, or that was just asked, is ignored too."""
    hints = LeaderHints(lambda: ["n1", "n3", "n4"])

    asked = []
    for error in (NotLeader(None), LinkLost("gone"), NotLeader("n2"), NotLeader("n1")):
        asked.append(hints.of(0))
        hints.astray(0, asked[-1], error)

    assert ["n1", "n3", "n4", "n1"] == asked
    assert "n3" == hints.of(0)


def test_without_a_peer_nothing_is_learned() -> None:
    """There was no peer to ask."""
    hints = LeaderHints(list)

    hints.astray(0, None, NotLeader("n3"))
    hints.astray(0, "n1", NotLeader("n1"))

    assert hints.of(0) is None


class Replica:
    """A shard's replica that is out of service: it follows no leader."""

    leader: str | None = None

    def on_leader(self, call: Callable[[], None]) -> None:
        """Keep no callback: the leader never changes."""


@dataclass
class Peers:
    """Two peers, the second of which leads.

    Attributes:
        said: Errors that they answer with first.
    """

    said: list[Exception] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def ask(self, peer: str, left_s: float) -> str:
        """Answer as the node that was asked."""
        assert left_s > 0
        self.asked.append(peer)
        if self.said:
            raise self.said.pop(0)
        if peer != "n3":
            raise NotLeader("n3")
        return "done"


def isolated() -> Leaders:
    """Return the leaders as a node knows them whose only replica is out."""
    replicas: list[Any] = [Replica()]
    leaders = Leaders(replicas)
    leaders.ask_peers(while_out=lambda _shard: True, peers=lambda: ["n2", "n3"])
    return leaders


async def test_a_node_whose_replica_is_out_asks_its_peers_for_the_leader() -> None:
    """It learns of no leader itself; each says who leads, or the next one is asked."""
    for said, asked in (([], ["n2", "n3"]), ([PeerUnreachable("n2")], ["n2", "n3"])):
        peers = Peers(list(said))

        assert "done" == await isolated().ask(0, peers.ask, timeout_s=60)
        assert asked == peers.asked


async def test_what_may_have_been_done_is_not_asked_again() -> None:
    """A change of the membership has no name of its own that a second leader would know."""
    peers = Peers([LinkLost("reset")])

    with pytest.raises(OutcomeUnknown, match="n2 was asked about shard 0"):
        await isolated().ask(0, peers.ask, timeout_s=60)

    assert ["n2"] == peers.asked


async def test_without_a_leader_the_caller_hears_so_in_time() -> None:
    """Neither its own replica nor anybody else knows one."""
    replicas: list[Any] = [Replica()]

    with pytest.raises(NoLeader, match="no leader for shard 0"):
        await Leaders(replicas).ask(0, Peers().ask, timeout_s=0.1)
