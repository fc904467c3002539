"""Large records: one look at a list reads few bytes, whether or not its filter drops the rows."""

from __future__ import annotations

import pytest

from codeq_cluster.broker.engine import answers
from codeq_cluster.broker.engine.answers import BYTES_MAX, RECORDS_AT_ONCE
from codeq_cluster.broker.questions import (
    END,
    Browse,
    BrowseDelayed,
    BrowseIds,
    BrowseTags,
    CountSelected,
    ListItems,
)
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.bulk import ActionKind, BulkAction
from codeq_cluster.core.new_task import Create, template_of
from codeq_cluster.core.schedules import Plan, Schedule, Timing
from codeq_cluster.core.selecting import Selection, TaskFilter
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, State, Task
from tests.fakes.memory_store import MemoryState

_TEXT = "x" * 64 * 2**10  # The largest error of a task.
_TAG = ("run", "7")
_LOOKS = 8
_ROWS = _LOOKS * BYTES_MAX // len(_TEXT)
_NOBODY = TaskFilter(worker="nobody")
# A look ends after the record that reaches the bound; others may have been read with it.
_READ_MAX = BYTES_MAX + RECORDS_AT_ONCE * (len(_TEXT) + 1024)


class _WeighingState(MemoryState):
    """Adds up the bytes of what is read of it."""

    bytes_read = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        value = super().get(key)
        self.bytes_read += len(value or b"")
        return value

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first rows of a range."""
        rows = super().scan(start, end, limit)
        self.bytes_read += sum(len(value) for _, value in rows)
        return rows


def _task(number: int) -> Task:
    return Task(
        id=f"t{number:05}",
        tenant="acme",
        command="render",
        priority=0,
        max_attempts=5,
        created_ms=number + 1,
        updated_ms=number + 1,
        state=State.DELAYED,
        seq=number + 1,
        due_ms=10**12 + number,
        error=_TEXT,
        more=More(tags=(_TAG,)),
    )


def _schedule(number: int) -> Schedule:
    plan = Plan(
        timing=Timing(every="60s"),
        task=template_of(Create(id="x", tenant="acme", command="render", payload=f'"{_TEXT}"')),
        owner="a-set",
    )
    return Schedule(tenant="acme", id=f"s{number:05}", plan=plan, generation=1)


@pytest.fixture(scope="module")
def state() -> _WeighingState:
    """Return tasks and schedules, each with the bytes of many looks."""
    rows: dict[bytes, bytes | None] = {}
    for number in range(_ROWS):
        task, schedule = _task(number), _schedule(number)
        rows[keyspace.task(task.id)] = records.encode(task)
        rows |= dict.fromkeys(keyspace.index_keys(task), b"")
        rows[keyspace.item(ItemKind.SCHEDULE, "acme", schedule.id)] = records.encode(schedule)
    state = _WeighingState()
    state.commit(rows, index=2, digest=bytes(16))
    return state


def _unreadable() -> None:
    raise AssertionError("a record cannot be read")


async def _looked(state: MemoryState, after: bytes, name: str) -> tuple[int, bytes]:
    """Look once at a list; return how many rows it showed or counted, and where to go on."""
    places = tuple(QueuePlace)
    match name:
        case "queues":
            browse = Browse(
                tenant="acme", queue="", places=places, after=after, count=50, only=_NOBODY
            )
            page = answers.browse(state, ["render"], browse, _unreadable)
        case "delayed":
            delayed = BrowseDelayed(tenant="acme", queue="", after=after, count=50, only=_NOBODY)
            page = await answers.browse_delayed(state, ["render"], delayed, _unreadable)
        case "tags":
            tagged = BrowseTags(
                tenant="acme",
                tags=(_TAG,),
                queue="",
                places=places,
                after=after,
                count=50,
                only=_NOBODY,
            )
            page = answers.browse_tags(state, tagged, _unreadable)
        case "count":
            counted = answers.count_selected(
                state,
                CountSelected(
                    tenant="acme",
                    select=Selection(tags=(_TAG,)),
                    action=BulkAction(kind=ActionKind.CANCEL),
                    after=after,
                ),
                _unreadable,
            )
            return counted.selected, counted.edge
        case _:
            listed = ListItems(
                tenant="acme",
                kind=ItemKind.SCHEDULE,
                after=after,
                count=500,
                owner="" if name == "schedules" else "other-set",
            )
            items = answers.list_items(state, listed, _unreadable)
            return len(items.rows), items.edge
    return len(page.rows), page.edge


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("queues", 0),
        ("delayed", 0),
        ("tags", 0),
        ("count", _ROWS),
        ("schedules", _ROWS),
        ("schedules of a set", 0),
    ],
)
async def test_a_look_reads_few_bytes_and_the_next_goes_on(
    state: _WeighingState, name: str, expected: int
) -> None:
    """Each record is read once in the end, although a filter drops it."""
    shown = looks = 0
    after = b""
    while after != END:
        before = state.bytes_read
        rows, after = await _looked(state, after, name)
        shown, looks = shown + rows, looks + 1
        assert state.bytes_read - before <= _READ_MAX

    assert expected == shown
    assert _LOOKS <= looks <= _LOOKS + 1


def test_a_prefix_of_ids_reads_few_bytes(state: _WeighingState) -> None:
    """Beyond them the list says that there may be more."""
    before = state.bytes_read
    page = answers.browse_ids(state, BrowseIds(tenant="other", prefix="t", count=9), _unreadable)

    assert 0 == len(page.rows)
    assert b"t" < page.edge < END
    assert state.bytes_read - before <= _READ_MAX
