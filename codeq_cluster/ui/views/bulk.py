"""Bulk: the tenant's bulk jobs, which the page follows."""

from __future__ import annotations

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.bulk import JobsView, all_jobs
from codeq_cluster.ui.sources import Sources


async def look(call: Call, _: Sources) -> JobsView:
    """Return the jobs that go on, and those of the last day."""
    return await all_jobs(call)
