"""Run ends: however a run ends, its schedule closes it once and goes on."""

from __future__ import annotations

from dataclasses import replace as with_rules

import pytest
from msgspec.structs import replace

from codeq_cluster.core.budget import Budget
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import item_fault
from codeq_cluster.core.operations import Purge, Requeue
from codeq_cluster.core.relays import Relay, Relayed, RelayedCancel, TakeRelays
from codeq_cluster.core.schedules import RECENT_MAX, Overlap, RunEnded, Schedule, schedule_shard
from codeq_cluster.core.sharding import with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task

from .scheduled import NAME, NOW_MS, TEMPLATE, Scheduled, given, row
from .shard import RULES

TIGHT = with_rules(RULES, budgets={"acme": Budget(waiting_max=2)})


@pytest.mark.parametrize(
    ("status", "noted"),
    [("COMPLETED", "COMPLETED"), ("FAILED", "FAILED"), ("CANCELLED", "CANCELLED")],
)
def test_an_end_is_noted(status: str, noted: str) -> None:
    """The run is among the recent ones, with how and when it ended."""
    shard = Scheduled()
    shard.fire(1)
    shard.view.now_ms += 5
    shard.end(1, status=status)

    assert () == shard.at.open
    assert [(noted, NOW_MS + 5)] == [(each.status, each.ended_ms) for each in shard.at.recent]


def test_a_purge_ends_runs() -> None:
    """As any cancel."""
    shard = Scheduled(overlap=Overlap.ALLOW)
    shard.fire(1, 2)
    ids = tuple(task.id for task in shard.runs())
    shard.ask(Purge(request="p", tenant="acme", queue="render", ids=ids, by="ops"))

    assert ((), ["CANCELLED"] * 2) == (shard.at.open, [each.status for each in shard.at.recent])


def test_a_lease_that_expires_for_the_last_time_ends_a_run() -> None:
    """The run is dead, which is a failure; the next one may begin."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2)
    shard.claim(lease_ms=5)
    shard.wait(5)

    assert ["DEAD"] == [each.status for each in shard.at.recent]
    assert ([2], 1) == (shard.open(), shard.at.failures)


def test_a_run_that_waits_too_long_ends() -> None:
    """By its time to live."""
    shard = Scheduled(task=replace(TEMPLATE, ttl_ms=7))
    shard.fire(1)
    shard.wait(7)

    assert (["DEAD"], ()) == ([each.status for each in shard.at.recent], shard.at.open)


def test_a_dead_run_that_is_revived_is_closed_for_the_schedule() -> None:
    """Its second end is not that of a run."""
    shard = Scheduled()
    shard.fire(1)
    shard.claim(lease_ms=5)
    shard.wait(5)
    task = shard.run(1)
    closed = shard.at
    shard.ask(Requeue(request="r", tenant="acme", ids=(task.id,), by="ops"))
    shard.end(1)

    assert State.DONE is shard.run(1).state
    assert closed == shard.at


def test_the_last_ends_alone_are_kept() -> None:
    """The newest at the end."""
    shard = Scheduled()
    for number in range(1, RECENT_MAX + 3):
        shard.fire(number)
        shard.end(number)

    assert list(range(3, RECENT_MAX + 3)) == [
        (each.at_ms - NOW_MS) // 60_000 for each in shard.at.recent
    ]


def test_failures_in_a_row_pause_a_schedule() -> None:
    """A completed run begins the count again, a cancelled one leaves it as it is."""
    shard = Scheduled(pause_after=2)
    for number, status in enumerate(["FAILED", "COMPLETED", "FAILED", "CANCELLED"], start=1):
        shard.fire(number)
        shard.end(number, status=status)
    before = shard.at
    shard.fire(5)
    shard.end(5, status="FAILED")

    assert (1, 0) == (before.failures, before.paused_ms)
    assert (2, "failures") == (shard.at.failures, shard.at.paused_by)
    assert (shard.view.now_ms, 0) == (shard.at.paused_ms, shard.at.fires_ms)


def test_several_ends_of_one_decision_write_the_schedule_once() -> None:
    """A purge of all open runs, of which the last lets the next one begin."""
    shard = Scheduled(overlap=Overlap.ALLOW)
    shard.fire(1, 2)
    shard.put(overlap=Overlap.QUEUE)
    shard.fire(3, 4)
    ids = tuple(task.id for task in shard.runs())
    purge = Purge(request="p", tenant="acme", queue="render", ids=ids, by="ops")
    decision = decide(shard.view, purge, shard.rules)
    shard.view.advance(decision.changes)
    written = [each for each in decision.changes if isinstance(each.after, Schedule)]

    assert 1 == len(written)
    assert ([3], [4]) == (shard.open(), shard.queued())


def test_a_run_that_waits_is_passed_over_if_its_task_is_there() -> None:
    """As after a restore: those behind it must not wait for an end that has been."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1)
    shard.end(1)
    shard.fire(2, 3)
    given(shard, queued=(row(1, task_id=""), *shard.at.queued))
    shard.end(2)

    assert ([3], []) == (shard.open(), shard.queued())


# A run on another shard, as a restore may leave it.

ELSEWHERE = with_rules(RULES, shards=2)


def moved(shard: Scheduled) -> Task:
    """Move the run of minute 1 to the shard that is not its schedule's; return its task."""
    home = schedule_shard("acme", NAME, 2)
    task = shard.view.tasks.pop(shard.run(1).id)
    there = replace(task, id=with_shard(task.id, shards=2, wanted=1 - home))
    shard.view.tasks[there.id] = there
    shard.view._payloads[there.id] = "{}"
    return there


def test_the_end_of_a_run_on_another_shard_is_relayed() -> None:
    """Its schedule may be there; it cannot be asked in this decision."""
    shard = Scheduled(ELSEWHERE)
    shard.fire(1)
    home, task = schedule_shard("acme", NAME, 2), moved(shard)
    shard.end(1)
    [relay] = shard.items(ItemKind.RELAY)

    assert isinstance(relay, Relay)
    assert (home, f"{task.id}.1.100") == (relay.to, relay.id)
    assert task.more is not None
    assert relay.effect == RunEnded(
        tenant="acme", run=task.more.run, status="COMPLETED", ended_ms=NOW_MS
    )
    assert "" == item_fault(relay)
    assert [1] == shard.open()


def test_a_revived_run_on_another_shard_is_relayed_once() -> None:
    """Its schedule has heard of its end, and of no other."""
    shard = Scheduled(ELSEWHERE)
    shard.fire(1)
    task = moved(shard)
    shard.claim(lease_ms=5)
    shard.wait(5)
    before = shard.items(ItemKind.RELAY)
    shard.ask(Requeue(request="r", tenant="acme", ids=(task.id,), by="ops"))
    shard.end(1)

    assert State.DONE is shard.task(task.id).state
    assert 1 == len(before)
    assert before == shard.items(ItemKind.RELAY)


def test_the_relayed_end_closes_the_run_and_begins_the_next() -> None:
    """The task that begins is made in the entry that takes the relay."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2)
    run = shard.run(1).more.run  # type: ignore[union-attr]
    end = RunEnded(tenant="acme", run=run, status="FAILED", ended_ms=77)
    other = replace(end, run=replace(run, generation=run.generation + 1))
    shard.ask(TakeRelays(origin=1, after=0, relays=(Relayed(1, other),)))
    untouched = shard.open()
    shard.ask(TakeRelays(origin=1, after=1, relays=(Relayed(2, end),)))
    shard.ask(TakeRelays(origin=1, after=1, relays=(Relayed(2, end),)))

    assert [1] == untouched
    assert ([2], 1) == (shard.open(), shard.at.failures)
    assert [("FAILED", 77)] == [(each.status, each.ended_ms) for each in shard.at.recent]
    assert State.READY is shard.run(2).state


def test_a_run_that_ends_and_one_that_is_cancelled_by_relays_are_of_one_schedule() -> None:
    """A shard of a cluster that was restored to fewer shards may have relays for itself."""
    shard = Scheduled(overlap=Overlap.QUEUE)
    shard.fire(1, 2, 3)
    shard.trigger("x", Overlap.ALLOW)
    run = shard.run(1).more
    assert run is not None
    assert run.run is not None
    end = RunEnded(tenant="acme", run=run.run, status="COMPLETED", ended_ms=NOW_MS)
    cancel = RelayedCancel("acme", shard.run("x").id, "c")
    taking = TakeRelays(origin=0, after=0, relays=(Relayed(1, end), Relayed(2, cancel)))
    decision = decide(shard.view, taking, RULES)
    changed = [each.after for each in decision.changes if isinstance(each.after, Schedule)]
    shard.ask(taking)

    assert [shard.at] == changed
    assert ([2], [3]) == (shard.open(), shard.queued())
    assert ["COMPLETED", "CANCELLED"] == [each.status for each in shard.at.recent]
