"""Browser: a headless Chromium in which every error fails the test."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    async_playwright,
)
from playwright.async_api import Error as PlaywrightError

from codeq_cluster.auth.identity import WORKER_SCOPES
from tests.harness.cluster import LocalCluster
from tests.harness.waiting import WITHIN_S

# Each name is also a token.
PAGE_TOKENS = {
    "viewer": ["codeq:view"],
    "admin": ["codeq:admin"],
    "operator": ["codeq:operator"],
    "both": ["codeq:admin", "codeq:operator"],
}
WORKER = "worker-0"
HOSTILE_WORKER = "worker-1"
# Subjects, errors and payloads may be any text, and the page must never treat it as markup.
HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
WAIT_MS = WITHIN_S * 1000  # The longest wait for a text to appear.
WIDE = (1280, 860)
NARROW = (390, 844)

# Chromium's own messages about answers that the page expects and handles.
_EXPECTED = ("Failed to load resource", "net::ERR_")


def page_settings(backups: Path) -> dict[str, object]:
    """Return settings with tokens for every role, a producer and two workers."""
    tokens: list[dict[str, object]] = [
        {"token": name, "subject": f"the {name}", "scopes": scopes}
        for name, scopes in PAGE_TOKENS.items()
    ]
    tokens.append({"token": "producer", "subject": "producer"})
    tokens.append({"token": "hostile", "subject": HOSTILE, "scopes": ["codeq:admin"]})
    working = [
        {"token": token, "subject": name, "scopes": sorted(WORKER_SCOPES), "eventTypes": ["*"]}
        for token, name in ((WORKER, WORKER), (HOSTILE_WORKER, HOSTILE))
    ]
    return {
        "auth": {
            "tenantFallback": "default",
            "producer": [{"kind": "static", "tokens": tokens}],
            "worker": [{"kind": "static", "tokens": working}],
        },
        "backup": {"directory": str(backups)},
        "webhooks": {"allowPrivate": True},
        "webhookHmacSecret": "of the callbacks of a test",
        "resultWebhookMaxAttempts": 1,
    }


@dataclass(slots=True)
class Window:
    """A page in its own browser context.

    Attributes:
        wrong: Complaints of the page or the browser.
        lost: Requests without an answer, and why.
    """

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    async def log_in(self, token: str) -> None:
        """Log in at the current address."""
        await self.page.fill("#token", token)
        await self.page.click("button.primary")
        await self.page.wait_for_selector("#who", state="attached")

    async def open(self, path: str = "", *, ready: str = "main h1") -> None:
        """Open a view by its address, and wait until it is shown."""
        await self.page.goto(f"{self.url}/ui{path}")
        await self.page.wait_for_selector(ready)

    async def text(self, selector: str = "main") -> str:
        """Return the visible text."""
        return await self.page.inner_text(selector)

    async def shows(self, text: str, *, within: str = "main") -> None:
        """Wait until a text is visible."""
        await self.page.locator(within).get_by_text(text).first.wait_for()

    async def click(self, name: str, *, within: str = "body") -> None:
        """Click the button of that name."""
        await self.page.locator(within).get_by_role("button", name=name, exact=True).click()

    async def faults_of_access(self) -> list[str]:
        """Return accessibility faults of the current view, as axe reports them."""
        found = await Axe().run(self.page)
        return [
            f"{each['id']}: {each['nodes'][0]['html'][:200]}"
            for each in found.response["violations"]
            if each["impact"] in ("serious", "critical")
        ]

    async def too_wide(self) -> int:
        """Return by how many pixels the view is wider than the window."""
        wide: int = await self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return wide


@dataclass(slots=True)
class Chromium:
    """One browser process for a module's tests."""

    browser: Browser

    @asynccontextmanager
    async def window(
        self,
        url: str,
        *,
        size: tuple[int, int] = WIDE,
        dark: bool = False,
        token: str = "",
    ) -> AsyncIterator[Window]:
        """Open a window on a node's page; at its end, any complaint fails the test.

        Args:
            url: The node's URL.
            size: Of the window, in pixels.
            dark: Use the system's dark colours.
            token: The token to log in with; empty to stay at the log-in form.
        """
        context = await self.browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            # Elements that still fade in have a lower contrast, so their animation must end first.
            reduced_motion="reduce",
            accept_downloads=True,
        )
        context.set_default_timeout(WAIT_MS)
        window = await self._opened(context, url)
        try:
            await window.page.goto(f"{url}/ui")
            await window.page.wait_for_selector("#token")
            if token:
                await window.log_in(token)
            yield window
        except PlaywrightError as failure:
            failure.add_note(f"complaints: {window.wrong}; without an answer: {window.lost}")
            raise
        finally:
            await context.close()
        assert [] == window.wrong, f"the browser complains: {window.wrong}"

    async def _opened(self, context: BrowserContext, url: str) -> Window:
        window = Window(await context.new_page(), url)

        def said(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(
                each in message.text for each in _EXPECTED
            ):
                window.wrong.append(message.text)

        async def asked(dialog: object) -> None:
            window.wrong.append(f"a dialog of a script: {dialog}")

        def lost(request: Request) -> None:
            window.lost.append(f"{request.method} {request.url}: {request.failure}")

        window.page.on("console", said)
        window.page.on("requestfailed", lost)
        window.page.on("pageerror", lambda error: window.wrong.append(str(error)))
        window.page.on("dialog", asked)
        return window


@asynccontextmanager
async def chromium() -> AsyncIterator[Chromium]:
    """Run Debian's Chromium until the end of the block."""
    path = shutil.which("chromium")
    assert path is not None
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=path)
        try:
            yield Chromium(browser)
        finally:
            await browser.close()


def url_of(cluster: LocalCluster, node: str = "n1") -> str:
    """Return the URL of a node's page."""
    return cluster.urls[node]
