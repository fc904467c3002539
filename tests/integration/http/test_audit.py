"""Audit: every change by an operator is recorded with the index of its entry."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.http.client import Client
from tests.integration.http.operating import delete, died, pages, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def _indexes(node: Client) -> list[int]:
    groups: Any = (await node.get("raft/status")).json["groups"]
    return [group["appliedIndex"] for group in groups]


async def test_every_change_of_an_operator_is_on_record(node: Client) -> None:
    """A record has actor, action, target and log index; an action without effect has none."""
    audited = Client(node.port, "audited")
    await audited.send("PUT", "admin/topics/au", b"{}")
    await audited.send("PUT", "admin/topics/au", b"{}")
    await audited.post("admin/queues/au/pause")
    await audited.post("admin/queues/au/resume")
    await audited.post("admin/queues/au/resume")
    one = await died(audited, "au")
    await audited.post(f"admin/queues/au/dlq/{one}/requeue")
    two = str((await audited.claim("au"))["id"])
    await audited.post(f"tasks/{two}/abandon")
    await audited.post(f"tasks/{two}/cancel")
    three = await died(audited, "au")
    await delete(audited, f"admin/queues/au/dlq/{three}")
    await delete(audited, "admin/topics/au?deletionPolicy=Delete")
    records = await walked(audited, "admin/audit", "records")
    most = max(await _indexes(node))

    # Shards have clocks of their own, so records of one millisecond may stand in either order.
    at = {(each["action"], each["target"], each.get("detail")): each["at"] for each in records}
    in_order = [
        ("topic.put", "au", "version 1"),
        ("queue.pause", "au", None),
        ("queue.resume", "au", None),
        ("dlq.requeue", one, None),
        ("dlq.delete", three, None),
        ("topic.delete", "au", None),
    ]
    assert len(in_order) == len(records)
    assert set(in_order) == set(at)
    instants = [each["at"] for each in records]
    assert sorted(instants) == [at[change] for change in in_order]
    assert sorted(instants, reverse=True) == instants
    assert {"s"} == {each["actor"] for each in records}
    assert all(0 < each["index"] <= most for each in records)


async def test_the_record_is_walked_newest_first_while_it_grows(node: Client) -> None:
    """A walk returns each record that existed at its start exactly once."""
    for _ in range(3):
        await node.post("admin/queues/au-walk/pause")
        await node.post("admin/queues/au-walk/resume")
    before = [each["id"] for each in await walked(node, "admin/audit?limit=500", "records")]
    met: list[str] = []
    async for page in pages(node, "admin/audit?limit=4"):
        assert len(page["records"]) <= 4
        met += [each["id"] for each in page["records"]]
        if len(met) <= 8:
            await node.post("admin/queues/au-more/pause")
            await node.post("admin/queues/au-more/resume")

    assert before == met


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=0", "invalid 'limit' (must be >= 1)"),
        ("limit=501", "invalid 'limit' (must be <= 500)"),
        ("limit=x", "invalid 'limit' (use an integer)"),
        ("cursor=nonsense", "invalid 'cursor'"),
    ],
)
async def test_a_record_asked_for_wrongly_is_refused(node: Client, query: str, text: str) -> None:
    """The refusal names the bounds."""
    answer = await node.get(f"admin/audit?{query}")

    assert (400, text) == (answer.status, answer.error)
