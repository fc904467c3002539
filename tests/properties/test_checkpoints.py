"""Checkpoints: each stands until no delivery can get it, and goes wherever its task goes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.core.checkpoint import Checkpoint, Report
from codeq_cluster.core.decide import decide
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.operations import Cancel, Delete, Operation, Revise
from codeq_cluster.core.outcomes import Changed, Extended
from codeq_cluster.core.task import State

from .backup_worlds import RULES, World
from .test_keyed_backups import items_in, restored

seeds = st.integers(0, 2**32)


class ReportingWorld(World):
    """A world of little but reports, beside the obvious model of what stands."""

    def __init__(self, shards: int, seed: int) -> None:
        super().__init__(shards, seed)
        self.model: dict[str, str] = {}

    def live(self, steps: int) -> None:
        """Run random operations."""
        for step in range(steps):
            does = [self._create, *[self._claim] * 5, *[self._report] * 3, *[self._fail] * 3]
            does += [self._end, self._wait, self._requeue, self._meddle, self._meddle]
            self.random.choice(does)(str(step))

    def _fail(self, name: str) -> None:
        for shard, task in self._held():
            nack = Nack(request=name, id=task.id, tenant=task.tenant, worker=task.worker)
            self._ask(shard, nack)

    def _meddle(self, name: str) -> None:
        """Let an operator or a producer change a task that has a checkpoint."""
        tasks = self.tasks()
        dead = [each for each in sorted(self.model) if tasks[each].state is State.DEAD]
        among = dead or sorted(self.model)
        for task_id in self.random.sample(among, min(1, len(among))):
            task = tasks[task_id]
            operations: list[Operation] = [
                Cancel(request=name, id=task_id, tenant=task.tenant),
                Delete(request=name, tenant=task.tenant, ids=(task_id,), by="op"),
                Revise(
                    request=name,
                    tenant=task.tenant,
                    id=task_id,
                    by="op",
                    payload="[]",
                    endings=task.endings,
                ),
            ]
            if task.state is State.DEAD and self.random.random() < 0.7:
                operations = operations[-1:]
            shard = next(n for n, view in enumerate(self.views) if task_id in view.tasks)
            self._ask(shard, self.random.choice(operations))

    def _ask(self, shard: int, operation: Operation) -> None:
        view = self.views[shard]
        decision = decide(view, operation, RULES)
        view.advance(decision.changes)
        if isinstance(operation, Report) and operation.checkpoint:
            assert isinstance(decision.outcome, Extended)
            self.model[operation.id] = operation.checkpoint
        if isinstance(operation, Revise) and decision.outcome == Changed(1):
            self.model.pop(operation.id, None)
        for task_id in list(self.model):
            task = self.tasks().get(task_id)
            if task is None or task.state in (State.DONE, State.FAILED):
                del self.model[task_id]
        assert self.standing() == self.model
        assert self.sizes() == {name: len(text.encode()) for name, text in self.model.items()}

    def standing(self) -> dict[str, str]:
        """Return the text of each checkpoint, by task."""
        items = [item for view in self.views for item in view.items.values()]
        return {item.id: item.text for item in items if isinstance(item, Checkpoint)}

    def sizes(self) -> dict[str, int]:
        """Return what the tasks say of the size of theirs."""
        return {
            task.id: task.more.checkpoint_bytes
            for task in self.tasks().values()
            if task.more is not None and task.more.checkpoint_bytes
        }


@settings(max_examples=40, deadline=None)
@given(seeds)
def test_a_checkpoint_stands_while_a_delivery_may_get_it(seed: int) -> None:
    """Over nacks, expired leases, dead letters and requeues; a new payload takes it away."""
    ReportingWorld(2, seed).live(100)


def test_a_checkpoint_is_restored_beside_its_task(tmp_path: Path) -> None:
    """Restored to any divisor of the number of shards."""

    @settings(max_examples=8, deadline=None)
    @given(seeds, st.sampled_from([(1, 1), (4, 2), (6, 3)]))
    def check(seed: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = ReportingWorld(before, seed)
            world.live(100)
            rows = restored(world, after, Path(home))
            items = [item for each in rows for item in items_in(each)]

            assert world.model == {
                item.id: item.text for item in items if isinstance(item, Checkpoint)
            }

    check()
