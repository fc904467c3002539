"""Schedules: one story for each way in which a leader's death could lose a run or double it."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from msgspec.structs import replace

from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.schedules import Overlap, Schedule
from codeq_cluster.core.task import State, Task
from codeq_cluster.firing.firer import ScheduleFirer
from tests.simulation.stage_schedules import SECONDLY, Crowd, Scheduled
from tests.simulator import broker as simulated
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import Invariant, InvariantBroken
from tests.simulator.scenes import settled_brokers

from .moves import SHARDS

LOAD_S = 15.0
SEEDS = range(6)


def leader(scheduled: Scheduled) -> str:
    """Return the leader of the schedule's shard."""
    found = scheduled.brokers.leader(scheduled.shard())
    assert found is not None
    return found


def others(scheduled: Scheduled) -> list[str]:
    """Return the nodes that do not lead the schedule's shard."""
    return [node_id for node_id in scheduled.brokers.ids if node_id != leader(scheduled)]


def broken(invariant: Invariant) -> pytest.RaisesExc[InvariantBroken]:
    """Expect the given invariant to be found broken."""
    return pytest.raises(InvariantBroken, match=f"^{invariant.name} ")


def test_a_schedule_fires_every_second(brokers: SimBrokers) -> None:
    """Its tasks are worked off at any node."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(5)
    worked = [scheduled.worked_off(node_id) for node_id in ("A", "B", "C")]
    scheduled.calm()

    assert [True] * 3 == worked
    assert list(range(len(scheduled.instants()))) == scheduled.instants()
    assert len(scheduled.instants()) >= 5


@pytest.mark.parametrize("power", [True, False], ids=["power", "kill"])
def test_the_next_leader_misses_no_instant(brokers: SimBrokers, power: bool) -> None:
    """Those that were due while nobody led are fired by it, in time."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(3)
    for _ in range(3):
        dead = leader(scheduled)
        brokers.crash(dead, power=power)
        brokers.run(4)
        brokers.start(dead)
    scheduled.calm()

    instants = scheduled.instants()
    assert list(range(len(instants))) == instants
    assert len(instants) >= 15
    assert 0 == scheduled.at().missed


def test_a_leader_that_is_cut_off_fires_nothing_that_counts(brokers: SimBrokers) -> None:
    """It decides instants that no other node hears of; its successor decides them again."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(2)
    alone, peers = leader(scheduled), others(scheduled)
    brokers.cut({wire for peer in peers for wire in ((alone, peer), (peer, alone))})
    brokers.run(8)
    scheduled.calm()

    instants = scheduled.instants()
    assert list(range(len(instants))) == instants
    assert len(instants) >= 10


def test_an_outage_of_all_nodes_is_decided_by_the_policy(brokers: SimBrokers) -> None:
    """Longer than a minute: what is late is one run, and the others are missed."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(2)
    for node_id in brokers.ids:
        brokers.crash(node_id, power=True)
    brokers.run(90)
    scheduled.calm()
    at = scheduled.at()
    late = [run for run in brokers.schedules.runs if run.late]

    assert 1 == len(late)
    assert at.missed > 20
    assert at.made + at.missed == scheduled.instants()[-1] + 1


def test_a_leader_whose_clock_is_behind_fires_nothing_twice(brokers: SimBrokers) -> None:
    """It waits until its clock is where the last one's was."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(4)
    before = scheduled.instants()
    dead = leader(scheduled)
    for node_id in others(scheduled):
        brokers.move_clock(node_id, -10_000)
    brokers.crash(dead, power=False)
    brokers.run(6)
    behind = scheduled.instants()
    for node_id in brokers.ids:
        brokers.move_clock(node_id, 0)
    brokers.start(dead)
    brokers.run(2)
    scheduled.calm()

    assert before == behind
    assert list(range(len(scheduled.instants()))) == scheduled.instants()


def test_an_edit_fires_nothing_again(brokers: SimBrokers) -> None:
    """Another calendar begins at once, and the leader dies with it."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(3)
    every_two = replace(SECONDLY, timing=replace(SECONDLY.timing, every="2s"))
    edited = scheduled.made(others(scheduled)[0], plan=every_two)
    dead = leader(scheduled)
    brokers.crash(dead, power=True)
    brokers.run(6)
    scheduled.calm()
    runs = [run.at_ms for run in brokers.schedules.runs]
    since = [at_ms for at_ms in runs if at_ms > edited.done_ms]

    assert sorted(set(runs)) == runs
    assert {2000} == {later - sooner for sooner, later in pairwise(since)}


def test_a_pause_outlives_its_leader(brokers: SimBrokers) -> None:
    """And a resume that catches up fires what the pause kept back."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(2)
    scheduled.did("B", "pause")
    paused = scheduled.instants()
    dead = leader(scheduled)
    brokers.crash(dead, power=True)
    brokers.run(5)
    still = scheduled.instants()
    scheduled.did(others(scheduled)[0], "resume")
    brokers.run(2)
    scheduled.calm()

    assert paused == still
    assert list(range(len(scheduled.instants()))) == scheduled.instants()


def test_a_queue_goes_on_under_the_next_leader(brokers: SimBrokers) -> None:
    """One run after the other; each end begins the next in its own entry."""
    scheduled = Scheduled(brokers)
    scheduled.made("A", plan=replace(SECONDLY, overlap=Overlap.QUEUE))
    brokers.run(5)
    scheduled.did("A", "pause")
    waiting = len(scheduled.at().queued)
    for _ in range(waiting):
        scheduled.worked_off(others(scheduled)[0])
        brokers.crash(dead := leader(scheduled), power=True)
        brokers.run(3)
        brokers.start(dead)
    scheduled.calm()

    assert waiting >= 3
    assert () == scheduled.at().queued
    assert 1 == len(scheduled.at().open)


def test_a_deleted_schedule_stays_deleted(brokers: SimBrokers) -> None:
    """A new one of its name begins behind it, and makes tasks of its own."""
    scheduled = Scheduled(brokers)
    first = scheduled.made("A")
    brokers.run(2)
    scheduled.did("B", "delete")
    brokers.crash(leader(scheduled), power=True)
    brokers.run(3)
    gone = list(brokers.schedules.all)
    second = scheduled.made(others(scheduled)[0])
    brokers.run(3)
    scheduled.calm()

    assert [] == gone
    assert second.generation > first.generation
    assert second.done_ms > first.done_ms


@pytest.mark.parametrize("seed", SEEDS)
def test_people_and_faults_at_random_break_nothing(seed: int) -> None:
    """Schedules of every overlap, while nodes die, are cut off and stand still."""
    assert play(seed) > 10


def play(seed: int) -> int:
    """Play one seed; return how many deeds were answered.

    Raises:
        InvariantBroken: An invariant does not hold.
    """
    random = Random(seed)
    brokers = settled_brokers(shards=SHARDS)
    try:
        crowd = Crowd(Scheduled(brokers), random)
        until = brokers.clock.now + LOAD_S
        loads = [
            brokers.outside.create_task(work(until))
            for work in (crowd.meddle, crowd.meddle, crowd.work, crowd.work)
        ]
        dead: dict[str, float] = {}
        while brokers.clock.now < until:
            brokers.run(0.02)
            _strike(brokers, random, dead)
        for node_id in dead:
            brokers.start(node_id)
        brokers.cut(set())
        assert brokers.run_until(lambda: all(load.done() for load in loads), seconds=30)
        for load in loads:
            load.result()
        Scheduled(brokers).calm()
        return crowd.answered
    finally:
        brokers.close()


def _strike(brokers: SimBrokers, random: Random, dead: dict[str, float]) -> None:
    """Let a node die, stand still or be cut off now and then, and let the dead return."""
    for node_id, back in list(dead.items()):
        if back <= brokers.clock.now:
            del dead[node_id]
            brokers.start(node_id)
    chosen = brokers.leader(random.randrange(SHARDS)) or random.choice(brokers.ids)
    if random.random() < 0.006 and chosen in brokers.nodes:
        brokers.crash(chosen, power=random.random() < 0.5)
        dead[chosen] = brokers.clock.now + random.uniform(0.1, 3.0)
    elif random.random() < 0.004 and chosen in brokers.nodes:
        brokers.pause(chosen, random.choice((0.5, 3.0)))
    elif random.random() < 0.004:
        peers = [peer for peer in brokers.ids if peer != chosen]
        brokers.cut({wire for peer in peers for wire in ((chosen, peer), (peer, chosen))})
    elif random.random() < 0.008:
        brokers.cut(set())


class Forgetful(ScheduleFirer):
    """A leader that waits for new rows, and does not look at those that are there."""

    def look(self) -> None:
        """Forget everything."""


def test_a_leader_that_forgets_the_next_instants_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its schedules are overdue once everything else is well."""
    monkeypatch.setattr(simulated, "ScheduleFirer", Forgetful)
    brokers = settled_brokers(shards=SHARDS)
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(2)
    brokers.crash(leader(scheduled), power=True)
    brokers.run(3)

    with broken(Invariant.W13):
        scheduled.calm()
    brokers.close()


def committed(scheduled: Scheduled, rows: dict[bytes, bytes | None]) -> None:
    """Report an entry of the schedule's shard that writes these rows."""
    watch = scheduled.brokers.watches[scheduled.shard()]
    payload = entries.encode(entries.Entry(1, 1, 1, 1, rows), level=LEVEL)
    watch.applied("A", max(watch._entries) + 1, 1, payload)


def row_of(at: Schedule) -> dict[bytes, bytes | None]:
    """Return the rows of a schedule."""
    rows: dict[bytes, bytes | None] = {
        keyspace.item(keyspace.ItemKind.SCHEDULE, at.tenant, at.id): records.encode(at)
    }
    return rows


def run_of(scheduled: Scheduled) -> Task:
    """Return a run's task, as node A has it."""
    [task_id, *_] = scheduled.brokers.schedules.alive(scheduled.shard())
    state = scheduled.brokers.nodes["A"].states[scheduled.shard()]
    record = state.get(keyspace.task(task_id))
    assert record is not None
    return records.decode_task(record)


@pytest.fixture
def scheduled(brokers: SimBrokers) -> Scheduled:
    """Return a cluster with a paused schedule that has made runs."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    brokers.run(3)
    scheduled.did("A", "pause")
    scheduled.calm()
    return scheduled


@pytest.mark.parametrize("lost", [True, False], ids=["lost", "too many"])
def test_w13_a_schedule_without_its_timer(brokers: SimBrokers, lost: bool) -> None:
    """Each schedule that is to fire has its row, and no row is without a schedule."""
    scheduled = Scheduled(brokers)
    scheduled.made("A")
    [key] = brokers.schedules.timers(scheduled.shard())
    rows: dict[bytes, bytes | None] = {key: None} if lost else {key[:-1]: b""}

    with broken(Invariant.W13):
        committed(scheduled, rows)


def test_w13_a_timer_before_what_is_decided(scheduled: Scheduled) -> None:
    """It would fire what has fired."""
    at = scheduled.at()

    with broken(Invariant.W13):
        committed(scheduled, row_of(replace(at, next_ms=at.done_ms)))


def test_w14_a_run_that_is_made_again(scheduled: Scheduled) -> None:
    """Also if the task of the one before was deleted."""
    task = run_of(scheduled)
    committed(scheduled, {keyspace.task(task.id): None})

    with broken(Invariant.W14):
        committed(scheduled, {keyspace.task(task.id): records.encode(task)})


@pytest.mark.parametrize("seconds", [-1, 1], ids=["back", "one is lost"])
def test_w15_an_instant_that_is_decided_twice_or_never(scheduled: Scheduled, seconds: int) -> None:
    """The counts do not agree with the calendar."""
    at = scheduled.at()
    done_ms = at.done_ms + seconds * 1000

    with broken(Invariant.W15):
        committed(scheduled, row_of(replace(at, done_ms=done_ms, next_ms=done_ms + 1000)))


@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.QUEUE, Overlap.CANCEL])
def test_w16_runs_side_by_side(scheduled: Scheduled, overlap: Overlap) -> None:
    """Of a schedule that lets one run at a time."""
    at = scheduled.at()

    with broken(Invariant.W16):
        committed(scheduled, row_of(replace(at, plan=replace(at.plan, overlap=overlap))))


def test_w16_a_run_that_its_schedule_does_not_know(scheduled: Scheduled) -> None:
    """It has not ended, and is not among the open ones."""
    at = scheduled.at()
    assert State.READY is run_of(scheduled).state

    with broken(Invariant.W16):
        committed(scheduled, row_of(replace(at, open=at.open[1:])))
