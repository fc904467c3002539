"""Logs: each has the last lines of its task, and goes wherever its task goes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.decide import decide
from codeq_cluster.core.items import Item
from codeq_cluster.core.log_line import LINES_A_REPORT_MAX, LINES_MAX, LogLine
from codeq_cluster.core.operations import Operation, Revise
from codeq_cluster.core.outcomes import Changed, Extended

from .backup_worlds import RULES
from .test_checkpoints import ReportingWorld
from .test_keyed_backups import items_in, restored

seeds = st.integers(0, 2**32)
_Texts = dict[str, list[tuple[int, str, int]]]


class LoggingWorld(ReportingWorld):
    """A world of little but reports, beside the obvious model of each log.

    Attributes:
        logs: By task, all its lines that may stand: number, text, attempt.
        written: By task, how many lines it has got.
    """

    def __init__(self, shards: int, seed: int) -> None:
        super().__init__(shards, seed)
        self.logs: _Texts = {}
        self.written: dict[str, int] = {}

    def _report(self, name: str) -> None:
        super()._report(name)
        for shard, task in self._held():
            count = self.random.choice([0, 1, LINES_A_REPORT_MAX])
            lines = tuple(f"{name}.{number} ü" for number in range(count))
            for _ in range(self.random.choice([1, 1, 12])):
                self._ask(
                    shard,
                    Report(
                        id=task.id,
                        tenant=task.tenant,
                        worker=task.worker,
                        extend_ms=60_000,
                        log=lines,
                    ),
                )

    def _ask(self, shard: int, operation: Operation) -> None:
        view = self.views[shard]
        decision = decide(view, operation, RULES)
        super()._ask(shard, operation)
        if isinstance(operation, Report) and isinstance(decision.outcome, Extended):
            task_id = operation.id
            for text in operation.log:
                self.written[task_id] = number = self.written.get(task_id, 0) + 1
                line = (number, text, view.tasks[task_id].attempts)
                self.logs[task_id] = [*self.logs.get(task_id, []), line][-LINES_MAX:]
        if isinstance(operation, Revise) and decision.outcome == Changed(1):
            self.logs.pop(operation.id, None)
        living = self.tasks()
        self.logs = {name: lines for name, lines in self.logs.items() if name in living}
        self.written = {name: count for name, count in self.written.items() if name in living}
        assert self.logs == texts(item for each in self.views for item in each.items.values())
        told = {
            task.id: task.more.durable.logged
            for task in living.values()
            if task.more is not None and task.more.durable is not None
        }
        assert self.written == told


def texts(items: Iterable[Item]) -> _Texts:
    """Return what stands, by task."""
    found: _Texts = {}
    for line in items:
        if isinstance(line, LogLine):
            of = found.setdefault(line.id.rpartition(".")[0], [])
            of.append((line.number, line.text, line.attempt))
    return {name: sorted(lines) for name, lines in found.items()}


@settings(max_examples=25, deadline=None)
@given(seeds)
def test_a_log_has_the_last_lines_of_its_task(seed: int) -> None:
    """Over nacks, expired leases, dead letters, requeues and ends; a new payload empties it."""
    LoggingWorld(2, seed).live(60)


def test_a_log_is_restored_beside_its_task(tmp_path: Path) -> None:
    """Restored to any divisor of the number of shards."""

    @settings(max_examples=6, deadline=None)
    @given(seeds, st.sampled_from([(1, 1), (4, 2), (6, 3)]))
    def check(seed: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = LoggingWorld(before, seed)
            world.live(60)
            rows = restored(world, after, Path(home))

            assert world.logs == texts(item for each in rows for item in items_in(each))

    check()
