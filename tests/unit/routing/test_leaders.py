"""Leaders: the peer to ask about a shard whose leader the node does not hear."""

from __future__ import annotations

from codeq_cluster.errors import LinkLost, NotLeader
from codeq_cluster.routing.leaders import LeaderHints


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
