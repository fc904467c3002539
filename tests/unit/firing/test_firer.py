"""Firer: due schedules fire once, whatever fails, and none keeps another from its time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.operations import PutTopic, Retry
from codeq_cluster.core.outcomes import Changed, Claimed
from codeq_cluster.core.schedules import (
    FIRED_MAX,
    Backfill,
    BackfillSchedule,
    DeleteSchedule,
    Missed,
    Overlap,
    PauseSchedule,
    PutSchedule,
    ResumeSchedule,
    Timing,
    jitter_ms,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task
from codeq_cluster.firing import firer as firing
from codeq_cluster.firing.firer import FIRED_AT_ONCE, FIRED_OF_TENANT, OVER_BUDGET_MS
from codeq_cluster.schedules.due import next_after
from codeq_cluster.schedules.zones import zone_rules
from tests.harness.waiting import until
from tests.unit.broker.conftest import START_MS, claim, submit

from .stage import (
    EVERY_MINUTE,
    FIRST_MS,
    MINUTE_MS,
    TIGHT,
    Stage,
    ended,
    make_stage,
    make_successor,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the clock again at once: the clock of these tests moves without time."""
    monkeypatch.setattr(firing, "LOOK_AGAIN_S", 0.005)
    monkeypatch.setattr(firing, "PAUSE_S", 0.005)


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    """Yield a shard without budgets."""
    made = make_stage()
    yield made
    await ended(made)


@pytest_asyncio.fixture
async def tight() -> AsyncIterator[Stage]:
    """Yield a shard on which the tenant `tight` has room for two tasks."""
    made = make_stage(rules=TIGHT)
    yield made
    await ended(made)


@pytest_asyncio.fixture
async def narrow() -> AsyncIterator[Stage]:
    """Yield a shard whose entries have room for little."""
    made = make_stage(entry_bytes_max=20_000)
    yield made
    await ended(made)


# Instants.


async def test_a_schedule_fires_at_its_instant_and_not_before(stage: Stage) -> None:
    """Another one that is due a millisecond later is left where it is."""
    await stage.put("on-time")
    later = replace(EVERY_MINUTE, timing=Timing(every="1m", offset="1s"))
    await stage.put("later", later)
    stage.to_minute(0)
    await stage.until_fired("on-time", 0)

    assert [] == stage.instants("later")
    assert ["on-time"] == [each.id for each in stage.fired]
    assert (FIRST_MS, FIRST_MS + MINUTE_MS) == (
        stage.at("on-time").done_ms,
        stage.at("on-time").next_ms,
    )


async def test_a_run_is_due_when_its_jitter_is_over(stage: Stage) -> None:
    """What is told of a firing counts from there: a jitter is no delay."""
    await stage.put("even")
    made = await stage.put("spread", replace(EVERY_MINUTE, jitter_s=50))
    more_ms = jitter_ms(made, FIRST_MS)
    stage.to_minute(0)
    await stage.until_fired("even", 0)
    before = stage.instants("spread")
    stage.shard.clock.pass_ms(more_ms)
    await stage.until_fired("spread", 0)

    assert 0 < more_ms < 50_000
    assert [] == before
    assert [("even", FIRST_MS), ("spread", FIRST_MS + more_ms)] == [
        (each.id, due_ms) for each, due_ms in zip(stage.fired, stage.due_ms, strict=True)
    ]


async def test_a_timer_wakes_it(stage: Stage) -> None:
    """Nobody calls, and the clock jumps over an hour that no timer of the loop has waited for."""
    hourly = replace(EVERY_MINUTE, timing=Timing(every="1h"))
    at = await stage.put("hourly", hourly)
    stage.shard.clock.pass_ms(at.next_ms - START_MS)
    await stage.until_fired("hourly", (at.next_ms - FIRST_MS) // MINUTE_MS)

    assert 1 == len(stage.fired)


async def test_it_fires_again_and_again(stage: Stage) -> None:
    """Each instant once."""
    await stage.put("on-time")
    for minute in range(3):
        stage.to_minute(minute)
        await stage.until_fired("on-time", *range(minute + 1))

    assert [(FIRST_MS + minute * MINUTE_MS,) for minute in range(3)] == [
        tuple(due.at_ms for due in each.runs) for each in stage.fired
    ]


async def test_a_clock_that_jumps_ahead_makes_instants_late(stage: Stage) -> None:
    """They are decided by the policy, all of them once."""
    await stage.put("all")
    await stage.put("one", replace(EVERY_MINUTE, missed=Missed.ONE))
    stage.to_minute(5)
    await stage.until_fired("all", *range(6))
    await stage.until_fired("one", 3, 4, 5)

    assert 3 == stage.at("one").missed


async def test_a_clock_that_jumps_back_fires_nothing_twice(stage: Stage) -> None:
    """What is decided stays so; the next instant is waited for."""
    await stage.put("on-time")
    stage.to_minute(2)
    await stage.until_fired("on-time", 0, 1, 2)
    stage.to_minute(0)
    await stage.put("behind")
    stage.to_minute(1)
    await stage.until_fired("behind", 1)
    before = stage.instants("on-time")
    stage.to_minute(3)
    await stage.until_fired("on-time", 0, 1, 2, 3)

    assert [0, 1, 2] == before


async def test_a_thousand_late_instants_fire_in_as_many_steps_as_they_need(stage: Stage) -> None:
    """Each is one entry; the rest is missed."""
    await stage.put("all")
    stage.to_minute(1099)

    async def decided() -> bool:
        return stage.at("all").done_ms == FIRST_MS + 1099 * MINUTE_MS

    await until(decided, what="all instants")

    runs = [due.at_ms for each in stage.fired for due in each.runs]
    at = stage.at("all")
    assert [*range(1000), 1098, 1099] == [(at_ms - FIRST_MS) // MINUTE_MS for at_ms in runs]
    assert list(range(1000)) == stage.instants("all")
    assert (1100 - 1002, 2) == (at.missed, at.skipped), "as many are open as may be"
    assert 48 == max(len(each.runs) for each in stage.fired)


async def test_a_gap_of_years_is_decided_in_bounded_steps(stage: Stage) -> None:
    """A cron expression is asked for so many instants, then others have their turn."""
    plan = replace(EVERY_MINUTE, timing=Timing(cron="* * * * *"), missed=Missed.SKIP)
    await stage.put("long", plan)
    await stage.put("short")
    stage.to_minute(9999)

    async def decided() -> bool:
        return stage.at("long").done_ms == FIRST_MS + 9999 * MINUTE_MS

    await until(decided, what="all instants")
    steps = [each for each in stage.fired if each.id == "long"]

    assert [9998, 9999] == stage.instants("long")
    assert 9998 == stage.at("long").missed
    assert 5 == len(steps)
    assert {"short"} == {each.id for each in stage.fired[1:3]} - {"long"}


async def test_a_backfill_walks_beside_the_instants(stage: Stage) -> None:
    """In steps of its own."""
    await stage.put("filled")
    stage.to_minute(0)
    await stage.until_fired("filled", 0)
    walk = Backfill(
        name="b", done_ms=FIRST_MS - 100 * MINUTE_MS, to_ms=FIRST_MS, overlap=Overlap.ALLOW
    )
    await stage.ask(
        BackfillSchedule(request="b", tenant="acme", id="filled", by="op", backfill=walk)
    )
    await stage.until_fired("filled", *range(-99, 1))

    assert stage.at("filled").backfill is None
    assert 1 == stage.at("filled").made


async def test_a_paused_schedule_is_left_alone_until_it_is_resumed(stage: Stage) -> None:
    """What it may catch up fires then."""
    await stage.put("paused")
    await stage.put("other")
    await stage.ask(PauseSchedule(request="p", tenant="acme", id="paused", by="op"))
    stage.to_minute(1)
    await stage.until_fired("other", 0, 1)
    before = stage.instants("paused")
    await stage.ask(
        ResumeSchedule(
            request="r",
            tenant="acme",
            id="paused",
            by="op",
            catch_up=True,
            at_ms=stage.shard.clock.wall,
            next_ms=FIRST_MS + 2 * MINUTE_MS,
            zone_rules=zone_rules(),
        )
    )
    await stage.until_fired("paused", 0, 1)

    assert [] == before


async def test_a_schedule_that_was_deleted_is_not_looked_for(stage: Stage) -> None:
    """Its row is gone with it."""
    await stage.put("gone")
    await stage.put("other")
    await stage.ask(DeleteSchedule(request="d", tenant="acme", id="gone", by="op"))
    stage.to_minute(0)
    await stage.until_fired("other", 0)

    assert ([], []) == (stage.instants("gone"), stage.failed)


# Leaders.


async def test_the_next_leader_fires_what_the_last_one_left() -> None:
    """The instants are rows; nobody tells it of them."""
    stage = make_stage(leads=False)
    stage.shard.log.lead()
    stage.firer.stop()
    await stage.put("left")
    stage.shard.clock.pass_ms(FIRST_MS - START_MS)
    successor = make_successor(stage)
    successor.look()
    await stage.until_fired("left", 0)

    successor.stop()
    await ended(stage)


async def test_two_firers_of_one_shard_fire_once(stage: Stage) -> None:
    """As when an old leader has not heard of the new one: the second decision changes nothing."""
    await stage.put("twice")
    successor = make_successor(stage)
    successor.look()
    # Both begin before either has decided.
    stage.to_minute(0)
    successor.rows({})

    async def both() -> bool:
        return not stage.background._tasks

    await until(both, what="both decisions")
    await stage.until_fired("twice", 0)
    successor.stop()

    assert 1 == len(stage.fired)
    assert 1 == stage.at("twice").made


async def test_an_entry_of_a_deposed_leader_does_nothing(stage: Stage) -> None:
    """It is in the log, under another term; the next leader asks the calendar again."""
    await stage.put("fenced")
    log = stage.shard.log
    log.held = True
    stage.to_minute(0)

    async def taken() -> bool:
        log.take()
        return bool(log.taken)

    await until(taken, what="the decision")
    log.depose()
    log.lead()
    log.commit(term=log.term)
    fenced = stage.instants("fenced"), stage.at("fenced").done_ms
    log.release()
    await stage.until_fired("fenced", 0)

    assert ([], START_MS) == fenced
    assert 1 == stage.at("fenced").made


async def test_a_node_that_does_not_lead_fires_nothing() -> None:
    """It knows the rows, and looks at them once it leads."""
    stage = make_stage()
    await stage.put("waits")
    stage.shard.log.depose()
    stage.to_minute(0)
    before = list(stage.fired)
    stage.shard.log.lead()
    await stage.until_fired("waits", 0)

    assert [] == before
    await ended(stage)


async def test_a_firer_that_was_stopped_begins_nothing(stage: Stage) -> None:
    """As on a node that shuts down."""
    await stage.put("stopped")
    successor = make_successor(stage)
    stage.firer.stop()
    stage.to_minute(0)
    stage.firer.look()
    before = list(stage.fired)
    successor.look()
    await stage.until_fired("stopped", 0)
    successor.stop()

    assert [] == before
    assert 1 == len(stage.fired)


async def test_a_pass_that_the_nodes_end_cuts_off_begins_no_other(stage: Stage) -> None:
    """It would never run, or outlive the node."""
    for number in range(FIRED_OF_TENANT + 1):
        await stage.put(f"cut-off-{number}")
    before = asyncio.all_tasks()
    stage.to_minute(0)
    await asyncio.sleep(0)  # The pass begins, and waits for its calendar.
    cut_off = asyncio.all_tasks() - before
    await stage.background.stop()

    assert 1 == len(cut_off)
    assert set() == asyncio.all_tasks() - before


# Tenants.


async def test_tenants_take_turns(stage: Stage) -> None:
    """One with many schedules at one instant delays another by some of them."""
    many = [f"many-{number:03}" for number in range(2 * FIRED_AT_ONCE)]
    for name in many:
        await stage.put(name)
    for tenant in ("bert", "carl"):
        await stage.put("alone", tenant=tenant)
    stage.to_minute(0)

    async def all_() -> bool:
        return len(stage.fired) == len(many) + 2

    await until(all_, what="all schedules")
    order = [each.tenant for each in stage.fired]

    assert set(many) == {each.id for each in stage.fired if each.tenant == "acme"}
    assert FIRED_OF_TENANT + 2 >= 1 + max(order.index("bert"), order.index("carl"))


async def test_late_instants_of_many_schedules_fire_a_few_at_a_time(stage: Stage) -> None:
    """One decides many runs, and each of the others goes on by one."""
    for number in range(FIRED_OF_TENANT):
        await stage.put(f"late-{number:02}")
    stage.to_minute(FIRED_MAX - 1)

    async def all_() -> bool:
        return len(stage.runs()) == FIRED_OF_TENANT * FIRED_MAX

    await until(all_, what="all instants")
    steps = [len(each.runs) for each in stage.fired]

    assert [FIRED_MAX, *(FIRED_OF_TENANT - 1) * [1]] == steps[:FIRED_OF_TENANT]


async def test_a_tenant_rests_after_a_step(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others go on meanwhile, and the longer it took the longer it rests."""
    monkeypatch.setattr(firing, "RESTS", 10**9)
    monkeypatch.setattr(firing, "PAUSE_MS_MAX", 60_000)
    late = 2 * FIRED_MAX
    await stage.put("many")
    stage.shard.clock.pass_ms(FIRST_MS + late * MINUTE_MS - START_MS)
    await stage.put("one", tenant="bert")
    for minute in (1, 2, 3):
        stage.to_minute(late + minute)
        await stage.until_fired("one", *range(late + 1, late + 1 + minute))

    assert list(range(FIRED_MAX)) == stage.instants("many")


async def test_backfills_of_a_tenant_do_not_delay_its_instants(stage: Stage) -> None:
    """Its rate has a token for one run, and there are more backfills than a pass has room for."""
    await stage.put("in-time")
    fill_back = [_filling(f"past-{number:02}") for number in range(FIRED_AT_ONCE + 1)]
    for each in fill_back:
        await stage.put(each.id, replace(EVERY_MINUTE, timing=Timing(every="1h")))
    waits_s = stage.waits_s["acme"] = [1.0, 0.0, 3600.0, 3600.0]
    await stage.ask(*fill_back)

    async def held() -> bool:
        return len(waits_s) == 3

    await until(held, what="a refused token")
    stage.to_minute(0)
    await stage.until_fired("in-time", 0)

    assert 1 == len(stage.runs())


def _filling(name: str) -> BackfillSchedule:
    """Return the operation that lets an instant of the past fire."""
    walk = Backfill(
        name="b", done_ms=START_MS - 60 * MINUTE_MS, to_ms=START_MS, overlap=Overlap.ALLOW
    )
    return BackfillSchedule(request="b", tenant="acme", id=name, by="op", backfill=walk)


@pytest.mark.parametrize("count", [3, FIRED_OF_TENANT + 4], ids=["few", "many"])
async def test_over_the_budget_a_tenant_is_left_alone_for_a_while(tight: Stage, count: int) -> None:
    """Its instants stay due and fire when there is room; others go on meanwhile."""
    once = replace(EVERY_MINUTE, timing=Timing(every="1d", offset="22h14m"))
    once_ms = next_after(once.timing, START_MS)
    assert once_ms is not None
    assert once_ms.ms == FIRST_MS
    for number in range(count):
        await tight.put(f"t{number}", once, tenant="tight")
    await tight.put("other", replace(EVERY_MINUTE, timing=Timing(every="1s")))
    tight.to_minute(0)

    async def made(number: int) -> list[Task] | None:
        found = [task for task in tight.runs() if task.tenant == "tight"]
        return found if len(found) >= number else None

    first = await until(lambda: made(2), what="as many as have room")
    for room in range(4, count + 2, 2):
        await _worked_off(tight)
        # There is room, but it is not looked for before the hold is over.
        await _a_second_passes(tight)
        held = len(await made(0) or ())
        tight.shard.clock.pass_ms(OVER_BUDGET_MS)
        tight.firer.rows({})
        await until(lambda room=room: made(min(room, count)), what="those that had no room")  # type: ignore[misc]

        assert held == room - 2

    assert 2 == len(first)
    assert count == len(tight.runs()) - len(tight.instants("other"))
    assert {1: count} == Counter(
        Counter(
            task.more.run.schedule
            for task in tight.runs()
            if task.tenant == "tight" and task.more and task.more.run
        ).values()
    )


async def test_beyond_the_rate_of_its_creates_a_tenant_waits_as_long_as_it_is_told(
    stage: Stage,
) -> None:
    """Others go on meanwhile."""
    await stage.put("fast", tenant="fast")
    await stage.put("other", replace(EVERY_MINUTE, timing=Timing(every="1s")))
    stage.waits_s["fast"] = [3.0]
    stage.to_minute(0)
    await _a_second_passes(stage)
    early = len(stage.instants("fast"))
    stage.shard.clock.pass_ms(4_000)
    stage.firer.rows({})
    await stage.until_fired("fast", 0)

    assert 0 == early
    assert [] == stage.waits_s["fast"]


async def test_a_clock_that_goes_back_lets_a_tenant_wait_no_longer(stage: Stage) -> None:
    """It waits for a token of its rate when the clock, which was an hour ahead, is set right."""
    waits_s = stage.waits_s["acme"] = [1.0]
    await stage.put("ahead")
    stage.to_minute(0)

    async def waits() -> bool:
        return not waits_s

    await until(waits, what="a refused token")
    stage.shard.clock.pass_ms(-60 * MINUTE_MS)
    await stage.put("new")
    stage.to_minute(-59)
    await stage.until_fired("new", -59)

    assert [] == stage.instants("ahead")


async def test_schedules_that_are_due_together_fire_one_by_one_as_tokens_come(
    stage: Stage,
) -> None:
    """Beside busy producers there are never the tokens for all of them at once."""
    await stage.put("first", tenant="fast")
    await stage.put("second", tenant="fast")
    stage.waits_s["fast"] = [0.0, 3.0]
    stage.to_minute(0)
    await stage.until_fired("first", 0)
    early = len(stage.instants("second"))
    stage.shard.clock.pass_ms(4_000)
    stage.firer.rows({})
    await stage.until_fired("second", 0)

    assert 0 == early
    assert [] == stage.waits_s["fast"]


async def _a_second_passes(stage: Stage) -> None:
    """Let another tenant's schedule fire, so that all that is due has been looked at."""
    before = stage.at("other").done_ms
    stage.shard.clock.pass_ms(1000)
    stage.firer.rows({})

    async def passed() -> bool:
        return stage.at("other").done_ms > before

    await until(passed, what="the other tenant's schedule")


async def _worked_off(stage: Stage) -> None:
    """Work on every task of the tenant that has a budget."""
    asked = claim(f"claim-{stage.shard.clock.wall}", tenant="tight", count=10)
    [claimed] = await stage.ask(asked)
    assert isinstance(claimed, Claimed)
    for task in claimed.tasks:
        await stage.ask(submit(task.id, tenant="tight", token=task.lease_token))


# Schedules at fault.


async def test_a_schedule_that_cannot_be_read_is_set_aside(stage: Stage) -> None:
    """Those beside it go on, and it goes on when an operator retries it."""
    good = await stage.put("a-damaged")
    await stage.put("b-whole")
    key = keyspace.item(ItemKind.SCHEDULE, "acme", "a-damaged")
    stage.shard.store.state._put(key, b"damaged")
    stage.to_minute(0)
    await stage.until_fired("b-whole", 0)
    aside = await stage.until_set_aside()
    stage.shard.store.state._put(key, records.encode(good))
    stage.shard.engine._state.replaced()
    [outcome] = await stage.ask(Retry(request="r", tenant="acme", ids=(aside.id,), by="op"))
    await stage.until_fired("a-damaged", 0)

    assert ("acme", "a-damaged") == (aside.tenant, aside.subject)
    assert Changed(1) == outcome
    assert [None] == stage.failed
    assert [] == stage.asides()


async def test_a_calendar_that_cannot_be_asked_is_set_aside(stage: Stage) -> None:
    """An edit mends it."""
    await stage.put("a-broken")
    await stage.put("b-whole")
    broken = replace(EVERY_MINUTE, timing=Timing(cron="nonsense"))
    [_] = await stage.ask(
        PutSchedule(
            request="x",
            tenant="acme",
            id="a-broken",
            by="op",
            plan=broken,
            at_ms=START_MS,
            next_ms=FIRST_MS,
            zone_rules=zone_rules(),
        )
    )
    stage.to_minute(0)
    await stage.until_fired("b-whole", 0)
    aside = await stage.until_set_aside()
    await stage.put("a-broken")
    stage.to_minute(1)
    await stage.until_fired("a-broken", 1)

    assert aside.reason.startswith("InvalidSchedule: ")
    assert [None] == stage.failed
    assert [] == stage.asides()


async def test_a_firing_that_the_broker_fails_at_is_set_aside(narrow: Stage) -> None:
    """Tried by itself it leaves those decided with it as they are."""
    large = replace(EVERY_MINUTE, task=replace(EVERY_MINUTE.task, payload=f'"{"x" * 15_000}"'))
    await narrow.put("a-small")
    await narrow.put("b-large", large)
    await narrow.put("c-small")
    narrow.to_minute(0)
    await narrow.until_fired("c-small", 0)
    aside = await narrow.until_set_aside()

    assert [0] == narrow.instants("a-small")
    assert "b-large" == aside.subject
    assert [None] == narrow.failed
    assert {1} == {narrow.at(name).made for name in ("a-small", "c-small")}


# Rules of time zones.


async def test_newer_rules_find_the_next_instants_again() -> None:
    """By the next leader, for every schedule; nothing fires by it."""
    stage = make_stage()
    count = firing._PAGE + 44
    for number in range(count):
        await stage.put(f"s{number:03}", next_ms=FIRST_MS + 777, zone_rules="2000a")
    await stage.put("unreadable")
    key = keyspace.item(ItemKind.SCHEDULE, "acme", "unreadable")
    stage.shard.store.state._put(key, b"damaged")
    stage.shard.log.depose()
    stage.shard.log.lead()

    async def timed() -> bool:
        return all(stage.at(f"s{number:03}").zone_rules == zone_rules() for number in range(count))

    await until(timed, what="newer rules")

    at = stage.at("s001")
    assert (START_MS, FIRST_MS, 1) == (at.done_ms, at.next_ms, at.version)
    assert [] == stage.runs()
    assert [] == stage.fired
    await ended(stage)


async def test_older_rules_change_nothing(stage: Stage) -> None:
    """A node of the release before leads for a while: it must not take back what is known."""
    await stage.put("newer", next_ms=FIRST_MS + 777, zone_rules="9999z")
    await stage.put("older", next_ms=FIRST_MS + 777, zone_rules="2000a")
    stage.shard.log.depose()
    stage.shard.log.lead()

    async def timed() -> bool:
        return stage.at("older").zone_rules == zone_rules()

    await until(timed, what="newer rules")

    assert ("9999z", FIRST_MS + 777) == (stage.at("newer").zone_rules, stage.at("newer").next_ms)


async def test_runs_that_end_in_one_batch_all_end_for_their_schedule(stage: Stage) -> None:
    """Each end changes the schedule's row, so each decision needs the one before."""
    await stage.put("often", replace(EVERY_MINUTE, overlap=Overlap.ALLOW))
    for minute in range(3):
        stage.to_minute(minute)
        await stage.until_fired("often", *range(minute + 1))
    [claimed] = await stage.ask(claim("claim", tenant="acme", count=3))
    assert isinstance(claimed, Claimed)
    await stage.ask(
        *(submit(task.id, tenant="acme", token=task.lease_token) for task in claimed.tasks)
    )

    assert () == stage.at("often").open
    assert 3 == len(stage.at("often").recent)


async def test_an_instant_that_is_refused_counts_as_missed_where_it_is_watched(
    stage: Stage,
) -> None:
    """Its priority is none of the topic's, which has changed since it was put."""
    await stage.put("odd")
    await stage.ask(
        PutTopic(request="p", tenant="acme", name="render", by="op", priority_tiers=(9,))
    )
    stage.to_minute(0)

    async def decided() -> bool:
        return bool(stage.fired)

    await until(decided, what="the instant")

    assert [1] == stage.missed
    assert 1 == stage.at("odd").missed
