"""Planned stops: nodes restart in turn, unnoticed by clients that know another node."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.harness.accounting import RecordedOutcome, audit
from tests.harness.cluster import LocalCluster
from tests.harness.load import Load, workers
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A rate that leaves the machine time for a starting node; bench/rolling_restart.py is faster.
CYCLES_PER_S = 50.0
LED_WITHIN_S = 20.0
# The least load for the test to count, however busy the machine is.
CREATES_MIN = 300
DRAINED_WITHIN_S = 90.0
# The only failure a client may see is a refused connection, because then nothing was sent.
REFUSED = "Refused("


async def test_restarting_every_node_in_turn_fails_no_request(cluster: LocalCluster) -> None:
    """Clients get no notice; one whose connection is refused asks the next node.

    A node transfers its leaderships before it ends, and in the end they are evenly spread.
    """
    await _evenly_led(cluster)
    async with Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 8),
        command="rolling",
        cycles_per_s=CYCLES_PER_S,
    ) as load:
        for node in cluster.nodes:
            assert 0 == await cluster.stop(node)
            handed = _last(cluster.nodes[node].log_path.read_text(), "leaderships transferred")
            # The transfer came before the end, so no peer had to detect the node's absence.
            assert 0 == handed["kept"]
            await _led_without(cluster, node)
            cluster.start(node)
            await cluster.wait_ready([node])
        await _evenly_led(cluster)
        drained = await load.drain(within_s=DRAINED_WITHIN_S)
        verdict = audit(load.calls, await load.final_tasks())
    failed = [
        call
        for call in load.calls
        if call.outcome is not RecordedOutcome.OK and not call.detail.startswith(REFUSED)
    ]

    assert not failed
    assert drained
    assert replace(verdict, failed=()).clean, str(verdict)
    assert load.begun >= CREATES_MIN


async def _evenly_led(cluster: LocalCluster) -> None:
    """Wait until the shards are spread evenly over the nodes."""
    nodes = list(cluster.nodes)
    wanted = {shard: nodes[shard % len(nodes)] for shard in range(cluster.shards)}

    async def led() -> bool:
        status = await cluster.status(nodes[0])
        return (
            status is not None
            and {shard: group.leader for shard, group in status.items()} == wanted
        )

    await until(led, what="leaders evenly spread")


async def _led_without(cluster: LocalCluster, gone: str) -> None:
    """Wait until another node reports, for every shard, a leader other than the stopped node."""
    asked = next(name for name in cluster.nodes if name != gone)

    async def led() -> bool:
        status = await cluster.status(asked)
        return status is not None and not {group.leader for group in status.values()} & {None, gone}

    await until(led, within_s=LED_WITHIN_S, what=f"leaders other than {gone}")


def _last(text: str, event: str) -> dict[str, object]:
    found = [line for line in map(json.loads, text.splitlines()) if line.get("event") == event]
    assert found, f"no line of the log says {event!r}"
    last: dict[str, object] = found[-1]
    return last
