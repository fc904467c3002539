"""Gathering: an entry waits for the callers just answered, unless it carries enough."""

from __future__ import annotations

import asyncio

import pytest

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


async def test_an_entry_that_is_full_already_does_not_wait() -> None:
    """So many operations share its cost well enough; nobody would end its wait but the timer."""
    gathering = GroupCommit(_nobody, wait_s_max=60)
    gathering.begin(answered=8, waiting=GATHERED_MAX, took_s=60)

    assert gathering.timer is None


class Load:
    """Entries of two operations each, one after another, on a clock of its own.

    Attributes:
        waiting_s: What an entry takes if entries wait; without the wait it takes 4 ms.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, waiting_s: float) -> None:
        self._now = 0.0
        self.waiting_s = waiting_s
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self._now)
        self.gathering = GroupCommit(_nobody)

    def run(self, entries: int) -> float:
        """Return the share of these entries that waited."""
        waited = 0
        for _ in range(entries):
            self._now += self.waiting_s if self.gathering.waits else 0.004
            self.gathering.begin(answered=2, waiting=0, took_s=60)
            waited += not self.gathering.is_due(1)
            self.gathering.stop()
        return waited / entries


async def test_a_wait_that_pays_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then a few entries try without, and are slower."""
    load = Load(monkeypatch, waiting_s=0.003)

    assert 0.85 <= load.run(10_000) < 1


async def test_a_wait_that_does_not_pay_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other way is tried after a while, and again when the load may have changed."""
    load = Load(monkeypatch, waiting_s=0.005)
    load.run(2_000)

    dropped = load.run(10_000)
    load.waiting_s = 0.003
    load.run(2_000)

    assert 0 < dropped <= 0.15
    assert 0.85 <= load.run(10_000)
