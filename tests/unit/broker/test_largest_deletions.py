"""Deletions: the most tasks that one operation may name fit an entry, with all their artifacts."""

from __future__ import annotations

import pytest

from codeq_cluster.core.administering import IDS_MAX
from codeq_cluster.core.operations import Delete, Staging, Submit
from codeq_cluster.core.outcomes import Changed, Submitted
from codeq_cluster.core.task import UPLOADS_MAX

from .conftest import Shard, claim, create

pytestmark = pytest.mark.asyncio

_TENANT = "a" * 63  # The longest name of a tenant; an upload's id has 40 characters at most.
_UPLOADS = tuple(f"{number:040x}" for number in range(UPLOADS_MAX))


async def _finish(shard: Shard, task_id: str) -> None:
    """End a task whose result names the most uploads allowed."""
    await shard.engine.operate(
        [
            create(task_id, tenant=_TENANT),
            claim(task_id, tenant=_TENANT),
            *(Staging(id=task_id, tenant=_TENANT, worker="ann", upload=each) for each in _UPLOADS),
        ]
    )
    [outcome] = await shard.engine.operate(
        [
            Submit(
                request=task_id,
                id=task_id,
                tenant=_TENANT,
                worker="ann",
                status="COMPLETED",
                uploads=_UPLOADS,
            )
        ]
    )
    assert isinstance(outcome, Submitted)


async def test_tasks_with_as_many_artifacts_as_may_be_are_deleted_at_once(shard: Shard) -> None:
    """Each artifact leaves a row and an outbox job; all of them fit one entry."""
    ids = tuple(f"{number:036}" for number in range(IDS_MAX))
    for task_id in ids:
        await _finish(shard, task_id)

    deleted = await shard.engine.operate([Delete(request="d", tenant=_TENANT, ids=ids, by="op")])

    assert [Changed(IDS_MAX)] == deleted
