"""Waits: requests that wait, and their early end when the node stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from codeq_cluster.auth import Identity
from codeq_cluster.fair_shares import NestedShares
from codeq_cluster.fair_turns import FairTurns
from codeq_cluster.settings import LimitSettings


class WaitEnded(Exception):
    """The node stops, so the wait ends early."""


class Waits:
    """The waiting requests of one node.

    A planned stop must neither leave clients without an answer nor last as long as their waits.
    Each wait therefore ends as if its time were over.

    Each wait holds a connection, so claims and result reads share one room of them: neither a
    tenant nor a user of it can keep the others out by waiting. A call that is answered at once
    needs no place.

    Args:
        turns: The requests in progress, to which one that waits does not belong.
    """

    def __init__(self, limits: LimitSettings, turns: FairTurns) -> None:
        self._turns = turns
        self._places = NestedShares(
            min(limits.waiters_max, limits.connections_max), name="the list of waiting requests"
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ended = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Wait within the block; when the node stops, it ends with WaitEnded."""
        task = asyncio.current_task()
        assert task is not None
        if self._ended:
            raise WaitEnded
        self._tasks.add(task)
        self._turns.end(task)
        try:
            yield
        except asyncio.CancelledError as cancelled:
            # A disconnected client cancels too; only the cancellation by `end` is undone.
            if not self._ended or task.uncancel() > 0:
                raise
            raise WaitEnded from cancelled
        finally:
            self._tasks.discard(task)

    @contextmanager
    def in_place(self, waiter: Identity) -> Iterator[None]:
        """Wait within the block, like `waiting`, holding a place of the waiter's share.

        Raises:
            Overloaded: The waiter or its tenant has its share.
        """
        with self._places.one(waiter.tenant, waiter.subject), self.waiting():
            yield

    def end(self) -> None:
        """End every wait, and every later one at once."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
