"""Edge rows: the simulator notices a task that waits and will be told nothing."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.dependencies import Dependencies, Dependency, Edge, Ended, Walk, edge_id
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, State, Task
from tests.simulator.graphs import EdgeFault, EdgeRows

PARENT, DEPENDENT = f"{1:032x}", f"{2:032x}"
TASK = Task(
    id=DEPENDENT,
    tenant="",
    command="node",
    state=State.HELD,
    seq=1,
    created_ms=1,
    updated_ms=1,
    priority=0,
    max_attempts=1,
    more=More(waits=True, depends=True),
)
ROW = Dependencies(tenant="", id=DEPENDENT, of=(Dependency(parent=PARENT, name="a"),))
EDGE = Edge(tenant="", id=edge_id(PARENT, DEPENDENT))
WALK = Walk(tenant="", id=DEPENDENT, ended=Ended(), expires_ms=1)


def _rows(row: Dependencies, *others: Edge | Walk) -> dict[bytes, bytes | None]:
    kinds = {Edge: ItemKind.EDGE, Walk: ItemKind.WALK}
    items = [(ItemKind.DEPENDENCIES, row), *((kinds[type(each)], each) for each in others)]
    return {
        keyspace.task(DEPENDENT): records.encode(TASK),
        **{keyspace.item(kind, "", item.id): records.encode(item) for kind, item in items},
    }


@pytest.mark.parametrize(
    ("rows", "fault"),
    [
        (_rows(ROW), "does not ask"),
        (_rows(replace(ROW, of=()), EDGE), "waits for nothing"),
    ],
)
def test_a_task_that_will_be_told_nothing_is_noticed(
    rows: dict[bytes, bytes | None], fault: str
) -> None:
    """It has no edge, and will not ask; or everything that it waits for has ended."""
    with pytest.raises(EdgeFault, match=fault):
        EdgeRows(0, 1).written(rows)


def test_a_task_may_wait_and_be_waited_for() -> None:
    """Its own walk has the same id as the row of what it waits for, and does not replace it."""
    known = EdgeRows(0, 1)
    known.written(_rows(ROW, EDGE))
    known.written(_rows(ROW, EDGE, WALK))
    walked: dict[bytes, bytes | None] = {keyspace.item(ItemKind.WALK, "", DEPENDENT): None}
    known.written(walked | {keyspace.task(DEPENDENT): records.encode(TASK)})

    with pytest.raises(EdgeFault, match="does not ask"):
        known.written({keyspace.item(ItemKind.EDGE, "", EDGE.id): None, **_rows(ROW)})
