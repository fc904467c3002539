"""Gathering: an entry waits for the callers just answered, unless it carries enough."""

from __future__ import annotations

from codeq_cluster.broker.engine.group_commit import GATHERED_MAX, GroupCommit


def _nobody() -> None:
    raise AssertionError("the wait is over too soon")


async def test_an_entry_waits_for_as_many_as_were_answered() -> None:
    """The last of the awaited callers makes the entry due."""
    gathering = GroupCommit(_nobody, wait_s_max=60)
    gathering.begin(answered=3, waiting=1, took_s=60)

    assert not gathering.is_due(3)
    assert gathering.is_due(4)
    gathering.stop()


async def test_an_entry_that_carries_enough_does_not_wait() -> None:
    """Its cost is already shared by many operations, for instance those of one caller's batch."""
    gathering = GroupCommit(_nobody, wait_s_max=60)
    gathering.begin(answered=3 * GATHERED_MAX, waiting=0, took_s=60)

    assert not gathering.is_due(GATHERED_MAX - 1)
    assert gathering.is_due(GATHERED_MAX)
    gathering.stop()
