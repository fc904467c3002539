"""Ask all: facts that each node only knows of itself are gathered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec import Struct

from codeq_cluster.errors import MethodUnknown
from codeq_cluster.routing import ask_all
from codeq_cluster.routing.ask_all import AskAll, Fact
from tests.fakes.linked_nodes import Link


class Load(Struct, array_like=True):
    """A node's fact in this test."""

    node: str
    asked: str


LOAD = Fact("load", str, Load)


def answers(node: str) -> Callable[[str], Awaitable[Load]]:
    """Return a node's answers."""

    async def answer(question: str) -> Load:
        return Load(node, question)

    return answer


def cluster(*nodes: str) -> Link:
    """Return connected nodes that know their load."""
    link = Link()
    for node in nodes:
        link.nodes[node] = AskAll(node_id=node, peers=lambda: nodes, calls=link)
        link.nodes[node].register(LOAD, answers(node))
    return link


async def test_every_node_is_asked_and_this_one_comes_first() -> None:
    """The asking node knows its own answer without a call."""
    link = cluster("n1", "n2", "n3")
    found = await link.nodes["n2"].ask(LOAD, "now")

    assert {n: Load(n, "now") for n in ("n1", "n2", "n3")} == found
    assert "n2" == next(iter(found))


async def test_a_node_that_is_away_is_left_out() -> None:
    """The others are shown."""
    link = cluster("n1", "n2", "n3")
    link.away.add("n3")

    assert {"n1", "n2"} == (await link.nodes["n1"].ask(LOAD, "now")).keys()


async def test_a_node_that_is_silent_is_waited_for_a_moment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The view is refreshed soon, so one answer may be missing."""
    monkeypatch.setattr(ask_all, "WAIT_S", 0.01)
    link = cluster("n1", "n2", "n3")
    link.silent.add("n2")

    assert {"n1", "n3"} == (await link.nodes["n1"].ask(LOAD, "now")).keys()


async def test_a_node_of_another_release_is_left_out() -> None:
    """Such a node does not know the question, or answers in another form."""
    link = cluster("n1", "n2", "n3")

    async def another(question: str) -> list[str]:
        return [question]

    link.nodes["n2"] = AskAll(node_id="n2", peers=list, calls=link)
    link.nodes["n3"].register(Fact("load", str, list[str]), another)

    assert {"n1"} == (await link.nodes["n1"].ask(LOAD, "now")).keys()


@pytest.mark.parametrize(
    "body", [["unheard", 1], [], "load", ["load"], ["load", 1], {"load": 1}, None]
)
async def test_an_unknown_question_is_an_error(body: object) -> None:
    """The peer gets an error and nothing is done."""
    with pytest.raises(MethodUnknown):
        await cluster("n1").nodes["n1"].serve("n2", "gather", body, 1.0)


async def test_the_first_answer_that_is_enough_ends_the_wait() -> None:
    """Who is silent is not waited for."""
    link = cluster("n1", "n2", "n3", "n4")
    link.silent.add("n2")
    link.away.add("n3")
    said = await link.nodes["n1"].ask_until(LOAD, "now", lambda load: load.node == "n4")

    assert [None, Load("n4", "now")] == said


async def test_who_has_not_answered_is_told_from_who_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no answer is enough, each other node stands for itself."""
    monkeypatch.setattr(ask_all, "WAIT_S", 0.01)
    link = cluster("n1", "n2", "n3", "n4")
    link.silent.add("n2")
    link.away.add("n3")
    said = await link.nodes["n1"].ask_until(LOAD, "now", lambda load: False)

    assert [None, None, Load("n4", "now")] == sorted(said, key=lambda each: each is not None)
