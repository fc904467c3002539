"""Answers over the link: their types, and what the answer to a repeated send may say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codeq_cluster.broker.questions import Answer, Explain, Explained, Settled
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection
from codeq_cluster.errors import LinkLost, OutcomeUnknown
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.router import Router


class Follower:
    """A replica on this node; another node leads."""

    leader = "n2"
    shard = 0

    def on_leader(self, call: Callable[[], None]) -> None:
        """Nothing changes."""


class Peer:
    """A link to a leader that breaks a few times, and then gives every call the same answer."""

    def __init__(self, answer: Answer | list[Outcome], *, breaks: int = 0) -> None:
        self._answer = msgspec.msgpack.encode(answer)
        self._breaks = breaks

    def ask(
        self, peer: str, method: str, body: bytes, *, timeout_s: float, topic: int | None = None
    ) -> asyncio.Future[bytes]:
        """Break or answer at once."""
        answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        if self._breaks:
            self._breaks -= 1
            answered.set_exception(LinkLost("n2"))
        else:
            answered.set_result(self._answer)
        return answered

    def give_up(self, peer: str, topic: int) -> None:
        """No call waits."""


def router(peer: Peer) -> Router:
    """Return the router of a follower."""
    engines: list[Any] = [Follower()]
    return Router(
        node_id="n1",
        engines=engines,
        leaders=Leaders(engines),
        calls=peer,
        on_answered=lambda *_: None,
    )


async def asked(answer: Answer) -> Explained:
    """Return the answer to a caller that asks for an explanation."""
    deadline = asyncio.get_running_loop().time() + 60
    return await router(Peer(answer)).ask(0, Explain(tenant="acme", id="t"), deadline=deadline)


async def reported(refusal: Rejection, *, breaks: int) -> list[Outcome]:
    """Return the answer to a heartbeat that adds a line to the log of its task."""
    report = Report(id="t", tenant="acme", worker="ann", extend_ms=9, token=1, log=("line",))
    deadline = asyncio.get_running_loop().time() + 60
    peer = Peer([Rejected(refusal)], breaks=breaks)
    return await router(peer).operate(0, [report], deadline=deadline)


async def test_a_question_brings_the_type_of_its_answer() -> None:
    """No caller has to check the type of its answer."""
    assert Explained(None) == await asked(Explained(None))


async def test_the_answer_to_another_question_is_not_passed_on() -> None:
    """A leader that mixes up its answers has a bug, and no caller may use such an answer."""
    with pytest.raises(AssertionError, match="answered with something else"):
        await asked(Settled())


@pytest.mark.parametrize(
    "refusal",
    [Rejection.LEASE_LOST, Rejection.NOT_IN_PROGRESS, Rejection.NOT_OWNER, Rejection.NOT_FOUND],
)
async def test_who_holds_a_task_no_more_may_have_held_it_at_the_first_send(
    refusal: Rejection,
) -> None:
    """The line may be in the log, so nobody says that nothing was done."""
    with pytest.raises(OutcomeUnknown, match=refusal):
        await reported(refusal, breaks=1)

    assert [Rejected(refusal)] == await reported(refusal, breaks=0)


async def test_a_refusal_that_the_first_send_would_have_met_too_is_passed_on() -> None:
    """A bound that is met twice was met the first time."""
    refusal = Rejection.TOO_MANY
    assert [Rejected(refusal)] == await reported(refusal, breaks=1)
