"""Answers that come late, on the admin page in a real browser: what is newer stays."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Request, Route

from tests.acceptance.page.browser import WORKER, Window
from tests.harness.client import RecordingClient
from tests.harness.waiting import WITHIN_S

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]

# By then everything that an answer changes is drawn.
_DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
_STREAM = "**/ui/api/live**"
_TYPED_MS = 1000  # More than a filter waits for the next letter.


class Held:
    """The first answer to a request of a window: read at once, and held until it is given."""

    def __init__(self, window: Window, *, fails: bool = False) -> None:
        self._page = window.page
        self._fails = fails
        self._request: Request | None = None
        self._read = asyncio.Event()
        self._given = asyncio.Event()

    async def __call__(self, route: Route) -> None:
        """Hold the first request, and let the others pass."""
        if self._request is not None:
            await route.fallback()
            return
        self._request = route.request
        answer = None if self._fails else await route.fetch()
        self._read.set()
        await self._given.wait()
        await (route.abort() if answer is None else route.fulfill(response=answer))

    async def read(self) -> None:
        """Wait until there is an answer to hold."""
        async with asyncio.timeout(WITHIN_S):
            await self._read.wait()

    async def give(self) -> None:
        """Give the answer, and wait until the page has drawn it, if it does."""
        event = "requestfailed" if self._fails else "requestfinished"
        async with self._page.expect_event(event, lambda each: each == self._request):
            self._given.set()
        await self._page.evaluate(_DRAWN)


async def test_the_answer_of_an_old_poll_does_not_replace_what_the_stream_has_told(
    admin: Window, client: RecordingClient
) -> None:
    """The stream tells a part only when it changes, so the old answer would stay."""
    await client.created("n1", "producer", "late.paused")
    await admin.open("/queues/late.paused", ready="#liveness[data-state=live]")
    held = Held(admin)
    await admin.page.route("**/ui/api/now**", held)
    await admin.click("Pause", within="main")
    await admin.click("Pause", within="dialog")
    await held.read()
    paused = admin.page.locator("main .head .tag", has_text="paused")
    await paused.wait_for()
    await client.done("POST", "n1", "/admin/queues/late.paused/resume", "admin")
    await paused.wait_for(state="detached")
    await held.give()

    assert 0 == await paused.count()


async def test_the_answer_of_an_old_filter_is_not_shown_under_the_new_one(
    admin: Window, client: RecordingClient
) -> None:
    """A list that was asked for before the filter changed is no answer to it."""
    for queue in ("late.one", "late.two"):
        await client.created("n1", "producer", queue)
    held = Held(admin)
    await admin.page.route("**/ui/api/now?view=queues**", held)
    await admin.page.route(_STREAM, lambda route: route.abort())
    await admin.open("/queues")
    await held.read()
    await admin.page.unroute(_STREAM)
    await admin.page.get_by_label("Filter by name").fill("late.two")
    await admin.page.get_by_role("link", name="late.two").wait_for()
    await held.give()

    assert ["late.two"] == await admin.page.locator("tbody a").all_inner_texts()


async def test_a_view_that_could_not_be_opened_is_forgotten_once_it_is_left(admin: Window) -> None:
    """Its failure does not replace the view that is shown now."""
    held = Held(admin, fails=True)
    await admin.page.route("**/js/views/limits.js", held)
    await admin.page.get_by_role("link", name="Limits").click()
    await held.read()
    await admin.page.get_by_role("link", name="Workers").click()
    await admin.page.get_by_role("heading", name="Workers").first.wait_for()
    await held.give()

    assert "could not be opened" not in await admin.text()


async def test_a_filter_typed_just_before_its_view_is_left_is_dropped(admin: Window) -> None:
    """It is not written into the address of the view that is shown now."""
    await admin.page.clock.install()
    await admin.open("/delayed")
    await admin.page.get_by_role("searchbox", name="Queue", exact=True).fill("late.typed")
    await admin.page.get_by_role("link", name="Workers").click()
    await admin.page.get_by_role("heading", name="Workers").first.wait_for()
    await admin.page.clock.fast_forward(_TYPED_MS)

    assert admin.page.url.endswith("/ui/workers")


async def test_lines_of_a_log_that_come_late_leave_none_out(
    admin: Window, client: RecordingClient
) -> None:
    """The page asks for the next lines when it has those before them."""
    await client.created("n1", "producer", "late.log")
    claimed = await client.claimed("n1", WORKER, ["late.log"])

    async def say(line: str) -> None:
        body = {
            "extendSeconds": 600,
            "leaseToken": claimed["leaseToken"],
            "log": [line],
            "progress": {"done": 1, "note": line},
        }
        await client.done("POST", "n1", f"/tasks/{claimed['id']}/heartbeat", WORKER, body)

    held = Held(admin)
    await admin.page.route("**/log?after=0", held)
    await say("first")
    await admin.open(f"/tasks/{claimed['id']}")
    await held.read()
    for said in ("second", "third"):
        await say(said)
        await admin.page.locator("dd", has_text=said).wait_for()
    await held.give()
    line = admin.page.get_by_role("region", name="Log", exact=True).locator("li.break")
    await line.nth(2).wait_for()

    assert ["first", "second", "third"] == [
        text.split()[-1] for text in await line.all_inner_texts()
    ]
