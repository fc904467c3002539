"""Claims of any command get the tasks in the same order as a walk over all queues would."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.broker.engine.view import ShardView
from codeq_cluster.core.fairness import Turns
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    DeleteTopic,
    Operation,
    PauseQueue,
    PutTopic,
    ResumeQueue,
    Submit,
)
from codeq_cluster.core.outcomes import Claimed, Outcome
from codeq_cluster.core.task import State, Task
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard

TENANT = "acme"
QUEUES = ["a", "b", "c", "d", "e"]

KINDS = [
    *["create"] * 8,
    *["claim any"] * 10,
    *["claim named"] * 2,
    *["give back", "finish", "cancel"],
    *["pause", "resume", "resume", "limit", "limit", "free"],
    *["wait", "hold", "release", "release", "follow", "lead", "lead", "lead"],
]


@dataclass(frozen=True)
class Step:
    """One event; `number` is its size."""

    what: str
    queue: str
    number: int
    priority: int


steps = st.lists(
    st.builds(
        Step,
        st.sampled_from(KINDS),
        st.sampled_from(QUEUES),
        st.sampled_from([1, 1, 1, 2, 3, 5]),
        st.sampled_from([0, 0, 0, 1, 9]),
    ),
    min_size=20,
    max_size=50,
)


@dataclass
class Story:
    """One shard, and a walk over all its tasks as the reference."""

    shard: Shard = field(default_factory=lambda: make_shard(MemoryShard(), TestClock()))
    ids: list[str] = field(default_factory=list)
    requests: int = 0
    waiting: list[asyncio.Future[list[Outcome]]] = field(default_factory=list)

    async def take(self, step: Step) -> None:
        """Apply the step, and compare the node's answers with the walk."""
        await self._happen(step)
        heads = [
            (-task.priority, task.seq)
            for queue, line in self._lines().items()
            if self._left(queue) > 0
            for task in line[:1]
        ]
        head = self.shard.engine.head(TENANT, ())

        assert (head and (-head.priority, head.seq)) == min(heads, default=None)

    async def _happen(self, step: Step) -> None:
        match step.what:
            case "hold" | "release" | "follow" | "lead":
                await self._turn_log(step.what)
            case "wait":
                self.shard.clock.pass_ms(15 * step.number)
                await self._ask(Advance(count=100))
            case "claim any" | "claim named":
                await self._claim(step)
            case _:
                for operation in self._operations(step):
                    await self._ask(operation)

    async def settle(self) -> None:
        """Commit every decision in flight."""
        if self.shard.log.held:
            self.shard.log.release()
        await asyncio.gather(*self.waiting)
        self.waiting.clear()

    async def _turn_log(self, what: str) -> None:
        leads, log = self.shard.engine.leads, self.shard.log
        if what == "hold":
            log.held = True
        elif what == "release" and log.held:
            log.release()
        elif what == "follow" and leads:
            await self.settle()
            log.depose("n2")
        elif what == "lead" and not leads:
            log.lead()

    def _operations(self, step: Step) -> list[Operation]:
        queue = step.queue
        match step.what:
            case "create":
                made = [f"{self._request()}-{number}" for number in range(step.number)]
                self.ids += made
                return [
                    create(
                        task_id,
                        command=queue,
                        priority=step.priority,
                        ttl_ms=40 if number == 1 else 0,
                        delay_ms=20 if number == 2 else 0,
                    )
                    for number, task_id in enumerate(made)
                ]
            case "give back" | "finish" | "cancel":
                return [self._ended(step.what, task) for task in self._leased()[: step.number]]
            case "pause":
                return [PauseQueue(request=self._request(), tenant=TENANT, queue=queue, by="op")]
            case "resume":
                return [ResumeQueue(request=self._request(), tenant=TENANT, queue=queue, by="op")]
            case "limit":
                return [
                    PutTopic(
                        request=self._request(),
                        tenant=TENANT,
                        name=queue,
                        by="op",
                        max_consumers=step.number,
                        weight=1 + step.priority,
                    )
                ]
            case _:
                return [DeleteTopic(request=self._request(), tenant=TENANT, name=queue, by="op")]

    def _ended(self, how: str, task: Task) -> Operation:
        request = self._request()
        if how == "give back":
            return Abandon(request=request, id=task.id, tenant=TENANT, worker="ann")
        if how == "cancel":
            return Cancel(request=request, id=task.id, tenant=TENANT)
        return Submit(
            request=request,
            id=task.id,
            tenant=TENANT,
            worker="ann",
            status="COMPLETED",
            body="{}",
        )

    async def _claim(self, step: Step) -> None:
        if not self.shard.engine.leads:
            return
        named = [QUEUES[(QUEUES.index(step.queue) + each) % len(QUEUES)] for each in (0, 3, 1)]
        asked = claim(
            self._request(),
            count=step.number,
            commands=tuple(named) if step.what == "claim named" else (),
        )
        expected = self._walk(asked)
        answered = self._begin(asked)

        assert sorted(expected) == sorted(self._view().claimed_under(asked.request))
        if answered.done():
            [outcome] = answered.result()
            assert isinstance(outcome, Claimed)
            assert expected == [task.id for task in outcome.tasks]

    def _walk(self, asked: Claim) -> list[str]:
        """Return the tasks that a claim must get: each time the best first task of all queues."""
        view, now_ms = self._view(), self.shard.engine.now_ms
        turns: Turns = deepcopy(view.turns(TENANT))
        lines = {
            queue: [task for task in line if not 0 < task.expires_ms <= now_ms]
            for queue, line in self._lines().items()
        }
        names = list(asked.commands) or sorted(lines)
        left = {queue: self._left(queue) for queue in names}
        got: list[str] = []
        while len(got) < asked.count:
            heads = {
                queue: lines[queue][0] for queue in names if lines.get(queue) and left[queue] > 0
            }
            if not heads:
                break
            best = max(task.priority for task in heads.values())
            queue = turns.due(queue for queue, task in heads.items() if task.priority == best)
            if len(names) > 1:
                turns.served(queue, weight=view.policy(TENANT, queue).weight)
            left[queue] -= 1
            got.append(lines[queue].pop(0).id)
        return got

    def _lines(self) -> dict[str, list[Task]]:
        """Return the ready tasks of every queue, searched among all tasks ever created."""
        found: dict[str, list[Task]] = {}
        for task in self._tasks():
            if task.state is State.READY:
                found.setdefault(task.command, []).append(task)
        for line in found.values():
            line.sort(key=lambda task: (-task.priority, task.seq))
        return found

    def _left(self, queue: str) -> int:
        leased = sum(task.command == queue and task.state is State.LEASED for task in self._tasks())
        return self._view().policy(TENANT, queue).claimable(1000, lambda: leased)

    def _leased(self) -> list[Task]:
        return [task for task in self._tasks() if task.state is State.LEASED]

    def _tasks(self) -> list[Task]:
        view = self._view()
        found = {task_id: view.task(task_id) for task_id in self.ids}
        if not self.shard.log.held:
            # Ended tasks stay ended.
            self.ids = [
                task_id for task_id, task in found.items() if task and not task.state.terminal
            ]
        return [task for task in found.values() if task is not None]

    def _view(self) -> ShardView:
        return self.shard.engine.view

    def _request(self) -> str:
        self.requests += 1
        return f"r{self.requests}"

    def _begin(self, operation: Operation) -> asyncio.Future[list[Outcome]]:
        """Claim without yielding to the loop, so that nothing happens between look and decision."""
        answered: asyncio.Future[list[Outcome]] = asyncio.get_running_loop().create_future()
        self.shard.engine.begin([operation], answered)
        self.waiting.append(answered)
        return answered

    async def _ask(self, operation: Operation) -> None:
        """Claim, and wait for the answer unless the log is held."""
        if self.shard.engine.leads:
            answered = self._begin(operation)
            if not self.shard.log.held:
                await answered


@given(steps=steps)
@settings(max_examples=60, deadline=None)
def test_any_command_is_every_command_that_has_work(steps: list[Step]) -> None:
    """It holds on a leader, on a follower, after a change of leader, and without any commit."""

    async def live() -> None:
        story = Story()
        story.shard.log.lead()
        for step in steps:
            await story.take(step)
        await story.settle()
        story.shard.engine.stop()

    asyncio.run(live())
