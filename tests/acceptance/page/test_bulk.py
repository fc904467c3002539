"""Bulk jobs on the admin page in a real browser, on three real nodes."""

from __future__ import annotations

import pytest

from tests.acceptance.page.browser import NARROW, WIDE, Chromium, Window, url_of
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]


async def filled(client: RecordingClient, command: str, tasks: int) -> None:
    """Create tasks with a tag."""
    task = {"command": command, "payload": {}, "tags": {"user": "42"}}
    await client.done("POST", "n1", "/tasks/batch", "producer", {"tasks": [task] * tasks})


async def test_what_a_search_has_found_is_counted_and_acted_on(
    admin: Window, client: RecordingClient
) -> None:
    """The job is about the filter alone, and the page follows it to its end."""
    await filled(client, "page-swept", 30)
    await filled(client, "page-spared", 3)
    page = admin.page
    await admin.open("/tasks")
    await admin.click("Act on all…", within="main")
    await page.get_by_text("Choose a state, a queue or a tag first.").wait_for()
    await admin.open("/tasks?command=page-swept&state=ready&tag=user:42")
    await admin.click("Act on all…", within="main")
    await page.get_by_text("waiting (ready, delayed or held), of page-swept").wait_for()
    await admin.click("Count them", within="dialog")
    await page.get_by_role("heading", name="Cancel 30 tasks?").wait_for()
    await admin.click("Cancel 30 tasks", within="dialog")
    row = page.locator("main tr", has_text="of page-swept")
    await row.locator(".tag", has_text="Done").wait_for()
    await page.get_by_role("heading", name="Bulk jobs").wait_for()
    counts = {}
    for command in ("page-swept", "page-spared"):
        select = {"select": {"command": command}, "action": "cancel", "dryRun": True}
        counts[command] = await client.done("POST", "n2", "/admin/bulk", "admin", select)

    assert {"FAILED": 30} == counts["page-swept"]["byStatus"]
    assert {"PENDING": 3} == counts["page-spared"]["byStatus"]


async def test_a_viewer_has_no_bulk_jobs(browser: Chromium, cluster: LocalCluster) -> None:
    """Neither their list nor the button of a search."""
    async with browser.window(url_of(cluster), token="viewer") as window:
        await window.open("/tasks")
        await window.page.get_by_role("link", name="Groups").wait_for()

        assert 0 == await window.page.get_by_role("link", name="Bulk jobs").count()
        assert 0 == await window.page.get_by_role("button", name="Act on all…").count()


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, True), (NARROW, False)], ids=["wide-dark", "narrow-light"]
)
async def test_everybody_can_use_bulk_jobs(
    browser: Chromium,
    cluster: LocalCluster,
    client: RecordingClient,
    size: tuple[int, int],
    *,
    dark: bool,
) -> None:
    """The list and the dialogs fit narrow windows and have no faults of access."""
    name = f"page-bulk-fits-{size[0]}"
    await filled(client, name, 2)
    await filled(client, f"{name}-left", 2)
    body = {"id": name, "select": {"command": name, "tag": ["user:42"]}, "action": "cancel"}
    await client.done("POST", "n1", "/admin/bulk", "admin", body)
    async with browser.window(url_of(cluster), size=size, dark=dark, token="admin") as window:
        await window.open("/bulk")
        await window.page.locator("main tr", has_text=name).get_by_text("Done").wait_for()
        assert [] == await window.faults_of_access()
        assert 0 == await window.too_wide()
        await window.open(f"/tasks?command={name}")
        await window.click("Act on all…", within="main")
        await window.click("Count them", within="dialog")
        await window.page.get_by_text("none of 2 selected tasks can be cancelled").wait_for()
        await window.open(f"/tasks?command={name}-left")
        await window.click("Act on all…", within="main")
        assert [] == await window.faults_of_access()
        await window.click("Count them", within="dialog")
        await window.page.get_by_role("heading", name="Cancel 2 tasks?").wait_for()
        assert [] == await window.faults_of_access()
        assert 0 == await window.too_wide()
