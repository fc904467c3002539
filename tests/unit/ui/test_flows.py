"""Flows: the counts of each queue, in no more rows than are shown."""

from __future__ import annotations

from codeq_cluster.ui.views.flows import QUEUES_MAX, FlowRow, QueueFlow, flows_view


def test_the_busiest_queues_are_shown_and_the_others_summed_up() -> None:
    """The number of rows is bounded, however many queues there are."""
    few = {f"q{number:03}": [1, 0, 0, 1] for number in range(QUEUES_MAX)}
    told = flows_view(7, {"idler": [1, 0, 0, 0], **few, "busy": [9, 8, 7, 6]})

    assert QueueFlow(command="busy", created=9, started=8, completed=7, failed=6) == told.queues[0]
    assert sorted(few)[: QUEUES_MAX - 1] == [row.command for row in told.queues[1:]]
    assert 2 == told.more
    assert FlowRow(created=2, started=0, completed=0, failed=1) == told.others
    assert (7, 5) == (told.last, told.step)


def test_no_flow_is_no_row() -> None:
    """A queue without activity is in neither the rows nor the sum."""
    told = flows_view(7, {})

    assert ([], 0) == (told.queues, told.more)
    assert FlowRow(created=0, started=0, completed=0, failed=0) == told.others
