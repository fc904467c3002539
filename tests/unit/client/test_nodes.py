"""Nodes: the order in which they are asked."""

from __future__ import annotations

from codeq_cluster.client.nodes import NODES_MAX, Nodes


class _Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_the_node_that_answered_last_is_asked_first() -> None:
    """The others follow in their order."""
    nodes = Nodes(["http://a/", "http://b", "http://c"])
    nodes.answered("http://b")

    assert ["http://b", "http://c", "http://a"] == nodes.order()


def test_a_node_that_failed_is_asked_last_until_it_has_rested() -> None:
    """Its rest doubles with every failure and ends with the first answer."""
    clock = _Clock()
    nodes = Nodes(["http://a", "http://b"], monotonic=clock)
    nodes.failed("http://a")
    first = nodes.order()
    clock.now_s += 0.6
    rested = nodes.order()
    nodes.failed("http://a")
    clock.now_s += 0.6
    again = nodes.order()
    for _ in range(50):
        nodes.failed("http://a")
    clock.now_s += 30.1

    assert first == again == ["http://b", "http://a"]
    assert rested == nodes.order() == ["http://a", "http://b"]
    nodes.failed("http://a")
    nodes.answered("http://a")
    assert ["http://a", "http://b"] == nodes.order()


def test_when_all_have_failed_the_one_that_rests_least_is_asked_first() -> None:
    """Some node must be asked."""
    nodes = Nodes(["http://a", "http://b"], monotonic=_Clock())
    nodes.failed("http://a")
    nodes.failed("http://a")
    nodes.failed("http://b")

    assert ["http://b", "http://a"] == nodes.order()


def test_learned_nodes_come_after_the_named_ones() -> None:
    """Nodes learned later replace those learned before."""
    nodes = Nodes(["http://a"])
    nodes.learn(["http://b/", "http://a", "ftp://c", "http://d"])
    first = nodes.all
    nodes.learn(["http://e"])

    assert ("http://a", "http://b", "http://d") == first
    assert ("http://a", "http://e") == nodes.all


def test_a_token_that_was_sent_over_tls_alone_is_never_sent_in_the_clear() -> None:
    """The nodes' own URLs do not matter."""
    nodes = Nodes(["https://a"])
    nodes.learn(["http://b", "https://c"])

    assert ("https://a", "https://c") == nodes.all


def test_a_node_cannot_make_a_client_try_without_end() -> None:
    """The number of learned nodes is bounded."""
    nodes = Nodes(["http://a"])
    nodes.learn(f"http://n{n}" for n in range(10_000))

    assert NODES_MAX + 1 == len(nodes.all)
