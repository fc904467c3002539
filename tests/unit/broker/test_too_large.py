"""Operations that are too large for an entry, in one batch with others that are not."""

from __future__ import annotations

import pytest

from codeq_cluster.broker.requests.producer import on_their_shards
from codeq_cluster.core.operations import Submit
from codeq_cluster.core.outcomes import Submitted
from codeq_cluster.errors import OperationTooLarge
from tests.fakes.memory_store import MemoryShard

from .conftest import TestClock, claim, create, make_shard, shards_of, submit

pytestmark = pytest.mark.asyncio

_ENTRY_BYTES_MAX = 20_000


def _submit(task_id: str, *, too_large: bool) -> Submit:
    body = '"%s"' % ("x" * _ENTRY_BYTES_MAX) if too_large else "{}"
    return submit(task_id, body=body)


@pytest.mark.parametrize("largest", [0, 1, 2])
async def test_one_that_is_too_large_says_nothing_of_the_others(largest: int) -> None:
    """Wherever it is among the others, they are done and answered."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=_ENTRY_BYTES_MAX)
    shard.log.lead()
    shards = shards_of(shard)
    ids = ["t0", "t1", "t2"]
    await shard.engine.operate([create(task_id) for task_id in ids])
    await shard.engine.operate([claim("c", count=3)])
    placed = [(0, _submit(each, too_large=each == ids[largest])) for each in ids]

    answers = await on_their_shards(shards, placed, timeout_s=5)

    expected = [OperationTooLarge if each == largest else Submitted for each in range(3)]
    assert expected == [type(answer) for answer in answers]
    shard.engine.stop()
