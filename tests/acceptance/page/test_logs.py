"""Logs of tasks on the admin page in a real browser, on three real nodes."""

from __future__ import annotations

import pytest

from tests.acceptance.page.browser import WORKER, Window
from tests.harness.client import RecordingClient

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]


async def test_a_tasks_page_goes_on_with_its_log(admin: Window, client: RecordingClient) -> None:
    """New lines come by themselves; what is text stays text, and what is gone is said."""
    task = await client.done(
        "POST", "n1", "/tasks", "producer", {"command": "page-log", "payload": {}}
    )
    name = str(task["id"])
    wanted = {"commands": ["page-log"], "waitSeconds": 5, "leaseSeconds": 600}
    await client.done("POST", "n2", "/tasks/claim", WORKER, wanted)

    async def say(*lines: str) -> None:
        said = {"extendSeconds": 600, "log": lines}
        await client.done("POST", "n3", f"/tasks/{name}/heartbeat", WORKER, said)

    await say("first", "<b>bold</b>")
    await admin.open(f"/tasks/{name}")
    log = admin.page.get_by_role("region", name="Log", exact=True)
    line = log.locator("li.break")
    await line.nth(1).wait_for()
    early = [text.split("  ")[-1] for text in await line.all_inner_texts()]
    for part in range(10):
        await say(*(f"line {20 * part + n}" for n in range(1, 21)))
    await line.filter(has_text="line 200").wait_for()

    assert [True, True] == [
        text.endswith(said) for text, said in zip(early, ("first", "<b>bold</b>"), strict=True)
    ]
    assert 200 == await line.count()
    assert "2 earlier lines gone" in await log.inner_text()
    assert "Attempt 1" in await log.inner_text()
