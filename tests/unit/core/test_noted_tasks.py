"""Notes on a task whose turn it is: it stays the first of its key, whatever is said of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.core.dependencies import CreateDependent, Need, Node
from codeq_cluster.core.durable import SendSignal
from codeq_cluster.core.lane import FlowRule, OnRetry, PerKey, SetFlow
from codeq_cluster.core.new_task import CreateKeyed
from codeq_cluster.core.operations import Cancel, Operation
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import State

from .shard import Shard, create

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
