"""Groups on the admin page in a real browser, on three real nodes."""

from __future__ import annotations

import pytest

from tests.acceptance.page.browser import NARROW, WIDE, WORKER, Chromium, Window, url_of
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]


async def begin(client: RecordingClient, name: str, *, ended: int = 0) -> None:
    """Begin a group of ten, of which some end: every second one fails."""
    tasks = [{"command": name, "payload": {}, "maxAttempts": 1}] * 10
    body = {"id": name, "then": {"command": "report", "payload": {}}, "tasks": tasks}
    await client.done("POST", "n1", "/groups", "producer", body)
    for number in range(ended):
        claim = {"commands": [name], "waitSeconds": 5}
        task = await client.done("POST", "n2", "/tasks/claim", WORKER, claim)
        result = {"status": "COMPLETED", "result": {}}
        if number % 2:
            result = {"status": "FAILED", "error": "broken"}
        await client.done("POST", "n3", f"/tasks/{task['id']}/result", WORKER, result)


async def test_a_group_is_watched_sealed_and_cancelled(
    admin: Window, client: RecordingClient
) -> None:
    """The page follows its counts, and leaves its actions away once it has ended."""
    await begin(client, "page-group", ended=5)
    page = admin.page
    await admin.open("/groups")
    await page.locator("main tr", has_text="page-group").get_by_text("5 of 10 ended").wait_for()
    await page.get_by_role("link", name="page-group").click()
    await admin.shows("to be sealed, for its members")
    await admin.click("Seal", within="main")
    await admin.click("Seal", within="dialog")
    await page.wait_for_selector("main .tag:has-text('Sealed')")
    sealed = await client.done("GET", "n2", "/groups/page-group", "producer")
    await admin.click("Cancel", within="main")
    await admin.click("Cancel the group", within="dialog")
    await page.wait_for_selector("main .tag:has-text('Failed')")
    await page.locator("main dl.facts").get_by_role("link", name="report").wait_for()
    ended = await client.done("GET", "n3", "/groups/page-group", "producer")

    assert ("SEALED", 5, 3, 2) == tuple(
        sealed[name] for name in ("status", "live", "completed", "failed")
    )
    assert (0, 5) == (ended["live"], ended["cancelled"])
    assert 0 == await page.locator("main .head button").count()


async def test_a_viewer_has_no_actions_on_a_group(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """A name that no group has is said to be none."""
    await begin(client, "page-seen-group")
    async with browser.window(url_of(cluster), token="viewer") as window:
        await window.open("/groups/page-seen-group")
        await window.shows("0 of 10 ended")
        assert 0 == await window.page.locator("main .head button").count()
        await window.open("/groups/no-such-group")
        await window.shows("There is no group of this name.")


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (NARROW, True)], ids=["wide-light", "narrow-dark"]
)
async def test_everybody_can_use_groups(
    browser: Chromium,
    cluster: LocalCluster,
    client: RecordingClient,
    size: tuple[int, int],
    *,
    dark: bool,
) -> None:
    """The list and a group fit narrow windows and have no faults of access."""
    name = f"page-fits-{size[0]}"
    await begin(client, name, ended=4)
    async with browser.window(url_of(cluster), size=size, dark=dark, token="admin") as window:
        for path, text in (("/groups", name), (f"/groups/{name}", "4 of 10 ended")):
            await window.open(path)
            await window.shows(text)

            assert [] == await window.faults_of_access()
            assert 0 == await window.too_wide()
