"""The keys of a queue, and limits, on the admin page in a real browser, on three real nodes."""

from __future__ import annotations

import pytest

from tests.acceptance.page.browser import NARROW, WIDE, WORKER, Chromium, url_of
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]

QUEUE = "page-keys"


async def test_a_viewer_sees_what_each_key_of_a_queue_waits_for(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """A queue without keys has no such list, and asks for none."""
    topic = {"flow": {"perKey": {"maxRunning": 1}}}
    await client.done("PUT", "n1", f"/admin/topics/{QUEUE}", "admin", topic)
    for key in ("ann/<b>", "ann/<b>", "ann/<b>", "bob", "bob", "bob"):
        task = {"command": QUEUE, "payload": {}, "key": key}
        await client.done("POST", "n2", "/tasks", "producer", task)
    own = {"paused": True, "maxRunning": 3}
    await client.done("PUT", "n3", f"/admin/queues/{QUEUE}/keys/bob", "admin", own)
    claim = {"commands": [QUEUE], "waitSeconds": 5}
    task = await client.done("POST", "n1", "/tasks/claim", WORKER, claim)
    hold = {"hold": "key", "delaySeconds": 300}
    await client.done("POST", "n2", f"/tasks/{task['id']}/nack", WORKER, hold)
    await client.done("POST", "n3", "/tasks", "producer", {"command": "no-keys", "payload": {}})
    whole = {"flow": {"maxRunning": 2}}
    await client.done("PUT", "n1", "/admin/topics/held-whole", "admin", whole)
    await client.done("POST", "n1", "/tasks", "producer", {"command": "held-whole", "payload": {}})
    claim = {"commands": ["held-whole"], "waitSeconds": 5}
    task = await client.done("POST", "n1", "/tasks/claim", WORKER, claim)
    hold = {"hold": "queue", "delaySeconds": 300}
    await client.done("POST", "n2", f"/tasks/{task['id']}/nack", WORKER, hold)
    for size, dark in ((WIDE, False), (NARROW, True)):
        async with browser.window(url_of(cluster), size=size, dark=dark, token="viewer") as window:
            asked: list[str] = []
            window.page.on("request", lambda request, asked=asked: asked.append(request.url))
            await window.open(f"/queues/{QUEUE}")
            keys = window.page.get_by_role("region", name="Keys", exact=True)
            held = keys.locator("tr", has_text="ann/<b>")
            paused = keys.locator("tr", has_text="bob")
            await held.get_by_text("a worker holds it, in").wait_for()
            await paused.get_by_text("3 tasks at once").wait_for()

            assert ["3", "0", "0"] == (await held.locator("td").all_inner_texts())[:3]
            assert "paused" == await paused.locator(".tag").inner_text()
            assert [] == await window.faults_of_access()
            assert 0 == await window.too_wide()

            await window.open("/queues/held-whole")
            policy = window.page.get_by_role("region", name="Policy", exact=True)
            await policy.get_by_text("by a worker: nothing of it goes").wait_for()

            assert "held" == await window.page.locator("main .tag.warn").inner_text()

            asked.clear()
            await window.open("/queues/no-keys")
            await window.page.get_by_role("region", name="Policy", exact=True).wait_for()
            ready = window.page.locator("main .figure", has_text="Ready").locator(".value")
            await ready.get_by_text("1", exact=True).wait_for()

            assert 0 == await keys.count()
            assert [] == [url for url in asked if url.endswith("/keys") or "/keys?" in url]


async def test_a_viewer_sees_what_a_limit_does_for_its_queues(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """The policy of a queue leads to the list, which follows what runs; one may be unused."""
    rate = {"count": 100, "perSeconds": 60, "burst": 10}
    limit = {"maxRunning": 1, "rate": rate}
    await client.done("PUT", "n1", "/admin/limits/page-api", "admin", limit)
    await client.done("PUT", "n1", "/admin/limits/page-unused", "admin", {"maxRunning": 7})
    queues = ("page-charge", "page-refund")
    for queue in queues:
        topic = {"flow": {"limit": "page-api"}}
        await client.done("PUT", "n1", f"/admin/topics/{queue}", "admin", topic)
        await client.done("POST", "n2", "/tasks", "producer", {"command": queue, "payload": {}})
    claim = {"commands": queues, "waitSeconds": 5}
    task = await client.done("POST", "n1", "/tasks/claim", WORKER, claim)
    for size, dark in ((NARROW, False), (WIDE, True)):
        async with browser.window(url_of(cluster), size=size, dark=dark, token="viewer") as window:
            await window.open("/queues/page-refund")
            policy = window.page.get_by_role("region", name="Policy", exact=True)
            await policy.get_by_text("1 of 1 task at once").wait_for()
            await policy.get_by_role("link", name="page-api", exact=True).click()
            limits = window.page.get_by_role("region", name="Limits", exact=True).first
            row = limits.locator("tr", has_text="page-api")
            await row.get_by_text("a free place").wait_for()
            unused = await limits.locator("tr", has_text="page-unused").inner_text()

            assert "1 of 1" == await row.locator("td.num").inner_text()
            assert [*queues] == await row.locator("a").all_inner_texts()
            assert ("0 of 7", True) == (unused.split("\t")[1].strip(), "none names it" in unused)
            assert [] == await window.faults_of_access()
            assert 0 == await window.too_wide()
    async with browser.window(url_of(cluster), size=WIDE, token="viewer") as window:
        await window.open("/limits")
        row = window.page.locator("main tr", has_text="page-api")
        await row.get_by_text("100 in 1 min").wait_for()
        hold = {"hold": "limit", "delaySeconds": 300}
        await client.done("POST", "n2", f"/tasks/{task['id']}/nack", WORKER, hold)

        await row.get_by_text("held", exact=True).wait_for()
        assert "0 of 1" == await row.locator("td.num").inner_text()
