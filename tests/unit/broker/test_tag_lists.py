"""Lists by tag: the work of one look is bounded, whatever the other tags leave of it."""

from __future__ import annotations

from itertools import permutations

import pytest

from codeq_cluster.broker.engine.answers import LEAPS_MAX, browse_tags, count_selected
from codeq_cluster.broker.questions import END, BrowseTags, CountSelected
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.bulk import ActionKind, BulkAction
from codeq_cluster.core.selecting import Selection, TaskFilter
from codeq_cluster.core.task import More, State, Task
from tests.fakes.memory_store import MemoryState

COMMON, RARE = ("run", "7"), ("user", "42")
EVEN, ODD = ("even", "yes"), ("odd", "yes")  # The first task has both.
TASKS = 2 * LEAPS_MAX + 100
NOW_MS = 1_700_000_000_000


class CountingState(MemoryState):
    """A state that counts what is read of it."""

    reads = scans = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        self.reads += 1
        return super().get(key)

    def scan(self, start: bytes, end: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Return the first rows of a range."""
        self.scans += 1
        return super().scan(start, end, limit)


def filled() -> CountingState:
    """Return tasks that all have one tag; others have half of them, or few."""
    state = CountingState()
    rows: dict[bytes, bytes | None] = {}
    for number in range(TASKS):
        tags = {
            COMMON: True,
            RARE: number % LEAPS_MAX == 0,
            EVEN: number % 2 == 0,
            ODD: number % 2 == 1 or number == 0,
        }
        task = Task(
            id=f"t{number:05}",
            tenant="acme",
            command="render",
            priority=0,
            max_attempts=5,
            created_ms=NOW_MS + number,
            updated_ms=NOW_MS + number,
            state=State.READY,
            seq=number + 1,
            more=More(tags=tuple(sorted(tag for tag, has in tags.items() if has))),
        )
        rows[keyspace.task(task.id)] = records.encode(task)
        rows |= dict.fromkeys(keyspace.index_keys(task), b"")
    state.commit(rows, index=2, digest=bytes(16))
    return state


def asked(*tags: tuple[str, str], after: bytes = b"", only: TaskFilter | None = None) -> BrowseTags:
    """Return the question for a page."""
    return BrowseTags(
        tenant="acme",
        tags=tags,
        queue="",
        places=tuple(QueuePlace),
        after=after,
        count=50,
        only=only or TaskFilter(),
    )


def test_a_look_makes_so_many_leaps_and_no_more() -> None:
    """Its edge leads on, and the walk finds all of them in the end, once each."""
    state = filled()
    found: list[str] = []
    looks, after = 0, b""
    while after != END:
        before = state.scans
        page = browse_tags(state, asked(EVEN, ODD, after=after), lambda: None)
        found += [task.id for _, task in page.rows]
        looks, after = looks + 1, page.edge
        assert state.scans - before <= LEAPS_MAX + 2

    assert (["t00000"], 3, 1) == (found, looks, state.reads)


def test_a_look_of_a_count_reads_as_many() -> None:
    """What a bulk job would be about is counted in looks that hold a leader no longer."""
    state = filled()
    select, action = Selection(tags=(COMMON,)), BulkAction(kind=ActionKind.CANCEL)
    counted, after = [], b""
    while after != END:
        before = state.reads
        asked_for = CountSelected(tenant="acme", select=select, action=action, after=after)
        answer = count_selected(state, asked_for, lambda: None)
        counted.append(answer.selected)
        after = answer.edge
        assert state.reads - before <= LEAPS_MAX

    assert [LEAPS_MAX, LEAPS_MAX, 100] == counted


@pytest.mark.parametrize("tags", list(permutations((RARE, COMMON, EVEN))))
def test_the_rarest_tag_decides_what_is_read(tags: tuple[tuple[str, str], ...]) -> None:
    """Whichever is named first: its three tasks are found by few rows of the others."""
    state = filled()
    page = browse_tags(state, asked(*tags), lambda: None)

    assert (3, END) == (len(page.rows), page.edge)
    assert 3 == state.reads
    assert state.scans <= 3 * (3 + 1)


def test_times_of_creation_bound_the_walk_itself() -> None:
    """What is older or newer is not read."""
    state = filled()
    only = TaskFilter(created_from_ms=NOW_MS + 100, created_before_ms=NOW_MS + 110)
    page = browse_tags(state, asked(COMMON, only=only), lambda: None)
    none = TaskFilter(created_from_ms=NOW_MS + 110, created_before_ms=NOW_MS + 100)
    empty = browse_tags(state, asked(COMMON, only=none), lambda: None)

    assert [f"t{number:05}" for number in range(109, 99, -1)] == [task.id for _, task in page.rows]
    assert 10 == state.reads
    assert ((), END) == (empty.rows, empty.edge)
