"""Many rows: a leader's decisions cost the same however many rows wait to be applied."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from types import FrameType
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.broker.requests.leases import HeldLease, Leases
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.log_line import LINE_BYTES_MAX, LINES_A_REPORT_MAX, LINES_MAX
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import Extended, Outcome
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard

pytestmark = pytest.mark.asyncio

_LINES = LINES_A_REPORT_MAX
_LINE = "x" * LINE_BYTES_MAX  # So a run is of few logs, and the rows of the others wait.


@pytest_asyncio.fixture
async def shard() -> AsyncIterator[Shard]:
    """Yield an engine that leads."""
    made = make_shard(MemoryShard(), TestClock(), bytes_max=2**26)
    made.log.lead()
    yield made
    made.engine.stop()
    await asyncio.sleep(0)  # A timer that has fired just now ends on its loop.


def _report(task_id: str) -> Report:
    return Report(id=task_id, tenant="acme", worker="ann", extend_ms=9_000, log=(_LINE,) * _LINES)


async def _logging(shard: Shard, ids: Sequence[str]) -> int:
    """Return how many lines of code it takes to add to so many full logs at once."""
    await shard.engine.operate([create(each) for each in ids])
    await shard.engine.operate([claim(f"r-{ids[0]}", count=len(ids))])
    for _ in range(LINES_MAX // _LINES):
        await shard.engine.operate([_report(each) for each in ids])
    lines = 0

    def traced(_frame: FrameType, event: str, _of: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return traced

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        outcomes = await shard.engine.operate([_report(each) for each in ids])
    finally:
        sys.settrace(before)
    assert all(isinstance(each, Extended) for each in outcomes)
    return lines


async def test_lines_of_many_logs_cost_the_same_each(shard: Shard) -> None:
    """A look at all undurable rows for each log would stop the leader for seconds."""
    few = await _logging(shard, [f"a{n}" for n in range(40)])
    many = await _logging(shard, [f"b{n}" for n in range(160)])

    assert 6 * few > many > 40


class _Shards:
    """The shards of a node; each write is as large as it is told."""

    count = 1

    def __init__(self) -> None:
        self.writes: list[int] = []

    async def operate(
        self, _shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Note the lines of a write."""
        assert deadline > 0
        self.writes.append(sum(len(each.log) for each in operations if isinstance(each, Report)))
        return [Extended(n) for n, _ in enumerate(operations)]


async def test_a_batch_with_many_lines_is_several_writes() -> None:
    """A leader decides a write in one go, and others wait meanwhile."""
    shards = _Shards()
    leases = [
        HeldLease(id=f"t{n}", token=0, extend_ms=1000, log=("x",) * _LINES) for n in range(100)
    ]
    bare = [HeldLease(id=f"u{n}", token=0, extend_ms=1000) for n in range(900)]
    kept = await Leases(shards).renew("acme", "ann", [*leases, *bare], timeout_s=9)  # type: ignore[arg-type]

    assert [200] * 10 == shards.writes
    assert [Extended(n % 10) for n in range(90)] == kept[:90]
    assert 1000 == len(kept)
