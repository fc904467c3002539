"""Names that a path could hide, in a real browser."""

from __future__ import annotations

import pytest

from tests.acceptance.page.browser import Window
from tests.harness.client import RecordingClient

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]


@pytest.mark.parametrize("name", [".", ".."])
async def test_a_queue_named_like_a_step_in_a_path_is_opened_and_worked(
    admin: Window, client: RecordingClient, name: str
) -> None:
    """No new queue may have such a name; one that exists is reached from the list."""
    at = f"/admin/queues/~{name}"
    await client.done("POST", "n1", f"{at}/pause", "admin", {})
    await admin.open("/queues")
    await admin.page.get_by_role("link", name=name, exact=True).click()
    await admin.page.get_by_role("heading", name=name, level=1, exact=True).wait_for()
    await admin.click("Resume", within="main")
    await admin.page.wait_for_selector("main .tag:has-text('paused')", state="detached")
    resumed = await client.done("GET", "n2", at, "admin")
    await admin.click("Pause", within="main")
    await admin.click("Pause", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('paused')")
    paused = await client.done("GET", "n3", at, "admin")

    assert [(name, False), (name, True)] == [
        (depth["command"], depth.get("paused", False)) for depth in (resumed, paused)
    ]
