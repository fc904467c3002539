"""Outbox jobs: the leader's work outside the log, with a test as the outside world."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

import pytest_asyncio

from codeq_cluster.broker.background import Background
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.items import Delivery, Item, Sweep
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import Cancel, Delivered, Operation, Swept, Undelivered
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.webhooks.outbox import APART_MS, IN_SIGHT, PAUSE_S, PUT_OFF_MS, JobOutbox, Place
from tests.fakes.memory_store import MemoryShard
from tests.unit.broker.conftest import Shard, TestClock, create, make_shard

ANY = 1_000
PLACES = 64
SHARE = 32  # Of one tenant alone.
AGE_MAX_MS = LifetimeRules().delivery_age_max_ms


@dataclass
class World:
    """Runs jobs as the test asks: done at once by default.

    Attributes:
        begun: Ids, in order.
        placed: Ids of jobs whose place was read, in order.
        asked: Places whose room was asked for, in order.
        room: Free places by server; unlimited for a server that is not in it.
        shares: Places for all servers.
        held: Ids of jobs whose runs wait for `let_go`.
        answer: Returns the outcome of a run.
    """

    begun: list[str] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    asked: list[Place] = field(default_factory=list)
    room: dict[str, int] = field(default_factory=dict)
    shares: FairShares = field(default_factory=lambda: FairShares(PLACES, name="the room"))
    held: set[str] = field(default_factory=set)
    answer: Callable[[Delivery], Operation | None] = lambda each: Delivered(
        tenant=each.tenant, id=each.id
    )
    _under_way: Counter[tuple[str, str]] = field(default_factory=Counter)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def place(self, item: Item) -> Place:
        """Return the tenant and the server of a job; a sweep has none."""
        self.placed.append(item.id)
        return item.tenant, server_of(item) if isinstance(item, Delivery) else ""

    def free(self, place: Place) -> int:
        """Return the room at a place."""
        self.asked.append(place)
        return self.room.get(place[1], ANY) - self._under_way[place]

    async def run(self, item: Item) -> Operation | None:
        """Run a job; fails if it is running already. A sweep is done at once."""
        if isinstance(item, Sweep):
            self.begun.append(item.id)
            return Swept(tenant=item.tenant, id=item.id, attempt=item.attempts + 1)
        assert isinstance(item, Delivery)
        assert not self._under_way[item.tenant, item.id], "an outbox job runs twice at once"
        places = ((item.tenant, item.id), (item.tenant, server_of(item)))
        self._under_way.update(places)
        try:
            self.begun.append(item.id)
            async with self._changed:
                self._changed.notify_all()
                await self._changed.wait_for(lambda: item.id not in self.held)
            return self.answer(item)
        finally:
            self._under_way.subtract(places)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for a condition that changes when a run begins or is let go."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def let_go(self, *ids: str) -> None:
        """Let held runs end."""
        async with self._changed:
            self.held.difference_update(ids)
            self._changed.notify_all()


@dataclass
class Setting:
    """A shard with its outbox jobs, and the world around it."""

    shard: Shard
    world: World
    outbox_jobs: JobOutbox
    background: Background

    async def end(self, *task_ids: str, url: str = "http://swift/", tenant: str = "acme") -> None:
        """End tasks, each with a delivery to a webhook; returns when that is committed."""
        for start in range(0, len(task_ids), 100):
            ids = task_ids[start : start + 100]
            await self.shard.engine.operate(
                [create(each, webhook=url, tenant=tenant) for each in ids]
            )
            await self.shard.engine.operate(
                [Cancel(request=f"end-{each}", id=each, tenant=tenant) for each in ids]
            )

    async def end_each(self, task_ids: Sequence[str]) -> None:
        """End tasks, each with a delivery to a server of its own."""
        await self.shard.engine.operate(
            [create(each, webhook=f"http://{each}.example/") for each in task_ids]
        )
        await self.shard.engine.operate(
            [Cancel(request=f"end-{each}", id=each, tenant="acme") for each in task_ids]
        )

    async def defer(self, delivery_id: str, ms: int) -> None:
        """Defer a delivery."""
        [outcome] = await self.shard.engine.operate(
            [Undelivered(tenant="acme", id=delivery_id, attempt=1, deferred_ms=ms)]
        )
        assert 1 == outcome.count  # type: ignore[union-attr]

    def pending(self) -> list[Delivery]:
        """Return the stored deliveries, by due instant."""
        start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.DELIVERY))
        found = [
            records.decode_item(value)
            for _, value in self.shard.store.state.scan(start, end, 10_000)
        ]
        deliveries = [each for each in found if isinstance(each, Delivery)]
        return sorted(deliveries, key=lambda each: each.due_ms)

    async def gone(self, delivery_id: str) -> None:
        """Wait until a delivery has ended."""
        applied = asyncio.Event()
        self.shard.engine.on_rows(lambda _: applied.set())
        while any(each.id == delivery_id for each in self.pending()):
            applied.clear()
            await applied.wait()

    async def died(self, count: int) -> list[Delivery]:
        """Wait until this many deliveries are dead; return them."""
        applied = asyncio.Event()
        self.shard.engine.on_rows(lambda _: applied.set())
        while len(dead := [each for each in self.pending() if each.died_ms]) < count:
            applied.clear()
            await applied.wait()
        return dead

    async def stop(self) -> None:
        """End everything."""
        self.outbox_jobs.stop()
        await self.background.stop()
        self.shard.engine.stop()


def server_of(item: Delivery) -> str:
    """Return the server of a delivery."""
    return urlsplit(item.url).netloc


def done(item: Delivery) -> Operation:
    """Return the operation for an accepted delivery."""
    return Delivered(tenant=item.tenant, id=item.id)


def setting_over(store: MemoryShard, clock: TestClock) -> Setting:
    """Return an engine and its outbox jobs over a store, without leadership."""
    shard = make_shard(store, clock)
    world, background = World(), Background()
    outbox_jobs = JobOutbox(
        shard.engine,
        store.state,
        run=world.run,
        place=world.place,
        room=world.free,
        shares=lambda _: world.shares,
        age_max_ms=AGE_MAX_MS,
        background=background,
        failed=partial(shard.seen.item_failed, Loop.OUTBOX),
    )
    shard.engine.on_rows(outbox_jobs.rows)
    shard.engine.on_leader(outbox_jobs.look_soon)
    outbox_jobs.look_soon()
    return Setting(shard, world, outbox_jobs, background)


@pytest_asyncio.fixture
async def setting() -> AsyncIterator[Setting]:
    """Yield a shard that leads and whose clock stands still."""
    made = setting_over(MemoryShard(), TestClock())
    made.shard.log.lead()
    yield made
    await made.stop()


async def test_a_delivery_runs_once_and_is_gone(setting: Setting) -> None:
    """The outcome of the run is decided like any operation."""
    await setting.end("a")
    await setting.end("b")
    await setting.world.until(lambda: len(setting.world.begun) == 2)
    await setting.end("c")
    await setting.gone("c.1")

    assert ["a.1", "b.1", "c.1"] == setting.world.begun
    assert [] == setting.pending()


async def test_what_is_not_committed_does_not_run(setting: Setting) -> None:
    """The end of a task decided by a deposed leader, and never committed, causes no request."""
    log = setting.shard.log
    log.held = True
    lost = setting.background.spawn(setting.end("lost"))
    while not log.taken:
        await asyncio.sleep(0)  # Wait until the end is decided.
        log.take()
    setting.outbox_jobs.look_soon()
    await asyncio.sleep(0)
    log.depose()
    log.taken.clear()
    await asyncio.wait([lost])
    log.held = False
    log.lead()
    await setting.end("kept")
    await setting.world.until(lambda: bool(setting.world.begun))

    assert lost.exception() is not None
    assert ["kept.1"] == setting.world.begun


async def test_a_delivery_in_progress_is_not_started_twice_though_it_is_due_again(
    setting: Setting,
) -> None:
    """An operator or a deferral may change its due time meanwhile; it runs again afterwards."""
    world = setting.world
    world.held = {"a.1"}
    world.answer = lambda each: None if world.begun.count("a.1") == 1 else done(each)
    await setting.end("a")
    await world.until(lambda: world.begun == ["a.1"])
    for _ in range(3):
        await setting.defer("a.1", 1)
        setting.shard.clock.pass_ms(2)
        await setting.end(f"b{setting.shard.clock.monotonic}")
    await world.until(lambda: len(world.begun) == 4)
    assert 1 == world.begun.count("a.1")

    await world.let_go("a.1")
    await world.until(lambda: world.begun.count("a.1") == 2)


async def test_deliveries_run_when_they_are_due_and_in_that_order(setting: Setting) -> None:
    """None runs a millisecond early."""
    world, clock = setting.world, setting.shard.clock
    world.room["swift"] = 0
    await setting.end("a", "b", "c")
    for delivery_id, ms in (("a.1", 300), ("b.1", 100), ("c.1", 200)):
        await setting.defer(delivery_id, ms)
    del world.room["swift"]
    clock.pass_ms(99)
    await setting.end("now", url="http://other/")
    await world.until(lambda: bool(world.begun))
    assert ["now.1"] == world.begun

    clock.pass_ms(1)
    setting.outbox_jobs.look_soon()
    await world.until(lambda: len(world.begun) == 2)
    clock.pass_ms(1_000)
    setting.outbox_jobs.look_soon()
    await world.until(lambda: len(world.begun) == 4)
    assert ["now.1", "b.1", "c.1", "a.1"] == world.begun


async def test_a_server_without_room_holds_up_its_own_alone(setting: Setting) -> None:
    """As many run at once as there is room for; another server's run beside them."""
    world = setting.world
    world.room["silent"] = 2
    world.held = {f"s{n}.1" for n in range(5)}
    await setting.end(*(f"s{n}" for n in range(5)), url="http://silent/hook")
    await setting.end("a", "b")
    await world.until(lambda: len(world.begun) == 4)
    assert ["a.1", "b.1", "s0.1", "s1.1"] == sorted(world.begun)

    await world.let_go("s1.1")
    await world.until(lambda: len(world.begun) == 5)
    assert "s2.1" == world.begun[-1]
    assert 2 == setting.outbox_jobs.running


async def test_only_so_many_run_at_once(setting: Setting) -> None:
    """A tenant has a share of the places, and its next job begins when one ends."""
    world = setting.world
    ids = [f"t{n:03d}" for n in range(SHARE + 1)]
    world.held = {f"{each}.1" for each in (*ids, "other")}
    await setting.end(*ids)
    await setting.end("other", tenant="globex")
    await world.until(lambda: "other.1" in world.begun)
    assert SHARE + 1 == setting.outbox_jobs.running

    await world.let_go("t000.1", "other.1")
    await world.until(lambda: len(world.begun) == SHARE + 2)
    assert [*(f"{each}.1" for each in ids[:SHARE]), "other.1", f"{ids[SHARE]}.1"] == world.begun
    await setting.gone("other.1")
    assert SHARE == setting.outbox_jobs.running


async def test_jobs_that_find_no_room_hide_no_other_tenants_jobs(setting: Setting) -> None:
    """However many servers they are for, they return one after the other."""
    world = setting.world
    ids = [f"s{n}" for n in range(3 * IN_SIGHT)]
    world.held = {f"{each}.1" for each in ids}
    for each in ids:
        world.room[f"{each}.example"] = 1
    for start in range(0, len(ids), 100):
        await setting.end_each(ids[start : start + 100])
    await setting.end("other", tenant="globex")
    await world.until(lambda: "other.1" in world.begun)

    now_ms = setting.shard.clock.wall
    put_off = [each.due_ms - now_ms for each in setting.pending() if each.due_ms > now_ms]
    assert len(put_off) > 2 * IN_SIGHT
    assert [PUT_OFF_MS + n * APART_MS for n in range(len(put_off))] == put_off
    assert SHARE + 1 == len(world.begun)


async def test_what_fills_the_sight_is_put_off_in_order_and_apart(setting: Setting) -> None:
    """Then another server's delivery is in sight; a deferral costs one row and no attempt.

    The tenant keeps its share of the sight.
    """
    world, state = setting.world, setting.shard.store.state
    world.room["silent"] = 0
    ids = [f"s{n:04d}" for n in range(IN_SIGHT + 10)]
    await setting.end(*ids, url="http://silent/")
    before = state.applied_index
    await setting.end("z1")
    await world.until(lambda: bool(world.begun))
    await setting.end("z2")
    await world.until(lambda: len(world.begun) == 2)

    now_ms = setting.shard.clock.wall
    silent = [each for each in setting.pending() if server_of(each) == "silent"]
    put_off = [each for each in silent if each.due_ms > now_ms]
    assert ["z1.1", "z2.1"] == world.begun
    assert {0} == {each.attempts for each in silent}
    assert [
        (f"{task_id}.1", PUT_OFF_MS + n * APART_MS)
        for n, task_id in enumerate(ids[IN_SIGHT // 2 : IN_SIGHT])
    ] == [(each.id, each.due_ms - now_ms) for each in put_off]
    # Two creates, two ends, two outcomes (the last perhaps still to come), one deferral.
    assert state.applied_index - before <= 7


async def test_a_run_that_could_not_be_tried_leaves_no_trace(setting: Setting) -> None:
    """The item is unchanged, and runs again after a while."""
    world, state = setting.world, setting.shard.store.state

    def not_now(each: Delivery) -> None:
        world.held = {each.id}  # The second run is held, so that nothing else follows.

    world.answer = not_now
    await setting.end("a")
    before = state.applied_index, setting.pending()
    await world.until(lambda: len(world.begun) == 2)

    assert before == (state.applied_index, setting.pending())


async def test_a_deposed_leader_begins_nothing_and_the_next_one_repeats(setting: Setting) -> None:
    """The outcome of a running job is dropped; another node runs it under the same id."""
    world, log = setting.world, setting.shard.log
    world.held = {"a.1"}
    world.room["swift"] = 1
    await setting.end("a", "b")
    await world.until(lambda: world.begun == ["a.1"])
    log.depose("n2")
    await world.let_go("a.1")
    next_one = setting_over(setting.shard.store, setting.shard.clock)
    next_one.shard.log.term = log.term
    assert 0 == next_one.outbox_jobs.running
    assert [] == next_one.world.begun
    next_one.shard.log.lead()
    await next_one.world.until(lambda: len(next_one.world.begun) == 2)

    assert ["a.1", "b.1"] == next_one.world.begun
    assert ["a.1"] == world.begun
    await next_one.stop()


async def test_a_leader_that_returns_goes_on(setting: Setting) -> None:
    """A job that ran all the time is not started a second time."""
    world, log = setting.world, setting.shard.log
    world.held = {"a.1"}
    await setting.end("a", "b")
    await world.until(lambda: "b.1" in world.begun)
    log.depose()
    log.lead()
    await setting.end("c")
    await world.until(lambda: "c.1" in world.begun)
    assert 1 == world.begun.count("a.1")

    await world.let_go("a.1")
    await setting.gone("a.1")
    assert 1 == world.begun.count("a.1")


async def test_a_run_that_fails_is_repeated_and_does_not_spin(setting: Setting) -> None:
    """Its failure does not keep other jobs from running either."""
    world = setting.world

    def answer(each: Delivery) -> Operation:
        if each.id == "bad.1":
            raise RuntimeError("a fault of ours")
        return done(each)

    world.answer = answer
    begun_s = time.monotonic()
    await setting.end("bad")
    for n in range(50):
        await setting.end(f"t{n}")
        await world.until(lambda n=n: f"t{n}.1" in world.begun)
    passed_s = time.monotonic() - begun_s
    assert world.begun.count("bad.1") <= 1 + passed_s / PAUSE_S

    await world.until(lambda: world.begun.count("bad.1") == 3)


async def test_a_clock_set_back_delays_nothing(setting: Setting) -> None:
    """Instants are set and compared by the clock of decisions, which never goes back."""
    setting.shard.clock.wall -= 3_600_000
    await setting.end("a")
    await setting.world.until(lambda: bool(setting.world.begun))

    setting.shard.log.depose()
    setting.shard.log.lead()
    await setting.end("b")
    await setting.world.until(lambda: "b.1" in setting.world.begun)


async def test_nothing_begins_after_the_stop(setting: Setting) -> None:
    """A look that was already planned does not begin one either."""
    world = setting.world
    world.room["swift"] = 0
    await setting.end("a")
    setting.outbox_jobs.look_soon()
    setting.outbox_jobs.stop()
    world.room["swift"] = ANY
    await setting.end("b")
    await asyncio.sleep(0)
    other = setting_over(setting.shard.store, setting.shard.clock)
    setting.shard.log.depose()
    other.shard.log.term = setting.shard.log.term
    other.shard.log.lead()
    await other.world.until(lambda: len(other.world.begun) == 2)

    assert [] == world.begun
    await other.stop()


async def test_a_job_without_room_is_tried_again_without_an_event(setting: Setting) -> None:
    """The look does not wait for the next due job, however late that is."""
    world = setting.world
    world.room["swift"] = 0
    await setting.end("a", "far")
    await setting.defer("far.1", 3_600_000)
    looked = asyncio.Event()
    asyncio.get_running_loop().call_soon(looked.set)
    await looked.wait()
    world.room["swift"] = ANY
    await world.until(lambda: world.begun == ["a.1"])

    assert "far.1" == [each.id for each in setting.pending()][-1]


async def test_a_delivery_that_is_too_old_is_given_up_without_room(setting: Setting) -> None:
    """One entry ends all that are in sight, without an attempt; those behind them then run."""
    world, clock = setting.world, setting.shard.clock
    world.room["dead"] = 0
    ids = [f"s{n:04d}" for n in range(2 * IN_SIGHT + 10)]
    await setting.end(*ids, url="http://dead/")
    clock.pass_ms(AGE_MAX_MS)
    batches: list[int] = []
    setting.shard.engine.on_rows(
        lambda rows: batches.append(
            sum(
                value is None and keyspace.family(key) is keyspace.Family.OUTBOX
                for key, value in rows.items()
            )
        )
    )
    await setting.end("z")
    await setting.gone("z.1")
    dead = await setting.died(len(ids))

    assert ["z.1"] == world.begun
    assert {f"{each}.1" for each in ids} == {each.id for each in dead}
    assert {(0, clock.wall)} == {(each.attempts, each.died_ms) for each in dead}
    assert {f"not accepted within {AGE_MAX_MS // 1000} s, and not tried"} == {
        each.error for each in dead
    }
    assert [IN_SIGHT, IN_SIGHT] == sorted(batches)[-2:]
    assert len(ids) + 1 == sum(batches)


async def test_a_deferred_delivery_is_given_up_when_it_is_too_old_and_no_sooner(
    setting: Setting,
) -> None:
    """It is given up even if its next attempt was planned later."""
    world, clock = setting.world, setting.shard.clock
    world.room["dead"] = 0
    await setting.end("a", url="http://dead/")
    await setting.defer("a.1", 2 * AGE_MAX_MS)
    clock.pass_ms(AGE_MAX_MS - 1)
    await setting.end("b")
    await setting.gone("b.1")
    assert [("a.1", 0)] == [(each.id, each.died_ms) for each in setting.pending()]

    clock.pass_ms(1)
    setting.outbox_jobs.look_soon()
    assert [clock.wall] == [each.died_ms for each in await setting.died(1)]
    assert ["b.1"] == world.begun


async def test_a_running_delivery_that_gets_too_old_keeps_its_own_outcome(setting: Setting) -> None:
    """A target that accepts at the last moment has accepted."""
    world, clock = setting.world, setting.shard.clock
    world.held = {"a.1"}
    await setting.end("a")
    await world.until(lambda: world.begun == ["a.1"])
    clock.pass_ms(AGE_MAX_MS)
    await setting.end("b")
    await setting.gone("b.1")
    assert [("a.1", 0)] == [(each.id, each.died_ms) for each in setting.pending()]

    await world.let_go("a.1")
    await setting.gone("a.1")


class LiveClock(TestClock):
    """A clock that runs."""

    def monotonic_ms(self) -> int:
        """Return the machine's clock."""
        return time.monotonic_ns() // 1_000_000


async def test_the_timer_is_set_for_whatever_is_due_next() -> None:
    """The due time may precede that of the current timer; each job sets the timer again."""
    setting = setting_over(MemoryShard(), LiveClock())
    setting.shard.log.lead()
    world = setting.world
    world.room["swift"] = 0
    await setting.end("far", "near", "nearer")
    await setting.defer("far.1", 3_600_000)
    await setting.defer("near.1", 60)
    await setting.defer("nearer.1", 30)
    world.room["swift"] = ANY
    await world.until(lambda: len(world.begun) == 2)

    assert ["nearer.1", "near.1"] == world.begun
    await setting.stop()
