"""Cancels with a grace, from the command line and the client."""

from __future__ import annotations

import asyncio
import json

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.testing.broker import LocalBroker


def test_a_worker_hears_of_a_cancel_with_a_grace(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says that the task is being cancelled; the client's heartbeats say why."""

    def ran(*words: str) -> str:
        assert 0 == main(["task", *words])
        return capsys.readouterr().out.strip()

    async def work() -> tuple[str, str]:
        async with broker.leases() as leases:
            [task] = await leases.claim(["graced"], lease_s=60)
            before = await leases.heartbeat(task, extend_s=60)
            said = ("--grace-seconds", "30", "--reason", "withdrawn", "--dependents", "--json")
            status = json.loads(await asyncio.to_thread(ran, "cancel", task.id, *said))["status"]
            after = await leases.heartbeat(task, extend_s=60)
            [kept] = await leases.heartbeats([(task, 60)])
            await leases.nack(task, "stopped")
            assert before is None
            assert after is not None
            assert after == kept.cancel
            return status, after.reason

    root = ran("create", "--command", "graced", "--payload", "1", "-q")
    leaf = ran("create", "--command", "leaf", "--payload", "1", "--after", root, "-q")
    heard = asyncio.run(work())
    ended = json.loads(ran("result", leaf, "--wait", "20", "--json"))
    waiting = ran("create", "--command", "idle", "--payload", "1", "-q")
    at_once = json.loads(ran("cancel", waiting, "--grace-seconds", "30", "--json"))

    assert ("cancelling", "withdrawn") == heard
    assert ("FAILED", "CANCELLED") == (ended["task"]["status"], ended["task"]["error"])
    assert f"cancelled with task {root}" == ended["task"]["cancel"]["reason"]
    assert "cancelled" == at_once["status"]
