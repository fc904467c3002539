"""Walks: the lanes of a queue follow a new rule in steps, and none of these takes long."""

from __future__ import annotations

from codeq_cluster.core.decide import decide
from codeq_cluster.core.lane import Flow, PerKey
from codeq_cluster.core.lanes import WALK_CHANGES_MAX, WALK_PAUSE_MS
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import Advance, PutFlow, PutTopic
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task

from .shard import Shard

QUEUES = ("a", "b", "c")
TASKS = WALK_CHANGES_MAX // 2 + 2  # Of one key; all but one of them have to wait.


def test_the_walks_of_many_queues_share_a_step() -> None:
    """A restored shard begins with those of all its queues, which end one after the other."""
    shard = Shard()
    for queue in QUEUES:
        for number in range(TASKS):
            task_id = f"{queue}{number}"
            create = Create(id=task_id, tenant="acme", command=queue, payload="{}", key="k")
            shard.ask(CreateKeyed(create))
        topic = PutTopic(request=queue, tenant="acme", name=queue, by="ops")
        shard.ask(PutFlow(topic=topic, per_key=PerKey(), shards=1))
    steps: list[int] = []
    while any(isinstance(each, Flow) and each.expires_ms for each in shard.items(ItemKind.FLOW)):
        decision = decide(shard.view, Advance(count=100), shard.rules)
        steps.append(sum(isinstance(each.after, Task) for each in decision.changes))
        shard.view.advance(decision.changes)
        shard.view.now_ms += WALK_PAUSE_MS

    assert WALK_CHANGES_MAX == max(steps)
    assert len(QUEUES) * (TASKS - 1) == sum(steps)
    assert len(QUEUES) == sum(task.state is State.READY for task in shard.view.tasks.values())


def test_a_walk_moves_fewer_tasks_if_so_many_do_not_fit_an_entry() -> None:
    """Tasks with long histories are large; their walk goes on all the same."""
    shard = Shard()
    for number in range(4):
        task = Create(id=str(number), tenant="acme", command="a", payload="{}", key="k")
        shard.ask(CreateKeyed(task))
    topic = PutTopic(request="a", tenant="acme", name="a", by="ops")
    shard.ask(PutFlow(topic=topic, per_key=PerKey(), shards=1))
    steps: list[int] = []
    while (decision := decide(shard.view, Advance(count=1), shard.rules)).changes:
        steps.append(sum(isinstance(each.after, Task) for each in decision.changes))
        shard.view.advance(decision.changes)

    assert [1, 1, 1, 0] == steps
