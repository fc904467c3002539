"""Actions on many tasks that lose the shard's leader half way."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.bulk import PAGE
from codeq_cluster.broker.requests.dead_letters import DeadLetterSelection
from codeq_cluster.broker.requests.operators import Operators
from codeq_cluster.broker.requests.triage import Triage
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.holds import Nack
from codeq_cluster.errors import NoLeader, OutcomeUnknown

from .conftest import START_MS, Shard, claim, create, shards_of, submit

pytestmark = pytest.mark.asyncio

_TASKS = PAGE + 1
# This deadline passes without a leader, but must not pass before the first page is done.
_TIMEOUT_S = 2.0
_Act = Callable[[Shard], Awaitable[object]]


async def _end(shard: Shard, *, dead: bool) -> None:
    """End more tasks than fit a page."""
    ids = [f"t{number}" for number in range(_TASKS)]
    await shard.engine.operate([create(task_id, max_attempts=1) for task_id in ids])
    await shard.engine.operate([claim("c", count=_TASKS)])
    if dead:
        await shard.engine.operate(
            [Nack(request=f"n{each}", id=each, tenant="acme", worker="ann") for each in ids]
        )
    else:
        await shard.engine.operate([submit(each) for each in ids])
    shard.clock.pass_ms(1000)


def _depose_after_the_next_entry(shard: Shard) -> None:
    """Let the leader answer the first page's action, then depose it."""

    def applied(rows: dict[bytes, bytes | None]) -> None:
        if rows:
            shard.log.depose()

    shard.engine.on_rows(applied)


def _caller() -> Caller:
    return Caller("acme", "op", deadline_in(_TIMEOUT_S))


async def _requeue(shard: Shard) -> object:
    return await Triage(shards_of(shard)).requeue(_caller(), DeadLetterSelection(queue="render"))


async def _delete(shard: Shard) -> object:
    return await Triage(shards_of(shard)).delete(_caller(), DeadLetterSelection(queue="render"))


async def _cleanup(shard: Shard) -> object:
    return await Operators(shards_of(shard)).cleanup(
        _caller(), before_ms=START_MS + 500, limit=_TASKS
    )


@pytest.mark.parametrize(("act", "dead"), [(_requeue, True), (_delete, True), (_cleanup, False)])
async def test_what_is_done_in_part_is_not_said_to_be_undone(
    shard: Shard, act: _Act, *, dead: bool
) -> None:
    """The first page was changed, so the answer is that the outcome is unknown."""
    await _end(shard, dead=dead)
    _depose_after_the_next_entry(shard)

    with pytest.raises(OutcomeUnknown):
        await act(shard)


async def test_what_is_not_begun_is_said_to_be_undone(shard: Shard) -> None:
    """Without a leader from the start nothing was done, and the caller learns so."""
    await _end(shard, dead=True)
    shard.log.depose()

    with pytest.raises(NoLeader):
        await _requeue(shard)
