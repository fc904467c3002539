"""Tags over the deaths of leaders, on virtual time and network."""

from __future__ import annotations

import asyncio

import pytest

from codeq_cluster.broker.questions import BrowseTags
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import entries, keyspace
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.codec.tag_keys import tag_keys
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Created, Tagged
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.tags import ChangeTags
from codeq_cluster.core.task import Task
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import InvariantBroken

from .moves import SHARDS, asked, at_rest, kill_leader
from .test_lanes import claimed, ended

USER = ("user", "42")


def created(brokers: SimBrokers, node_id: str, **tags: str) -> Task:
    """Create a task with tags."""
    new = Create(command="mail", payload="1", tags=tuple(sorted(tags.items())))
    [answer] = asked(brokers, node_id, lambda broker: broker.create("", [new], timeout_s=4))
    assert isinstance(answer, Created)
    return answer.task


def listed(brokers: SimBrokers, node_id: str, *tags: tuple[str, str]) -> list[str]:
    """Return the tasks with all of these tags, the newest first."""
    wanted = BrowseTags(
        tenant="", tags=tags, queue="", places=tuple(QueuePlace), after=b"", count=100
    )

    async def ask(broker: Broker) -> list[str]:
        deadline = asyncio.get_running_loop().time() + 4
        found, edge = await broker.operators.tasks(wanted, deadline=deadline)
        assert not edge
        return [each.task.id for each in found]

    return asked(brokers, node_id, ask)


def test_lists_hold_over_the_deaths_of_leaders(brokers: SimBrokers) -> None:
    """Rows of tags are written with their tasks, changed with them and deleted with them."""
    tasks = [created(brokers, "ABC"[number % 3], user="42", env="test") for number in range(6)]
    first, last = tasks[0], tasks[-1]
    kill_leader(brokers, shard_of(first.id, SHARDS))
    change = ChangeTags(id=first.id, tenant="", put=(("env", "prod"),), remove=())
    changed = asked(brokers, "B", lambda broker: broker.change_tags(change, timeout_s=4))
    kill_leader(brokers, shard_of(first.id, SHARDS))
    [one, *_] = claimed(brokers, "C")
    ended(brokers, "C", one)
    drop = ChangeTags(id=last.id, tenant="", put=(), remove=("user", "env"))
    dropped = asked(brokers, "A", lambda broker: broker.change_tags(drop, timeout_s=4))
    kill_leader(brokers, shard_of(last.id, SHARDS))
    at_rest(brokers)

    assert Tagged(first.id, (("env", "prod"), USER)) == changed
    assert Tagged(last.id, ()) == dropped
    newest = sorted(tasks[:-1], key=lambda task: (-task.created_ms, task.id))
    assert [task.id for task in newest] == listed(brokers, "C", USER)
    assert [first.id] == listed(brokers, "A", USER, ("env", "prod"))
    assert {task.id for task in tasks[1:-1]} == set(listed(brokers, "B", ("env", "test")))


def test_a_deleted_task_takes_its_rows_along(brokers: SimBrokers) -> None:
    """The entry that deletes it deletes them; W21 sees each one."""
    gone, stays = created(brokers, "A", user="42"), created(brokers, "B", user="42")
    for task in claimed(brokers, "C"):
        ended(brokers, "C", task)

    async def clean_up(broker: Broker) -> int:
        caller = Caller("", "ops", asyncio.get_running_loop().time() + 4)
        return await broker.operators.cleanup(caller, before_ms=2**40 * 4, limit=1)

    assert 1 == asked(brokers, "A", clean_up)
    assert 1 == len({gone.id, stays.id} & set(listed(brokers, "B", USER)))


@pytest.mark.parametrize("change", ["a row too many", "a row is missing", "a row is left"])
def test_rows_that_their_tasks_contradict_are_noticed(brokers: SimBrokers, change: str) -> None:
    """W21 reads every entry."""
    task = created(brokers, "A", user="42")
    [row] = tag_keys(task)
    shard = shard_of(task.id, SHARDS)
    rows: dict[bytes, bytes | None] = {
        "a row too many": {row.replace(task.id.encode(), b"other"): b""},
        "a row is missing": {row: None},
        "a row is left": {keyspace.task(task.id): None},
    }[change]
    entry = entries.encode(entries.Entry(9, 1, 1, 1, rows), level=LEVEL)

    with pytest.raises(InvariantBroken, match=r"^W21 .* is not as its task says"):
        brokers.watches[shard].applied("A", 10_000, 9, entry)
