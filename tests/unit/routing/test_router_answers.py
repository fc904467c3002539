"""Answers over the link: each has the type that its question names."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codeq_cluster.broker.questions import Answer, Explain, Explained, Settled
from codeq_cluster.routing.router import Router


class Follower:
    """A replica on this node; another node leads."""

    leader = "n2"

    def on_leader(self, call: Callable[[], None]) -> None:
        """Nothing changes."""


class Peer:
    """A link to a leader that gives every question the same answer."""

    def __init__(self, answer: Answer) -> None:
        self._answer = msgspec.msgpack.encode(answer)

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Answer at once."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        answered.set_result(self._answer)
        return answered

    def give_up(self, peer: str, topic: int) -> None:
        """No call waits."""


async def asked(answer: Answer) -> Explained:
    """Return the answer to a caller that asks for an explanation."""
    engines: list[Any] = [Follower()]
    router = Router(
        node_id="n1", engines=engines, calls=Peer(answer), on_answered=lambda method, seconds: None
    )
    deadline = asyncio.get_running_loop().time() + 60
    return await router.ask(0, Explain(tenant="acme", id="t"), deadline=deadline)


async def test_a_question_brings_the_type_of_its_answer() -> None:
    """No caller has to check the type of its answer."""
    assert Explained(None) == await asked(Explained(None))


async def test_the_answer_to_another_question_is_not_passed_on() -> None:
    """A leader that mixes up its answers has a bug, and no caller may use such an answer."""
    with pytest.raises(AssertionError, match="answered with something else"):
        await asked(Settled())
