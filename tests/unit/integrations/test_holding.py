"""Holding: leases that are renewed while their tasks end, against a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

from codeq_cluster.client import KeptLease, Leases, State, TaskRecord
from codeq_cluster.integrations.holding import Holding
from codeq_cluster.testing.broker import LocalBroker

LEASE_S: Final = 5
WITHIN_S: Final = 15.0


class Watched(Leases):
    """Requests of a worker, which tells when the broker has answered a renewal."""

    def __init__(self, broker: LocalBroker) -> None:
        super().__init__([broker.url], token=broker.token)
        self.renewed = asyncio.Event()

    async def heartbeats(
        self, held: Sequence[tuple[TaskRecord, int]], **options: Any
    ) -> Sequence[KeptLease]:
        """Do it, and tell."""
        kept = await super().heartbeats(held, **options)
        self.renewed.set()
        return kept


async def test_a_lease_that_its_own_end_takes_is_not_called_lost(
    broker: LocalBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The renewal is refused, because the task has ended; its worker still waits for the answer."""
    async with broker.client() as client, Watched(broker) as leases:
        holding = Holding(leases, lease_s=LEASE_S, worker_name="w")
        await client.create("h-ends", 1)
        [task] = await holding.claim(["h-ends"], count=1)

        async def completed(held: TaskRecord) -> None:
            await leases.complete(held, b"1")
            leases.renewed.clear()
            await leases.renewed.wait()

        async with asyncio.timeout(WITHIN_S):
            assert await holding.end(task, completed)
        await holding.close()

        assert State.DONE == (await client.task(task.id)).state
    assert [] == [r.getMessage() for r in caplog.records if "lease was" in r.getMessage()]
