"""Lone keys: the quick count of a key's row decides what `lanes` decides, and no more."""

from __future__ import annotations

from itertools import product

import pytest
from msgspec.structs import replace

from codeq_cluster.core.changes import TaskChange
from codeq_cluster.core.lane import Flow, Lane, OnRetry, Order, OwnRule, PerKey, lane_of_key
from codeq_cluster.core.lanes import settled
from codeq_cluster.core.lone_keys import counted
from codeq_cluster.core.rate import Rate
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import More, State, Task
from tests.fakes.dict_view import DictView

from .shard import NOW_MS

LANE = Lane(tenant="acme", id=lane_of_key("render", "k"), key="k")
TASK = Task(
    id="t",
    tenant="acme",
    command="Render",
    priority=0,
    max_attempts=3,
    created_ms=NOW_MS,
    updated_ms=NOW_MS,
    state=State.READY,
    seq=7,
    more=More(key="k"),
)
RULES = (
    None,
    PerKey(),
    PerKey(max_running=2),
    PerKey(max_running=3, order=Order.FIFO, on_retry=OnRetry.YIELD),
)
COUNTS = [
    replace(LANE, ready=ready, running=running, kept=kept)
    for ready, running, kept in product(range(3), range(3), range(2))
]
# The numbers of these rows are not all that there is to a key.
MORE = {
    "held": replace(LANE, ready=1, running=1, held=1),
    "stopped": replace(LANE, ready=1, running=1, stopped_by="dead"),
    "spent": replace(LANE, ready=1, running=1, spent_us=NOW_MS * 1000 + 1),
    "timed": replace(LANE, ready=1, running=1, expires_ms=NOW_MS + 1),
    "at rest": replace(LANE, ready=1, running=1, held_until_ms=NOW_MS + 1),
    "with a rule": replace(LANE, ready=1, running=1, own=OwnRule(max_running=1)),
}
LIFE = (
    (None, State.READY),
    (State.READY, State.LEASED),
    (State.LEASED, State.LEASED),
    (State.LEASED, State.DONE),
    (State.LEASED, State.FAILED),
)


def view(lane: Lane | None, rule: PerKey | None) -> DictView:
    """Return a shard with a key's row, if it has one, and a rule of its queue."""
    found = DictView(now_ms=NOW_MS)
    flow = Flow(tenant="acme", id="render", seq=1, per_key=rule)
    found.items[ItemKind.FLOW, "acme", "render"] = flow
    if lane is not None:
        found.items[ItemKind.LANE, "acme", lane.id] = lane
    return found


def change(before: State | None, after: State | None) -> TaskChange:
    """Return a change of a task with a key."""
    was, now = (None if state is None else replace(TASK, state=state) for state in (before, after))
    return TaskChange(before=was, after=now)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("lane", [None, *COUNTS])
def test_what_is_counted_is_what_lanes_would_do(lane: Lane | None, rule: PerKey | None) -> None:
    """For every step of a task's life, whatever numbers the row has."""
    taken = {None: 1, State.READY: lane and lane.ready, State.LEASED: lane and lane.running}
    known = view(lane, rule)
    for before, after in LIFE:
        if not taken[before]:
            continue  # No row counts fewer tasks than there are.
        made = change(before, after)
        rows = counted(known, [made])
        is_left = before is None and lane is not None and rule is not None

        assert is_left == (rows is None)
        if rows is not None:
            assert (made, *rows) == settled(known, [made])


@pytest.mark.parametrize("lane", MORE.values(), ids=MORE)
@pytest.mark.parametrize(("before", "after"), LIFE)
def test_a_key_with_more_than_numbers_is_left_to_lanes(
    lane: Lane, before: State | None, after: State
) -> None:
    """What waits, rests or has a rule of its own may go, or must stay."""
    assert counted(view(lane, PerKey(max_running=9)), [change(before, after)]) is None


@pytest.mark.parametrize(
    ("before", "after"),
    sorted({*product([None, *State], [None, *State])} - {*LIFE} - {(None, None)}, key=str),
)
def test_any_other_step_is_left_to_lanes(before: State | None, after: State | None) -> None:
    """A return, a death or a deletion says more of a key than a number."""
    assert counted(view(replace(LANE, ready=1, running=1), None), [change(before, after)]) is None


def test_a_key_with_a_rate_is_left_to_lanes() -> None:
    """Its claims spend tokens."""
    known = view(replace(LANE, ready=1), PerKey(rate=Rate(1)))

    assert counted(known, [change(State.READY, State.LEASED)]) is None


@pytest.mark.parametrize("after", [State.LEASED, State.DONE, State.FAILED])
@pytest.mark.parametrize("running", [1, 2])
def test_a_lease_goes_on_and_ends_without_a_look_at_the_rate(running: int, after: State) -> None:
    """Only claims spend tokens, and a key that has spent some has more than numbers."""
    known = view(replace(LANE, running=running), PerKey(rate=Rate(1)))
    made = change(State.LEASED, after)
    rows = counted(known, [made])

    assert rows is not None
    assert (made, *rows) == settled(known, [made])


def test_two_changes_of_one_key_are_left_to_lanes() -> None:
    """The second would be counted as if the first had not been; tasks without a key do not count.

    As in a claim of several.
    """
    known = view(replace(LANE, ready=2), None)
    made = change(State.READY, State.LEASED)
    bare = TaskChange(before=replace(TASK, more=None), after=replace(TASK, more=None))

    assert counted(known, [made, made]) is None
    rows = counted(known, [bare, made, bare])
    assert rows is not None
    assert (replace(LANE, ready=1, running=1),) == tuple(row.after for row in rows)
