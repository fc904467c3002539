"""The admin page in a real browser, on three real nodes: what each role sees and can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from codeq_cluster.testing.client import Client
from codeq_cluster.testing.cluster import LocalCluster, until
from tests.acceptance.browser import NARROW, WIDE, Chromium, Window, chromium, page_settings, url_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

# A subject may be any text; so may an error and a payload. None of it is markup.
HOSTILE = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
WORKER = "worker-0"
HOSTILE_WORKER = "worker-1"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def direct_cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that know tokens of every role."""
    settings = page_settings("worker-0", HOSTILE)
    async with LocalCluster(tmp_path_factory.mktemp("page"), settings=settings) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Chromium]:
    """Run one browser for the module."""
    async with chromium() as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def admin(browser: Chromium, cluster: LocalCluster) -> AsyncIterator[Window]:
    """Open a window of a tenant's admin."""
    async with browser.window(url_of(cluster), token="admin") as window:
        yield window


async def test_a_wrong_token_is_refused_in_words_and_a_right_one_shows_the_overview(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """The form stays, with what was wrong; the page never has the token after that."""
    async with browser.window(url_of(cluster)) as window:
        await window.page.fill("#token", "nonsense")
        await window.click("Log in")
        await window.shows("Invalid token")
        await window.log_in("admin")
        await window.shows("What needs attention")
        kept = await window.page.evaluate("JSON.stringify(localStorage) + document.cookie")
        await window.page.locator("#who summary").click()
        await window.click("Log out")
        await window.page.wait_for_selector("#token")
        await window.page.reload()

        await window.page.wait_for_selector("#token")
        assert "admin" not in kept


@pytest.mark.parametrize(
    ("token", "views"),
    [
        (
            "viewer",
            ["Overview", "Queues"],
        ),
        ("admin", ["Overview", "Queues"]),
        ("operator", ["Overview"]),
        ("both", ["Overview", "Queues"]),
    ],
)
async def test_each_role_is_offered_its_own_views(
    browser: Chromium, cluster: LocalCluster, token: str, views: list[str]
) -> None:
    """The server refuses the others, whatever is offered."""
    async with browser.window(url_of(cluster), token=token) as window:
        offered = await window.page.locator("#nav a").all_inner_texts()

        assert [each.split("\n")[0] for each in offered] == views


async def test_the_session_is_good_on_every_node(browser: Chromium, cluster: LocalCluster) -> None:
    """Whichever node is opened, no second log-in is asked for."""
    async with browser.window(url_of(cluster, "n1"), token="viewer") as window:
        for node in ("n2", "n3"):
            await window.page.goto(f"{cluster.urls[node]}/ui/queues")
            await window.page.wait_for_selector(f"#liveness:has-text('{node} · live')")


async def test_the_overview_follows_what_happens(admin: Window, client: Client) -> None:
    """Tasks that come are counted, and their flow is drawn, without a reload."""
    await admin.open()
    for _ in range(3):
        created = await client.create("n2", "producer", "overview.flow")
        assert created.status == 202
    await admin.page.wait_for_selector(".figure:has-text('Ready') .value:text-is('3')")
    await admin.page.wait_for_selector(".chart .line.created")

    assert await admin.page.locator("#liveness").get_attribute("data-state") == "live"


async def test_a_queue_is_found_paused_and_resumed(admin: Window, client: Client) -> None:
    """Its own view says who paused it; nobody can claim from it meanwhile."""
    await client.create("n1", "producer", "pause.me")
    await admin.open("/queues")
    await admin.page.fill("input[aria-label='Filter by name']", "PAUSE.M")
    await admin.page.get_by_role("link", name="pause.me").click()
    await admin.click("Pause", within="main")
    await admin.click("Pause", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('paused')")
    await admin.shows("by the admin")
    claimed = await client.claim("n3", WORKER, ["pause.me"])
    await admin.click("Resume", within="main")
    await admin.page.wait_for_selector("main .tag:has-text('paused')", state="detached")
    again = await client.claim("n3", WORKER, ["pause.me"])

    assert (claimed.status, again.status) == (204, 200)


async def test_a_viewer_is_shown_no_button_that_changes_a_queue(
    browser: Chromium, cluster: LocalCluster, client: Client
) -> None:
    """Nor does the request behind it do anything."""
    await client.create("n1", "producer", "look.only")
    async with browser.window(url_of(cluster), token="viewer") as window:
        await window.open("/queues/look.only", ready="main .figures")
        buttons = await window.page.locator("main button").all_inner_texts()
        status = await window.page.evaluate(
            """async () => {
              const { csrf } = await (await fetch("/ui/api/session")).json();
              const sent = { method: "POST", headers: { "X-CSRF-Token": csrf } };
              return (await fetch("/ui/api/queues/look.only/pause", sent)).status;
            }"""
        )

        assert "Pause" not in buttons
        assert status == 403


async def test_a_workers_name_is_text_whatever_it_holds(admin: Window, client: Client) -> None:
    """The page shows it as it is, and runs nothing of it."""
    claimed = await client.claim("n1", HOSTILE_WORKER, ["hostile.name"])
    assert claimed.status == 204
    await admin.open("/queues/hostile.name", ready="main .figures")
    await admin.shows(HOSTILE)

    assert await admin.page.locator("main img").count() == 0


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
async def test_everybody_can_use_every_view(
    browser: Chromium, cluster: LocalCluster, size: tuple[int, int], dark: bool
) -> None:
    """By keyboard, by screen reader, on a telephone, in the dark: axe finds nothing serious."""
    async with browser.window(url_of(cluster), size=size, dark=dark) as window:
        faults = {"log-in": await window.faults_of_access()}
        await window.log_in("both")
        for path in ("", "/queues", "/queues/pause.me"):
            await window.open(path)
            faults[path] = await window.faults_of_access()
            assert await window.too_wide() <= 0, path

        assert not {path: found for path, found in faults.items() if found}


async def test_the_page_is_seen_at_once_and_nothing_moves_afterwards(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """First paint within 200 ms, and no layout shift that a person would notice."""
    async with browser.window(url_of(cluster), token="both") as window:
        painted = []
        for _ in range(5):
            await window.open(ready="main .figures")
            painted.append(
                await window.page.evaluate(
                    "performance.getEntriesByName('first-paint')[0].startTime"
                )
            )
        shifted = await window.page.evaluate(
            """() => new Promise((done) => {
              let sum = 0;
              new PerformanceObserver((list) => {
                for (const each of list.getEntries()) sum += each.value;
              }).observe({ type: "layout-shift", buffered: true });
              setTimeout(() => done(sum), 1500);
            })"""
        )

        assert min(painted) < 200
        assert shifted < 0.05


async def test_a_killed_node_is_told_of_and_another_goes_on(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """The page keeps what it has, says since when, and leads to a node that answers."""
    async with browser.window(url_of(cluster, "n2"), token="admin") as window:
        await window.open("/queues/pause.me", ready="main .figures")
        await cluster.kill("n2")
        await window.page.wait_for_selector("#notice:has-text('n2 does not answer')")
        kept = await window.text()
        await window.page.locator("#notice a[data-node='n3']").click()
        await window.page.wait_for_selector("#liveness:has-text('n3 · live')")

        assert "pause.me" in kept
        assert window.page.url == f"{cluster.urls['n3']}/ui/queues/pause.me"
        cluster.start("n2")
        await window.page.goto(f"{cluster.urls['n3']}/ui")
        await until(lambda: cluster.ready("n2"), within_s=30, what="n2 is back")


async def test_a_page_goes_on_when_its_node_is_back(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """Without a reload, and without a second log-in."""
    async with browser.window(url_of(cluster, "n3"), token="admin") as window:
        await window.open(ready="main .figures")
        await cluster.kill("n3")
        await window.page.wait_for_selector("#notice:has-text('n3 does not answer')")
        cluster.start("n3")
        await window.page.wait_for_selector("#notice:empty", state="attached", timeout=40_000)
        await window.page.wait_for_selector("#liveness[data-state='live']", timeout=40_000)
        await asyncio.wait_for(cluster.wait_ready(), 40)
