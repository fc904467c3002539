"""Schedules on the admin page in a real browser, on three real nodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from tests.acceptance.page.browser import NARROW, WIDE, Chromium, Window, url_of
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]

# A number that JavaScript would round.
PAYLOAD = '{"secret": 12345678901234567890}'


async def yearly(client: RecordingClient, name: str, **fields: object) -> None:
    """Create a schedule that fires once a year."""
    task = {"command": "page.scheduled", "payload": {"secret": name}}
    body = {"cron": "@yearly", "zone": "Europe/Berlin", "task": task, **fields}
    await client.done("PUT", "n1", f"/admin/schedules/{name}", "admin", body)


async def test_a_schedule_is_made_tried_changed_and_deleted(
    admin: Window, client: RecordingClient
) -> None:
    """What is typed is previewed, and every action says what has become of it."""
    page = admin.page
    await admin.open("/schedules")
    await admin.click("New schedule")
    await page.get_by_label("Name", exact=True).fill("page-made")
    await page.get_by_label("Zone", exact=True).fill("Europe/Berlin")
    await page.get_by_label("Cron expression").fill("30 25 * * *")
    await admin.shows("cron, character 4: the hour cannot be", within="dialog .preview")
    await page.get_by_label("Cron expression").fill("30 2 1 1 *")
    await admin.shows("-01-01 02:30:00", within="dialog .preview")
    await page.get_by_label("Payload, JSON").fill(PAYLOAD)
    await admin.click("Create", within="dialog")
    await admin.shows("Say which command", within="dialog [role=alert]")
    await page.get_by_label("Command").fill("page.made")
    await admin.click("Create", within="dialog")
    await admin.shows("At 02:30 on January 1")
    made = await client.done("GET", "n2", "/admin/schedules/page-made", "admin")

    await admin.click("Run now", within="main")
    await admin.click("Run now", within="dialog")
    await admin.shows("The run is created", within="#toasts")
    await page.locator("main tr .tag:has-text('Running')").wait_for()
    await page.locator("main section[aria-label='Last runs'] a").click()
    await page.locator("main dl.facts").get_by_role("link", name="page-made").wait_for()
    await admin.shows("Scheduled for")
    await admin.shows(PAYLOAD[11:-1])
    await page.locator("main dl.facts").get_by_role("link", name="page-made").click()

    await admin.click("Edit")
    await page.get_by_label("Cron expression").fill("45 2 1 1 *")
    await admin.click("Save", within="dialog")
    await admin.shows("At 02:45 on January 1")
    changed = await client.done("GET", "n3", "/admin/schedules/page-made", "admin")
    await admin.click("Delete", within="main")
    await page.fill("dialog input[name=typed]", "page-made")
    await admin.click("Delete the schedule", within="dialog")
    await admin.shows("page-made is deleted", within="#toasts")
    gone = await client.call("GET", "n1", "/admin/schedules/page-made", "admin")

    kept = ("zone", "task", "overlap", "missed")
    assert ("30 2 1 1 *", "Europe/Berlin") == (made["cron"], made["zone"])
    assert "page.made" == made["task"]["command"]
    assert [made[name] for name in kept] == [changed[name] for name in kept]
    assert (2, "45 2 1 1 *") == (changed["version"], changed["cron"])
    assert 404 == gone.status


async def test_a_schedule_is_paused_resumed_and_filled_back(
    admin: Window, client: RecordingClient
) -> None:
    """A backfill begins with a dry run, which creates nothing."""
    page = admin.page
    now = datetime.now(UTC)
    # Once a day, and not while the test runs.
    await yearly(client, "page-worked", cron=f"0 {(now.hour + 12) % 24} * * *", zone="UTC")
    await admin.open("/schedules")
    await page.get_by_label("Schedule", exact=True).fill("PAGE-WORK")
    await page.get_by_role("link", name="page-worked").click()
    await admin.click("Pause", within="main")
    await admin.click("Pause", within="dialog")
    await page.wait_for_selector("main .tag:has-text('Paused')")
    await admin.shows("by the admin")
    paused = await client.done("GET", "n3", "/admin/schedules/page-worked", "admin")
    await admin.click("Resume", within="main")
    await page.get_by_label("Catch up").check()
    await admin.click("Resume", within="dialog")
    await page.wait_for_selector("main .tag:has-text('Active')")

    await admin.click("Backfill")
    today = now.replace(hour=0, minute=30, second=0)
    for name, day in (("From", today - timedelta(days=3)), ("To", today - timedelta(days=1))):
        await page.get_by_label(name, exact=True).fill(f"{day:%Y-%m-%dT%H:%M:%S}")
    await admin.click("Dry run", within="dialog")
    await page.locator("dialog li", has_text=":00:00").first.wait_for()
    tried = await client.done("GET", "n2", "/admin/schedules/page-worked", "admin")
    await admin.click("Fire 2 instants", within="dialog")
    await page.locator("main section[aria-label='Last runs'] tbody tr").nth(1).wait_for()
    filled = await client.done("GET", "n1", "/admin/schedules/page-worked", "admin")

    assert ("paused", "active") == (paused["state"], tried["state"])
    assert [] == tried["lastRuns"]
    assert {"OPEN", "QUEUED"} == {each["status"] for each in filled["lastRuns"]}


async def test_a_viewer_sees_schedules_without_payloads_and_actions(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """The node does not send the payload, whatever the page shows."""
    await yearly(client, "page-seen", note="Once a year")
    async with browser.window(url_of(cluster), token="viewer") as window:
        await window.open("/schedules")
        await window.page.get_by_role("link", name="page-seen").wait_for()
        buttons = await window.page.locator("main .head button").all_inner_texts()
        await window.page.get_by_role("link", name="page-seen").click()
        await window.shows("Payloads are not shown to viewers.")
        await window.shows("Once a year")

        assert ["Refresh"] == buttons
        assert 0 == await window.page.locator("main .head button").count()
        assert "secret" not in await window.page.content()


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (NARROW, True)], ids=["wide-light", "narrow-dark"]
)
async def test_everybody_can_use_schedules(
    browser: Chromium,
    cluster: LocalCluster,
    client: RecordingClient,
    size: tuple[int, int],
    *,
    dark: bool,
) -> None:
    """By keyboard, screen reader, phone and dark colours: axe finds nothing serious."""
    await yearly(client, "page-used", every=None, cron="*/5 * * * *", overlap="queue")
    await client.done("POST", "n1", "/admin/schedules/page-used/trigger", "admin", {})
    async with browser.window(url_of(cluster), size=size, dark=dark, token="admin") as window:
        faults = {}
        for path in ("/schedules", "/schedules/page-used"):
            await window.open(path, ready="main .tag")
            faults[path] = await window.faults_of_access()
            if await window.too_wide() > 0:
                faults[path].append("wider than the window")
        await window.page.wait_for_selector("main .strip .mark.open")
        for action in ("Edit", "Backfill", "Run now"):
            await window.click(action, within="main .head")
            await window.page.wait_for_selector("dialog")
            faults[action] = await window.faults_of_access()
            await window.page.keyboard.press("Escape")
            await window.page.wait_for_selector("dialog", state="detached")

        assert not {path: found for path, found in faults.items() if found}
