"""Resuming: schedules that were paused while the clock moved go on, whatever becomes of one."""

from __future__ import annotations

import pytest

from codeq_cluster.api.http.virtual_time import StillPaused
from codeq_cluster.client import Refused, Unreachable
from codeq_cluster.virtual_time.clock_stepper import resume_all


async def test_one_that_cannot_be_resumed_keeps_no_other_paused() -> None:
    """All are tried, and the error names those that stay paused."""
    resumed: list[str] = []

    async def resume(schedule: str) -> None:
        if schedule == "b":
            raise Refused("no leader for shard", status=503, code="no-leader")
        if schedule == "d":
            raise Unreachable("no node takes a connection")
        resumed.append(schedule)

    with pytest.raises(StillPaused, match=r"resume b, d: no leader for shard") as caught:
        await resume_all("abcde", resume)

    assert ["a", "c", "e"] == resumed
    assert isinstance(caught.value.__cause__, Refused)
