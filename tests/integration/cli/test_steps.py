"""Durable steps, from the command line."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec import Raw

from codeq_cluster.cli.main import main
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.testing.broker import LocalBroker


def test_a_task_shows_its_steps_and_takes_a_signal(
    broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is recorded is a line each; what it waits for is told, and ends with the signal."""

    def ran(*words: str, code: int = 0) -> str:
        assert code == main(["task", *words])
        said = capsys.readouterr()
        return (said.err if code else said.out).strip()

    async def begin() -> str:
        async with broker.leases() as leases:
            [task] = await leases.claim(["stepped"], lease_s=60)
            await leases.record_step(task, "charge", value=Raw(b'{"id":7}'), extend_s=60)
            await leases.park(task, "nap", extend_s=60, forSeconds=0)
            await leases.park(task, "return", extend_s=60, signal="return", forSeconds=600)
            return task.id

    ran("create", "--command", "stepped", "--payload", "1")
    task_id = asyncio.run(begin())
    early = ran("signal", task_id, "other", "--payload", "[1]")
    waiting = ran("steps", task_id)
    explained = ran("explain", task_id)
    key = ("--payload", '{"why":1}', "--idempotency-key", "r-7", "--json")
    sent = json.loads(ran("signal", task_id, "return", *key))
    twice = json.loads(ran("signal", task_id, "return", *key))
    over = json.loads(ran("steps", task_id, "--json"))
    refused = ran("signal", task_id, "two words", code=Exit.API)

    assert "other" in early
    lines = [line.split("  ", 1)[1] for line in waiting.splitlines()]
    assert ['charge  {"id":7}', "nap  slept"] == lines[:2]
    assert lines[2].startswith("return  waits for signal return until ")
    assert "signal other, not waited for yet" == lines[3]
    assert "parked: its function waits at step return for signal return" in explained
    assert (False, True) == (sent["replay"], twice["replay"])
    assert {"why": 1} == over["steps"][2]["value"]
    assert "invalid name of a signal" in refused
