"""Lists by tag: the work of one look is bounded, whatever the other tags leave of it."""

from __future__ import annotations

from codeq_cluster.broker.engine.answers import RECORDS_MAX, browse_tags, count_selected
from codeq_cluster.broker.questions import END, BrowseTags, CountSelected
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.bulk import ActionKind, BulkAction
from codeq_cluster.core.selecting import Selection, TaskFilter
from codeq_cluster.core.task import More, State, Task
from tests.fakes.memory_store import MemoryState

COMMON, RARE = ("run", "7"), ("user", "42")
TASKS = 2 * RECORDS_MAX + 100
NOW_MS = 1_700_000_000_000


class CountingState(MemoryState):
    """A state that counts what is read of it."""

    reads = 0

    def get(self, key: bytes) -> bytes | None:
        """Return the value, or None."""
        self.reads += 1
        return super().get(key)


def filled() -> CountingState:
    """Return tasks with one tag, of which few have a second one, too."""
    state = CountingState()
    rows: dict[bytes, bytes | None] = {}
    for number in range(TASKS):
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
            more=More(tags=(COMMON, RARE) if number % RECORDS_MAX == 0 else (COMMON,)),
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


def test_a_look_reads_so_many_records_and_no_more() -> None:
    """Its edge leads on, and the walk finds all of them in the end, once each."""
    state = filled()
    found: list[str] = []
    looks, after = 0, b""
    while after != END:
        before = state.reads
        page = browse_tags(state, asked(COMMON, RARE, after=after), lambda: None)
        found += [task.id for _, task in page.rows]
        looks, after = looks + 1, page.edge
        assert state.reads - before <= RECORDS_MAX

    assert ([f"t{number * RECORDS_MAX:05}" for number in (2, 1, 0)], 3) == (found, looks)


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
        assert state.reads - before <= RECORDS_MAX

    assert [RECORDS_MAX, RECORDS_MAX, 100] == counted


def test_the_rarest_tag_first_reads_the_least() -> None:
    """Only the rows of the first tag are read."""
    state = filled()
    page = browse_tags(state, asked(RARE, COMMON), lambda: None)

    assert (3, END) == (len(page.rows), page.edge)
    assert 3 == state.reads


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
