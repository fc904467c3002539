"""Notes on a task whose turn it is: it stays the first of its key, whatever is said of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.dependencies import CreateDependent, Need, Node
from codeq_cluster.core.durable import SendSignal
from codeq_cluster.core.lane import FlowRule, OnRetry, Order, PerKey, SetFlow
from codeq_cluster.core.new_task import CreateKeyed, CreateUnique
from codeq_cluster.core.operations import Cancel, Operation
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import State, Until
from codeq_cluster.core.unique import UniqueTerms

from .shard import Shard, create, submit

SECOND_MS = 1000

NOTES: dict[str, Operation] = {
    "tag": ChangeTags(id="b", tenant="acme", put=(("user", "42"),)),
    "signal": SendSignal(request="s", id="b", tenant="acme", name="go", payload="1"),
    "dependent": CreateDependent(Node(create("d"), (Need(parent="b", name="b"),))),
}


@pytest.mark.parametrize("note", NOTES)
@pytest.mark.parametrize("on_retry", OnRetry)
def test_a_note_does_not_cost_a_task_its_turn(note: str, on_retry: OnRetry) -> None:
    """Not even where a task that is given back lets others of its key pass."""
    shard = Shard()
    shard.ask(SetFlow(FlowRule("acme", "render", 1, PerKey(on_retry=on_retry), 0)))
    for name in "abc":
        shard.ask(CreateKeyed(replace(create(name), key="k")))
    shard.ask(Cancel(request="x", id="a", tenant="acme"))  # Now it is the turn of b.

    shard.ask(NOTES[note])

    assert [State.READY, State.HELD] == [shard.task(name).state for name in "bc"]


@pytest.mark.parametrize("note", NOTES)
def test_a_note_does_not_cost_a_task_its_token(note: str) -> None:
    """A task that waits for its key's token goes when it comes."""
    shard = Shard()
    shard.ask(SetFlow(FlowRule("acme", "render", 1, PerKey(rate=Rate(1)), 0)))
    shard.wait(0)
    for name in "ab":
        shard.ask(CreateKeyed(replace(create(name), key="k")))
    assert ["a"] == shard.claim()
    shard.ask(submit(id="a", token=1))

    shard.ask(NOTES[note])
    shard.wait(SECOND_MS)

    assert ["b"] == shard.claim(request="claim-2")


def test_a_task_that_is_noted_as_its_place_comes_free_goes_before_those_behind_it() -> None:
    """The throttle of the one ends in the entry in which the other one times out."""
    shard = Shard()
    shard.ask(SetFlow(FlowRule("acme", "render", 1, PerKey(order=Order.FIFO), 0)))
    throttled = UniqueTerms(key="u", until=Until.THROTTLE, throttle_ms=SECOND_MS)
    shard.ask(CreateKeyed(create("a", key="k", ttl_ms=SECOND_MS)))
    shard.ask(CreateUnique(create("b", key="k", unique=throttled)))
    shard.ask(CreateKeyed(create("c", key="k")))
    shard.wait(SECOND_MS)

    assert [State.DEAD, State.READY, State.HELD] == [shard.task(name).state for name in "abc"]
