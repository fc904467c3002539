"""What bulk actions read is bounded, however much the chosen tasks have."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.ports import Snapshot
from codeq_cluster.broker.requests.bulk_jobs import BulkJobs
from codeq_cluster.broker.requests.dead_letters import DeadLetterReader, DeadLetterSelection
from codeq_cluster.broker.values import ERRORS_MAX, OTHER_ERROR, Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.bulk import ActionKind, BulkAction
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.task import Attempt, AttemptOutcome, State, Task
from codeq_cluster.routing.router import Router
from tests.fakes.memory_store import MemoryShard

from .conftest import TestClock, make_shard, shards_of

pytestmark = pytest.mark.asyncio

TASKS = 1000
FRAME_BYTES = 16 * 2**20  # Of the link, unless a setting says otherwise.
SELECT = Selection(queue="render")


class NotingShards(Router):
    """Shards that note how large each answer of rows is."""

    answers: list[int]

    async def read(self, shard: int, keys: Sequence[bytes], *, deadline: float) -> Snapshot:
        """Return rows as of now."""
        snapshot = await super().read(shard, keys, deadline=deadline)
        self.answers.append(sum(len(value or b"") for value in snapshot.values))
        return snapshot


def filled(state: State, **fields: object) -> NotingShards:
    """Return one shard of tasks that have failed in that way, each with an error of its own."""
    store = MemoryShard()
    rows: dict[bytes, bytes | None] = {}
    for number in range(TASKS):
        task = Task(
            id=f"t{number:04}",
            tenant="acme",
            command="render",
            priority=0,
            max_attempts=20,
            created_ms=1,
            updated_ms=2,
            state=state,
            error=f"no place for {number}",
            retain_until_ms=2**42,
            **fields,  # type: ignore[arg-type]
        )
        rows[keyspace.task(task.id)] = records.encode(task)
        rows |= dict.fromkeys(keyspace.index_keys(task), b"")
    store.state.commit(rows, index=2, digest=bytes(16))
    shard = make_shard(store, TestClock())
    shard.log.lead()
    shards = shards_of(shard, kind=NotingShards)
    shards.answers = []
    return shards


def _caller() -> Caller:
    return Caller("acme", "ops", deadline_in(10))


async def test_no_answer_with_the_longest_dead_letters_is_larger_than_a_frame() -> None:
    """A leader's answer that is too large is no answer, and would be asked for again."""
    attempt = Attempt(
        worker="ann",
        started_ms=1,
        ended_ms=2,
        outcome=AttemptOutcome.NACKED,
        error="😀" * 1024,
    )
    shards = filled(State.DEAD, dead_queue="render", history=(attempt,) * 20)
    ids = tuple(f"t{number:04}" for number in range(TASKS))
    wanted = DeadLetterSelection(queue="render", ids=ids)
    found, _ = await DeadLetterReader(shards).page(_caller(), wanted, b"")

    assert list(ids) == [task.id for task in found]
    assert sum(shards.answers) > FRAME_BYTES > max(shards.answers)


async def test_a_dry_run_keeps_as_many_errors_as_it_shows() -> None:
    """Further ones count together, while it walks."""
    shards = filled(State.FAILED)
    delete = BulkAction(kind=ActionKind.DELETE)
    jobs = BulkJobs(shards, TestClock())
    part = await jobs._counted(_caller(), SELECT, delete, 0)

    assert ERRORS_MAX + 1 == len(part.by_error)
    assert TASKS - ERRORS_MAX == part.by_error[OTHER_ERROR]
