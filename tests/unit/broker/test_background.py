"""Background work ends with its owner, and its failures are logged."""

from __future__ import annotations

import asyncio
import logging

import pytest

from codeq_cluster.broker.background import Background
from codeq_cluster.errors import NoLeader


async def test_work_that_ends_by_a_fault_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """Perhaps no caller awaits its task, so the log shows the error with its traceback."""
    background = Background()

    async def faulty() -> None:
        raise KeyError(1)

    task = background.spawn(faulty())
    await asyncio.wait({task})

    [record] = caplog.records
    assert (logging.ERROR, "background work failed") == (record.levelno, record.message)
    assert record.exc_info is not None
    assert record.exc_info[0] is KeyError
    assert record.exc_info[2] is not None
    assert record.__dict__["work"].endswith("faulty")
    await background.stop()


async def test_an_error_that_reaches_its_caller_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An operating error goes to the caller, and an end with the node is no error."""
    background = Background()

    async def refused() -> None:
        raise NoLeader("shard 0")

    task = background.spawn(refused())
    background.spawn(asyncio.Event().wait())
    with pytest.raises(NoLeader):
        await task
    await background.stop()

    assert [] == [each for each in caplog.records if each.levelno > logging.DEBUG]
