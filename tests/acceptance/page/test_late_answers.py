"""Answers that come late, on the admin page in a real browser: what is newer stays."""

from __future__ import annotations

import asyncio

import pytest
from playwright.async_api import Request, Route

from tests.acceptance.page.browser import Window
from tests.harness.client import RecordingClient
from tests.harness.waiting import WITHIN_S

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]

# By then everything that an answer changes is drawn.
_DRAWN = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
_STREAM = "**/ui/api/live**"


class Held:
    """The first answer to a request of a window: read at once, and held until it is given."""

    def __init__(self, window: Window) -> None:
        self._page = window.page
        self._request: Request | None = None
        self._read = asyncio.Event()
        self._given = asyncio.Event()

    async def __call__(self, route: Route) -> None:
        """Hold the first request, and let the others pass."""
        if self._request is not None:
            await route.fallback()
            return
        self._request = route.request
        answer = await route.fetch()
        self._read.set()
        await self._given.wait()
        await route.fulfill(response=answer)

    async def read(self) -> None:
        """Wait until there is an answer to hold."""
        async with asyncio.timeout(WITHIN_S):
            await self._read.wait()

    async def give(self) -> None:
        """Give the answer, and wait until the page has drawn it, if it does."""
        async with self._page.expect_event("requestfinished", lambda each: each == self._request):
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
