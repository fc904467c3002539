"""Graphs on the admin page in a real browser, on three real nodes."""

from __future__ import annotations

import pytest

from tests.acceptance.page.browser import NARROW, WIDE, WORKER, Chromium, Window, url_of
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]


async def begin(client: RecordingClient, name: str, *, wide: int) -> list[str]:
    """Create a task, some that wait for it, and one that waits for a hundred of these."""
    middle = [f"index-{n}" for n in range(wide)]
    tasks = [
        {"ref": "fetch", "command": f"{name}-fetch", "payload": {}, "maxAttempts": 1},
        *(
            {"ref": ref, "command": f"{name}-index", "payload": {}, "dependsOn": ["fetch"]}
            for ref in middle
        ),
        {"ref": "report", "command": f"{name}-report", "payload": {}, "dependsOn": middle[:100]},
    ]
    made = await client.done("POST", "n1", "/tasks/graph", "producer", {"tasks": tasks})
    return [each["id"] for each in made["tasks"]]


async def test_a_dead_letter_that_holds_a_graph_up_is_requeued_from_it(
    admin: Window, client: RecordingClient
) -> None:
    """The page says who is waited for, and the graph goes on once that is requeued."""
    ids = await begin(client, "page-graph", wide=3)
    wanted = {"commands": ["page-graph-fetch"], "waitSeconds": 5}
    task = await client.done("POST", "n2", "/tasks/claim", WORKER, wanted)
    await client.done("POST", "n3", f"/tasks/{task['id']}/nack", WORKER, {"reason": "broken"})
    await admin.open(f"/tasks/{ids[-1]}")
    graph = admin.page.get_by_role("region", name="Graph", exact=True).last
    await graph.get_by_role("link", name="fetch: dead letter, others wait for it").wait_for()
    await admin.shows("5 tasks: 4 held, 1 dead letter. The others wait for fetch.")
    await admin.click("Requeue and resume", within="main")
    await admin.click("Requeue 1", within="dialog")
    await graph.get_by_role("link", name="fetch: ready, others wait for it").click()
    await admin.page.wait_for_selector("main .tag:has-text('Ready')")

    assert admin.page.url.endswith(ids[0])
    assert 0 == await admin.page.get_by_role("button", name="Requeue and resume").count()


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (NARROW, True)], ids=["wide-light", "narrow-dark"]
)
async def test_everybody_can_read_a_graph_of_the_largest_size(
    browser: Chromium,
    cluster: LocalCluster,
    client: RecordingClient,
    size: tuple[int, int],
    *,
    dark: bool,
) -> None:
    """Two hundred tasks scroll in their own region; there are no faults of access."""
    ids = await begin(client, f"page-large-{size[0]}", wide=198)
    async with browser.window(url_of(cluster), size=size, dark=dark, token="admin") as window:
        await window.open(f"/tasks/{ids[-1]}")
        await window.shows("200 tasks: 199 held, 1 ready. The others wait for fetch.")

        assert 200 == await window.page.locator(".graph .node").count()
        assert [] == await window.faults_of_access()
        assert 0 == await window.too_wide()
