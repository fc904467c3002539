"""Keyed runs: a run goes to the shard of its key by a relay, and its end comes back by another."""

from __future__ import annotations

from dataclasses import replace as with_rules

from msgspec.structs import replace

from codeq_cluster.core.operations import Requeue
from codeq_cluster.core.outcomes import Taken
from codeq_cluster.core.relays import Relay, TakeRelays, relayed
from codeq_cluster.core.schedules import Overlap, schedule_shard
from codeq_cluster.core.sharding import shard_of, shard_of_lane
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State

from .scheduled import NAME, TEMPLATE, Scheduled, minute
from .shard import LEASE_MS, RULES, Shard, submit

HOME = schedule_shard("acme", NAME, 2)
AWAY = 1 - HOME
KEY = next(key for n in range(99) if shard_of_lane("acme", "render", key := f"k{n}", 2) == AWAY)
TWO_SHARDS = with_rules(RULES, shards=2)


class Pair:
    """The shard of a schedule and that of its runs' key."""

    def __init__(self, overlap: Overlap) -> None:
        self.home = Scheduled(TWO_SHARDS, task=replace(TEMPLATE, key=KEY), overlap=overlap)
        self.away = Shard(TWO_SHARDS)
        self._sent = {HOME: 0, AWAY: 0}

    def deliver(self) -> None:
        """Send what either shard has for the other, until nothing is left."""
        shards: dict[int, Shard] = {HOME: self.home, AWAY: self.away}
        while sum(self._deliver(origin, shards) for origin in shards):
            pass

    def _deliver(self, origin: int, shards: dict[int, Shard]) -> bool:
        line = [each for each in shards[origin].items(ItemKind.RELAY) if isinstance(each, Relay)]
        last = self._sent[origin]
        new = sorted((each for each in line if each.number > last), key=lambda each: each.number)
        if not new:
            return False
        sent = TakeRelays(origin=origin, after=last, relays=tuple(map(relayed, new)))
        assert Taken(new[-1].number) == shards[1 - origin].ask(sent)
        assert Taken(new[-1].number) == shards[1 - origin].ask(sent)
        self._sent[origin] = new[-1].number
        return True


def test_a_run_with_a_key_of_another_shard_is_made_there_and_is_open_until_its_end() -> None:
    """The schedule knows of the end by a relay, and then the next one begins."""
    pair = Pair(Overlap.SKIP)
    pair.home.fire(1)
    pair.deliver()
    [task_id] = pair.away.claim()
    pair.home.fire(2)
    skipped = pair.home.at.skipped
    pair.away.ask(submit(id=task_id))
    pair.deliver()
    pair.home.fire(3)
    pair.deliver()

    assert AWAY == shard_of(task_id, 2)
    assert {} == pair.home.view.tasks
    assert 1 == skipped
    assert ["COMPLETED"] == [each.status for each in pair.home.at.recent]
    assert [str(minute(3))] == [each.name for each in pair.home.at.open]
    assert 2 == len(pair.away.view.tasks)


def test_a_run_is_cancelled_where_it_is_for_the_next_one() -> None:
    """If the run itself has not come yet, there is nothing to make."""
    pair = Pair(Overlap.CANCEL)
    pair.home.fire(1)
    pair.deliver()
    [first] = pair.away.claim()
    pair.home.fire(2)
    pair.home.fire(3)
    pair.deliver()

    assert State.FAILED is pair.away.task(first).state
    assert "CANCELLED" == pair.away.task(first).error
    waiting = [task for task in pair.away.view.tasks.values() if not task.state.terminal]
    assert [minute(3)] == [task.more.run.at_ms for task in waiting if task.more and task.more.run]
    assert 2 == len(pair.away.view.tasks)
    assert ["CANCELLED", "CANCELLED"] == [each.status for each in pair.home.at.recent]


def test_an_instant_that_is_filled_in_again_ends_at_once_if_its_task_has() -> None:
    """Otherwise it would be open for ever, since a task reports its end once."""
    pair = Pair(Overlap.QUEUE)
    pair.home.fire(1)
    pair.deliver()
    [task_id] = pair.away.claim()
    pair.away.ask(submit(id=task_id))
    pair.deliver()
    pair.home.backfill(2)
    pair.home.fill(1, 2)
    pair.deliver()
    kept = [each.name for each in pair.home.at.open]

    assert [str(minute(2))] == kept


def test_an_instant_that_is_filled_in_again_ends_at_once_if_its_task_was_revived() -> None:
    """The task has reported its death, and reports no later end."""
    pair = Pair(Overlap.SKIP)
    pair.home.fire(1)
    pair.deliver()
    [task_id] = pair.away.claim()
    pair.away.wait(LEASE_MS)
    pair.deliver()
    pair.away.ask(Requeue(request="r", tenant="acme", ids=(task_id,), by="ops"))
    pair.home.backfill(1)
    pair.home.fill(1)
    pair.deliver()

    assert State.READY is pair.away.task(task_id).state
    assert ((), ["DEAD", "DEAD"]) == (
        pair.home.at.open,
        [each.status for each in pair.home.at.recent],
    )
