"""History: the counts behind the charts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from codeq_cluster.core.task import Counters
from codeq_cluster.telemetry.history import (
    COARSE_S,
    FINE_S,
    QUEUES_MAX,
    RATE_SLOTS,
    SLOTS,
    TENANTS_MAX,
    Flow,
    History,
    Slice,
    merged,
)

FIRST = 12_000  # The current slot at the start; a coarse slot begins with it.
NEVER = 2**40


class Story:
    """A history, and the depths of two shards that a test sets."""

    def __init__(self) -> None:
        self.slot = FIRST
        self.shards: list[Mapping[tuple[str, str], Counters]] = [{}, {}]
        self.history = History(lambda: self.shards, lambda: self.slot * FINE_S + 1.0)

    async def pass_by(self, slots: int = 1) -> None:
        """End this many slots, one by one."""
        for _ in range(slots):
            self.slot += 1
            await self.history.end_slots(self.slot)

    def flows(self, tenant: str | None = "acme", queue: str = "", step_s: int = FINE_S) -> Slice:
        """Return all slots."""
        return self.history.slots(tenant, queue, step_s=step_s, since=0, until=NEVER)


async def test_events_in_a_slot_are_counted_for_queue_tenant_and_cluster() -> None:
    """Each flow and each slot is counted separately."""
    story = Story()
    story.history.count("acme", "resize", Flow.CREATED)
    story.history.count("acme", "resize", Flow.CREATED)
    story.history.count("acme", "render", Flow.CREATED)
    story.history.count("other", "resize", Flow.FAILED)
    await story.pass_by()
    story.history.count("acme", "resize", Flow.STARTED)
    await story.pass_by()

    assert [[2, 0], [0, 1], [0, 0], [0, 0]] == story.flows("acme", "resize").flows
    assert [[3, 0], [0, 1], [0, 0], [0, 0]] == story.flows("acme").flows
    assert [[0, 0], [0, 0], [0, 0], [1, 0]] == story.flows("other").flows
    assert [[3, 0], [0, 1], [0, 0], [1, 0]] == story.flows(None).flows
    assert FIRST == story.flows().first


async def test_depths_are_those_at_the_end_of_a_slot_over_all_shards() -> None:
    """A queue that is empty again has 0."""
    story = Story()
    story.shards = [
        {("resize", "acme"): Counters(1, 2, 3, 4), ("resize", ""): Counters(ready=7)},
        {("resize", "acme"): Counters(10, 20, 30, 40)},
    ]
    await story.pass_by()
    story.shards = [{}, {("render", "acme"): Counters(dead=5)}]
    await story.pass_by()

    assert [[11, 0], [22, 0], [33, 0], [44, 0]] == story.flows("acme", "resize").depths
    assert [[11, 0], [22, 0], [33, 0], [44, 5]] == story.flows("acme").depths
    assert [[7, 0], [0, 0], [0, 0], [0, 0]] == story.flows("").depths
    assert [[18, 0], [22, 0], [33, 0], [44, 5]] == story.flows(None).depths


async def test_a_clock_that_goes_back_keeps_no_old_rates() -> None:
    """They would be shown, and new ones not, until the clock is there again."""
    story = Story()
    story.history.count("acme", "resize", Flow.CREATED)
    await story.pass_by()
    story.slot -= RATE_SLOTS + 1
    await story.history.end_slots(story.slot)
    story.history.count("acme", "render", Flow.CREATED)
    await story.pass_by()

    assert {"render": [1, 0, 0, 0]} == story.history.rates("acme")
    assert story.slot == story.history.current


async def test_a_page_gets_the_slots_it_has_not_got_and_no_unfinished_ones() -> None:
    """It gets the slots after its last one, without the current one."""
    story = Story()
    for number in range(4):
        for _ in range(number):
            story.history.count("acme", "resize", Flow.CREATED)
        await story.pass_by()

    def slots(since: int, until: int) -> tuple[int, list[int]]:
        found = story.history.slots("acme", "", step_s=FINE_S, since=since, until=until)
        return found.first, found.flows[Flow.CREATED]

    assert (FIRST, [0, 1, 2, 3]) == slots(0, NEVER)
    assert (FIRST + 2, [2, 3]) == slots(FIRST + 1, NEVER)
    assert (FIRST + 2, [2]) == slots(FIRST + 1, FIRST + 3)
    assert (FIRST + 4, []) == slots(FIRST + 3, NEVER)
    assert (FIRST + 4, []) == slots(FIRST + 100, NEVER)


async def test_coarse_slots_add_up_fine_ones() -> None:
    """A slot that began before the history is left out."""
    story = Story()
    await story.pass_by(5)
    for _ in range(3 * COARSE_S // FINE_S):
        story.history.count("acme", "resize", Flow.COMPLETED)
        await story.pass_by()
    found = story.flows("acme", "resize", COARSE_S)

    assert FIRST * FINE_S // COARSE_S == found.first
    assert [7, 12, 12] == found.flows[Flow.COMPLETED]


async def test_only_the_last_slots_are_kept() -> None:
    """The history is bounded, however long the node runs."""
    story = Story()
    story.history.count("acme", "resize", Flow.CREATED)
    await story.pass_by(SLOTS)
    story.history.count("acme", "resize", Flow.CREATED)
    await story.pass_by(3)
    found = story.flows("acme", "resize")

    assert FIRST + 3 == found.first
    assert SLOTS == len(found.flows[Flow.CREATED])
    assert 1 == sum(found.flows[Flow.CREATED])


async def test_a_machine_that_slept_has_empty_slots() -> None:
    """Earlier events belong to the slot that was current."""
    story = Story()
    story.history.count("acme", "resize", Flow.CREATED)
    story.slot += 4
    await story.history.end_slots(story.slot)
    await story.history.end_slots(story.slot - 2)

    assert [1, 0, 0, 0] == story.flows("acme", "resize").flows[Flow.CREATED]


async def test_rates_cover_queues_with_any_flow_in_a_minute() -> None:
    """A minute later they are quiet."""
    story = Story()
    story.history.count("acme", "resize", Flow.CREATED)
    story.history.count("other", "resize", Flow.CREATED)
    await story.pass_by()
    story.history.count("acme", "resize", Flow.STARTED)
    await story.pass_by()
    rates = story.history.rates("acme")
    await story.pass_by(11)

    assert {"resize": [1, 1, 0, 0]} == rates
    assert {"resize": [0, 1, 0, 0]} == story.history.rates("acme")
    await story.pass_by()
    assert {} == story.history.rates("acme")


async def test_flows_between_two_slots_are_summed_by_queue() -> None:
    """Earlier events and the current slot are not in it, and quiet queues are left out."""
    story = Story()
    for flow in (Flow.CREATED, Flow.STARTED, Flow.COMPLETED):
        story.history.count("acme", "resize", flow)
        story.history.count("acme", "render", Flow.CREATED)
        await story.pass_by()
    story.history.count("acme", "resize", Flow.FAILED)
    story.history.count("other", "resize", Flow.FAILED)

    assert {
        "resize": [0, 1, 1, 0],
        "render": [2, 0, 0, 0],
    } == story.history.flows("acme", since=FIRST, until=NEVER)
    assert {
        "resize": [0, 1, 0, 0],
        "render": [1, 0, 0, 0],
    } == story.history.flows("acme", since=FIRST, until=FIRST + 2)
    assert {} == story.history.flows("acme", since=FIRST + 2, until=NEVER)


async def test_queues_whose_dead_letters_grow_are_named() -> None:
    """Each comes with its increase since the history began, without requeued dead letters."""
    story = Story()
    story.shards = [{("a", "acme"): Counters(dead=5), ("b", "acme"): Counters(dead=5)}]
    await story.pass_by()
    before = story.history.died("acme")
    story.shards = [{("a", "acme"): Counters(dead=8), ("b", "acme"): Counters(dead=1)}]
    await story.pass_by()

    assert {} == before
    assert {"a": 3} == story.history.died("acme")
    assert {} == story.history.died("other")


async def test_queues_beyond_the_bound_count_for_their_tenant() -> None:
    """Memory does not grow with the number of queues."""
    story = Story()
    for number in range(QUEUES_MAX + 10):
        story.history.count("acme", f"q{number}", Flow.CREATED)
    await story.pass_by()

    assert [QUEUES_MAX + 10] == story.flows("acme").flows[Flow.CREATED]
    assert [QUEUES_MAX + 10] == story.flows(None).flows[Flow.CREATED]
    assert QUEUES_MAX == len(story.history.rates("acme"))


async def test_tenants_beyond_the_bound_count_for_the_cluster() -> None:
    """Memory does not grow with the number of tenants either."""
    story = Story()
    for number in range(TENANTS_MAX + 10):
        story.history.count(f"t{number}", "resize", Flow.CREATED)
    await story.pass_by()
    kept = [story.flows(f"t{n}").flows[Flow.CREATED] for n in range(TENANTS_MAX + 10)]

    assert [TENANTS_MAX + 10] == story.flows(None).flows[Flow.CREATED]
    assert TENANTS_MAX == kept.count([1])


async def test_a_queue_that_has_long_been_quiet_makes_room() -> None:
    """One with waiting tasks, even if no worker claims them, is the last to do so."""
    story = Story()
    story.shards = [{("q0", "acme"): Counters(ready=1)}]
    for number in range(QUEUES_MAX):
        story.history.count("acme", f"q{number}", Flow.CREATED)
    await story.pass_by(SLOTS + 1)
    for number in range(QUEUES_MAX - 1):
        story.history.count("acme", f"new{number}", Flow.CREATED)
    await story.pass_by()
    depths = story.flows("acme", "q0").depths
    story.history.count("acme", "one-more", Flow.CREATED)
    await story.pass_by()

    assert 1 == depths[0][-1]
    assert QUEUES_MAX == len(story.history.rates("acme"))
    assert 0 == story.flows("acme", "q0").depths[0][-1]


async def test_idle_queues_with_tasks_leave_tracks_to_busy_ones() -> None:
    """A tenant may delay a task by a year in each of any number of queues."""
    story = Story()
    shard = {(f"q{number}", "idle"): Counters(delayed=1) for number in range(QUEUES_MAX)}
    story.shards = [shard]
    await story.pass_by(SLOTS + 1)
    for dead in range(2):
        shard[("work", "busy")] = Counters(dead=dead)
        story.history.count("busy", "work", Flow.FAILED)
        await story.pass_by()

    assert {"work": [0, 0, 0, 2]} == story.history.rates("busy")
    assert {"work": 1} == story.history.died("busy")


async def test_who_has_the_most_quiet_queues_gives_up_a_track() -> None:
    """Another tenant's idle queues stay, and idle ones take nothing from each other."""
    story = Story()
    shard = {(f"q{number}", "many"): Counters(delayed=1) for number in range(QUEUES_MAX - 10)}
    shard |= {(f"q{number}", "few"): Counters(delayed=1) for number in range(10)}
    story.shards = [shard]
    await story.pass_by(SLOTS + 1)
    shard |= {(f"late{number}", "few"): Counters(delayed=1) for number in range(10)}
    story.history.count("busy", "work", Flow.CREATED)
    await story.pass_by(2)

    def tracked(tenant: str, name: str, count: int) -> int:
        return sum(story.flows(tenant, f"{name}{n}").depths[1][-1] for n in range(count))

    assert QUEUES_MAX - 11 == tracked("many", "q", QUEUES_MAX)
    assert (10, 0) == (tracked("few", "q", 10), tracked("few", "late", 10))


async def test_busy_queues_of_one_tenant_leave_tracks_to_another() -> None:
    """An event a slot in each of any number of queues holds no more than a tenant's share."""
    story = Story()

    def pass_a_slot(few: int) -> None:
        for number in range(QUEUES_MAX + 10):
            story.history.count("many", f"q{number}", Flow.CREATED)
        for number in range(few):
            story.history.count("few", f"q{number}", Flow.FAILED)

    pass_a_slot(0)
    await story.pass_by()
    alone = len(story.history.rates("many"))
    pass_a_slot(3)
    await story.pass_by()
    with_few = len(story.history.rates("many")), len(story.history.rates("few"))
    pass_a_slot(QUEUES_MAX)
    await story.pass_by()
    shared = len(story.history.rates("many")), len(story.history.rates("few"))

    assert QUEUES_MAX == alone
    assert (QUEUES_MAX - 3, 3) == with_few
    assert (QUEUES_MAX // 2, QUEUES_MAX // 2) == shared
    # What a queue had counted before it lost its track still counts for its tenant.
    created = story.flows("many").flows[Flow.CREATED]
    assert [QUEUES_MAX + 10] * 3 == created
    assert [3 + QUEUES_MAX] == [sum(story.flows("few").flows[Flow.FAILED])]


async def test_a_queue_whose_depths_change_is_not_quiet() -> None:
    """Dead letters may come into a queue that has no event of its own."""
    story = Story()
    shard = {(f"q{number}", "acme"): Counters(delayed=1) for number in range(QUEUES_MAX)}
    story.shards = [shard]
    for number in range(SLOTS + 1):
        shard[("q7", "acme")] = Counters(dead=number)
        await story.pass_by()
    for number in range(QUEUES_MAX - 1):
        story.history.count("busy", f"work{number}", Flow.CREATED)
    await story.pass_by()

    assert QUEUES_MAX - 1 == len(story.history.rates("busy"))
    assert {"q7": SLOTS - 2} == story.history.died("acme")


async def test_dead_letters_of_a_queue_that_comes_back_are_no_new_ones() -> None:
    """Its track was another's meanwhile, and knows no slot before."""
    story = Story()
    shard = {(f"q{number}", "acme"): Counters(dead=1000) for number in range(QUEUES_MAX)}
    story.shards = [shard]
    await story.pass_by(SLOTS + 1)
    for number in range(QUEUES_MAX):
        story.history.count("busy", f"work{number}", Flow.CREATED)
    await story.pass_by(SLOTS + 2)
    back = sum(story.flows("acme", f"q{number}").depths[3][-1] for number in range(QUEUES_MAX))
    shard["q7", "acme"] = Counters(dead=1002)
    await story.pass_by()

    assert 1000 * QUEUES_MAX == back
    assert {"q7": 2} == story.history.died("acme")


async def test_a_busy_tenant_takes_the_track_of_a_quiet_one() -> None:
    """Tenants that have events in the same slot keep theirs."""
    story = Story()
    names = [f"t{number}" for number in range(TENANTS_MAX)]
    story.shards = [{("q", name): Counters(delayed=1) for name in names}]
    await story.pass_by(SLOTS + 1)
    for name in ("busy", *names[2:]):
        story.history.count(name, "work", Flow.CREATED)
    await story.pass_by()
    last = {name: story.flows(name).flows[Flow.CREATED][-1] for name in ("busy", *names)}

    assert {"busy": 1, **dict.fromkeys(names, 1), "t0": 0, "t1": 0} == last
    assert 1 == sum(story.flows(name).depths[1][-1] for name in names[:2])
    assert {1} == {story.flows(name).depths[1][-2] for name in names[2:]}


@pytest.mark.parametrize(
    ("first", "counted", "expected"),
    [
        (FIRST, [1, 1, 1], [11, 21, 31]),
        (FIRST + 1, [1, 1], [10, 21, 31]),
        (FIRST - 2, [5, 5, 1, 1, 1], [11, 21, 31]),
        (FIRST + 3, [], [10, 20, 30]),
        (FIRST + 2, [1, 1, 1], [10, 20, 31]),
    ],
)
def test_nodes_counts_are_added_up_slot_by_slot(
    first: int, counted: list[int], expected: list[int]
) -> None:
    """A node that started later, or is a slot ahead, counts in the slots of the asking one."""
    own = Slice(FIRST, [[10, 20, 30]] * len(Flow), [[1, 2, 3]] * 4)
    other = Slice(first, [counted] * len(Flow), [[9] * len(counted)] * 4)

    assert Slice(FIRST, [expected] * len(Flow), own.depths) == merged([own, other])
