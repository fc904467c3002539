"""The admin page in a real browser, on three real nodes: the views and actions of each role."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from playwright.async_api import Route

from codeq_cluster.client.handling import HandlerTimeout
from tests.acceptance.page.browser import (
    HOSTILE,
    HOSTILE_WORKER,
    NARROW,
    WIDE,
    WORKER,
    Chromium,
    Window,
    url_of,
)
from tests.harness.client import RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]

LOADS_MAX = 5  # Of `boot.js`.

OF_TENANT = [
    *("Overview", "Queues", "Tasks", "Delayed", "Groups", "Schedules", "Dead letters", "Workers"),
    *("Topics", "Limits", "Webhooks"),
]
OF_ADMIN = [*OF_TENANT[:5], "Bulk jobs", *OF_TENANT[5:]]


async def test_a_wrong_token_is_refused_in_words_and_a_right_one_shows_the_overview(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """The form stays and shows the error; after a log-in the page does not have the token."""
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


async def test_a_page_of_which_a_part_did_not_arrive_is_loaded_again(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """It says so meanwhile, and stops to ask by itself; the reader can still ask."""
    asked: list[str] = []

    async def lost(route: Route) -> None:
        asked.append(route.request.url)
        await (route.abort() if len(asked) <= LOADS_MAX else route.continue_())

    async def tried() -> bool:
        return LOADS_MAX == len(asked)

    async with browser.window(url_of(cluster)) as window:
        await window.page.route("**/js/login.js", lost)
        await window.page.goto(f"{cluster.urls['n2']}/ui")
        await window.shows("This page could not be loaded")
        await until(tried, what="the page has tried as often as it may")
        await window.page.get_by_role("link", name="Load it again").click()
        await window.log_in("admin")
        await window.shows("What needs attention")

        assert LOADS_MAX + 1 == len(asked)


@pytest.mark.parametrize(
    ("token", "views"),
    [
        ("viewer", OF_TENANT),
        ("admin", [*OF_ADMIN, "Audit"]),
        ("operator", ["Overview", "Cluster", "Audit"]),
        ("both", [*OF_ADMIN, "Cluster", "Audit"]),
    ],
)
async def test_each_role_is_offered_its_own_views(
    browser: Chromium, cluster: LocalCluster, token: str, views: list[str]
) -> None:
    """The server refuses the other views, whatever the page offers."""
    async with browser.window(url_of(cluster), token=token) as window:
        offered = await window.page.locator("#nav a").all_inner_texts()

        assert views == [each.split("\n")[0] for each in offered]


async def test_an_operator_opens_the_charts_of_a_tenant(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """The page says whose charts they are, and goes back to the cluster's."""
    await client.created("n1", "producer", "charted")
    async with browser.window(url_of(cluster), token="operator") as window:
        await window.page.locator("main").get_by_role("link", name="_ (default)").click()
        await window.shows("The charts show tenant _ (default).")
        chosen = window.page.url
        await window.page.get_by_role("link", name="Show the cluster").click()
        await window.page.get_by_text("The charts show").wait_for(state="detached")

        assert chosen.endswith("/ui?tenant=_")


async def test_the_session_is_good_on_every_node(browser: Chromium, cluster: LocalCluster) -> None:
    """No node asks for a second log-in."""
    async with browser.window(url_of(cluster, "n1"), token="viewer") as window:
        for node in ("n2", "n3"):
            await window.page.goto(f"{cluster.urls[node]}/ui/queues")
            await window.page.wait_for_selector(f"#liveness:has-text('{node} · live')")


async def test_the_overview_follows_what_happens(admin: Window, client: RecordingClient) -> None:
    """New tasks are counted, and their flow is drawn, without a reload."""
    queues = await client.done("GET", "n1", "/admin/queues", "admin")
    ready = sum(each["ready"] for each in queues) + 3
    await admin.open()
    for _ in range(3):
        await client.created("n2", "producer", "overview.flow")
    await admin.page.wait_for_selector(f".figure:has-text('Ready') .value:text-is('{ready}')")
    await admin.page.wait_for_selector(".chart .line.created")

    assert "live" == await admin.page.locator("#liveness").get_attribute("data-state")


async def test_without_a_stream_the_page_asks_now_and_then(
    admin: Window, client: RecordingClient
) -> None:
    """The page says that it polls, and still shows changes."""
    await admin.page.route("**/ui/api/live**", lambda route: route.abort())
    await admin.open("/queues/asked.for", ready="main .figures")
    await admin.page.wait_for_selector("#liveness:has-text('n1 · polling')")
    await client.created("n3", "producer", "asked.for")

    await admin.page.wait_for_selector(".figure:has-text('Ready') .value:text-is('1')")


async def test_a_queue_is_found_paused_and_resumed(admin: Window, client: RecordingClient) -> None:
    """The queue's view says who paused it; nobody can claim from it meanwhile."""
    await client.created("n1", "producer", "pause.me")
    await admin.open("/queues")
    await admin.page.fill("input[aria-label='Filter by name']", "PAUSE.M")
    await admin.page.get_by_role("link", name="pause.me").click()
    await admin.click("Pause", within="main")
    await admin.click("Pause", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('paused')")
    await admin.shows("by the admin")
    claimed = await client.done("POST", "n3", "/tasks/claim", WORKER, {"commands": ["pause.me"]})
    await admin.click("Resume", within="main")
    await admin.page.wait_for_selector("main .tag:has-text('paused')", state="detached")
    await client.claimed("n3", WORKER, ["pause.me"])

    assert claimed is None


async def test_a_viewer_is_shown_no_button_that_changes_a_queue(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """The request behind the button is refused as well."""
    await client.created("n1", "producer", "look.only")
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
        assert 403 == status


async def test_a_workers_name_is_text_whatever_it_holds(
    admin: Window, client: RecordingClient
) -> None:
    """The page shows the name unchanged and runs nothing in it."""
    await client.done("POST", "n1", "/tasks/claim", HOSTILE_WORKER, {"commands": ["hostile.name"]})
    await admin.open("/queues/hostile.name", ready="main .figures")
    await admin.shows(HOSTILE)

    assert 0 == await admin.page.locator("main img").count()


async def test_a_task_is_searched_shown_and_cancelled(
    admin: Window, client: RecordingClient
) -> None:
    """The view shows payload and result digit by digit, the attempts and the state's reason."""
    payload = {"html": HOSTILE, "big": 12345678901234567890}
    created = await client.created("n1", "producer", "task.shown", payload=payload)
    task_id = created["id"]
    claimed = await client.claimed("n2", WORKER, ["task.shown"])
    reason = {"reason": HOSTILE, "delaySeconds": 900, "leaseToken": claimed["leaseToken"]}
    await client.done("POST", "n3", f"/tasks/{task_id}/nack", WORKER, reason)
    await admin.open("/tasks")
    await admin.page.get_by_label("State").select_option("Delayed")
    await admin.page.get_by_label("Queue", exact=True).fill("task.shown")
    await admin.page.get_by_role("link", name=task_id[:13]).click()
    await admin.shows("12345678901234567890")
    await admin.shows("Attempt 1 of 5 was given back; it backs off.")
    shown = await admin.text()
    async with admin.page.expect_download() as downloading:
        await admin.click("Download")
    downloaded = (await (await downloading.value).path()).read_text()
    await admin.click("Raw")
    await admin.click("Cancel task", within="main")
    await admin.click("Cancel the task", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('Failed')")

    assert shown.count(HOSTILE) >= 1
    assert payload == json.loads(downloaded)
    assert 0 == await admin.page.locator("main img").count()
    assert "CANCELLED" == (await client.task("n2", "producer", task_id)).body["error"]


async def test_a_result_and_its_task_are_opened_by_the_id(
    admin: Window, client: RecordingClient
) -> None:
    """Every view has the search, and `/` focuses it; the shown start of an id is enough."""
    created = await client.created("n1", "producer", "task.done")
    claimed = await client.claimed("n1", WORKER, ["task.done"])
    await client.finished("n2", WORKER, claimed, {"page": HOSTILE})
    await admin.open("/queues")
    await admin.page.keyboard.press("/")
    await admin.page.keyboard.type(created["id"])
    await admin.page.keyboard.press("Enter")
    await admin.page.wait_for_selector("main .card:has-text('Result') pre")
    address = admin.page.url
    await admin.open("/tasks")
    await admin.shows("Sorted by queue, then by state")
    shown = await admin.page.get_by_role("link", name=created["id"][:13]).inner_text()
    for box in ("Task id or queue", "Its start"):
        await admin.page.get_by_placeholder(box).fill(shown)
        await admin.page.keyboard.press("Enter")
        await admin.page.wait_for_url(address)
        await admin.page.wait_for_selector("main .card:has-text('Result') pre")
        await admin.page.go_back()
        await admin.shows("Sorted by queue, then by state")
    for wrong in ("01234567-89ab-cdef", "1234"):
        await admin.page.get_by_placeholder("Its start").fill(wrong)
        await admin.page.keyboard.press("Enter")
        await admin.shows("No task has this id, or begins with it")
        await admin.page.go_back()
    await admin.open(f"/tasks/{created['id'][:13]}", ready="main ol.timeline b")
    assert address == admin.page.url
    timeline = await admin.page.locator("ol.timeline li b").all_inner_texts()

    assert HOSTILE.replace('"', '\\"') in await admin.text()
    assert "It is finished." in await admin.text()
    assert ["Created", "Completed"] == timeline


async def test_a_chain_of_tasks_is_walked_by_its_links(
    admin: Window, client: RecordingClient
) -> None:
    """A task leads to those that its result has made, and each of them back."""
    first = (await client.created("n1", "producer", "chain.first"))["id"]
    step = await client.claimed("n1", WORKER, ["chain.first"])
    for command, keys in (("chain.second", {"idempotencyKey": HOSTILE}), ("chain.third", {})):
        made = [{"command": command, "payload": {}}, {"command": "x", "payload": {}, **keys}]
        await client.done(
            *("POST", "n2", f"/tasks/{step['id']}/result", WORKER),
            {"status": "COMPLETED", "result": {}, "next": made, "leaseToken": step["leaseToken"]},
            repeatable=True,
        )
        step = await client.claimed("n3", WORKER, [command])
    await admin.open(f"/tasks/{first}")
    following = admin.page.locator("main .card:has-text('Made by its result')")
    await following.wait_for()
    shown = await following.inner_text()
    await following.get_by_role("link").click()
    await admin.shows("chain.second")
    await following.get_by_role("link").first.click()
    await admin.page.wait_for_url(f"**/tasks/{step['id']}")
    await admin.shows("First of the chain")
    await admin.page.locator("main dl.facts").get_by_role("link", name=first).click()
    await admin.page.wait_for_url(f"**/tasks/{first}")
    await following.wait_for()

    assert HOSTILE in shown
    assert "Made by" not in await admin.text("main dl.facts")


async def test_a_viewer_sees_a_task_without_payload_and_result(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """There is no button that would change the task."""
    payload = {"card": "4000 1234"}
    created = await client.created("n1", "producer", "task.hidden", payload=payload)
    async with browser.window(url_of(cluster), token="viewer") as window:
        await window.open(f"/tasks/{created['id']}", ready="main .reason")
        await window.shows("Payloads and results are not shown to viewers.")

        assert "4000 1234" not in await window.page.content()
        assert "Cancel task" not in await window.text()


async def test_delayed_tasks_are_listed_by_when_they_are_due(
    admin: Window, client: RecordingClient
) -> None:
    """A delayed task can be cancelled in the list."""
    for delay_s, command in ((7200, "delayed.b"), (3600, "delayed.a")):
        await client.created("n1", "producer", command, delaySeconds=delay_s)
    await admin.open("/delayed", ready="tbody tr[data-key]:nth-child(2)")
    rows = await admin.page.locator("tbody tr").all_inner_texts()
    queues = [each for row in rows for each in row.split() if each.startswith("delayed.")]
    await admin.page.locator("tr", has_text="delayed.b").get_by_role("button").click()
    await admin.click("Cancel the task", within="dialog")
    await admin.page.wait_for_selector("tr:has-text('delayed.b')", state="detached")

    assert ["delayed.a", "delayed.b"] == queues
    assert 0 == (await client.depth("n1", "admin", "delayed.b"))["delayed"]


async def die(client: RecordingClient, queue: str, *errors: str, payload: object = None) -> None:
    """Make a task die of each error."""
    for error in errors:
        body = {"payload": payload or {"n": 1}, "maxAttempts": 1}
        await client.created("n1", "producer", queue, **body)
        claimed = await client.claimed("n1", WORKER, [queue])
        said = {"reason": error, "leaseToken": claimed["leaseToken"]}
        await client.done("POST", "n1", f"/tasks/{claimed['id']}/nack", WORKER, said)


async def test_dead_letters_of_a_kind_are_requeued_with_a_patch(
    admin: Window, client: RecordingClient
) -> None:
    """The page first shows their number, and the patch's effect on one of them."""
    await die(client, "dead.kinds", "after 1 ms", "after 23 ms", HOSTILE)
    await admin.open("/dead-letters")
    await admin.page.get_by_role("link", name="dead.kinds").click()
    await admin.shows("after # ms")
    await admin.page.get_by_label("Requeue those of after # ms").click()
    await admin.shows("Requeue 2 dead letters?", within="dialog")
    await admin.shows("For two minutes it can be undone", within="dialog")
    await admin.page.get_by_text("Change their payloads").click()
    await admin.page.get_by_label("Merge patch").fill('{"n": null,\n "fixed": 01}')
    await admin.click("Requeue 2", within="dialog")
    wrong = "The patch is no JSON: line 2, column 12: unexpected 1"
    await admin.shows(wrong, within="dialog label:has(textarea) + [role=alert]")
    await admin.page.get_by_label("Merge patch").fill('{"n": null, "fixed": 12345678901234567890}')
    await admin.shows("There is no undo", within="dialog")
    await admin.shows("The first payload as it would be", within="dialog figcaption")
    await admin.shows('"fixed": 12345678901234567890', within="dialog figure")
    assert wrong not in await admin.text("dialog")
    await admin.click("Requeue 2", within="dialog")
    await admin.shows("2 dead letters requeued", within="#toasts")
    claimed = await client.claimed("n3", WORKER, ["dead.kinds"])

    assert '{"fixed":12345678901234567890}' == claimed["payload"]
    assert 1 == (await client.depth("n2", "admin", "dead.kinds"))["dlq"]
    assert 0 == await admin.page.locator("main img").count()


async def test_a_requeue_is_undone_for_those_nobody_has_claimed(
    admin: Window, client: RecordingClient
) -> None:
    """The page says how many had been claimed."""
    await die(client, "dead.undo", "a", "b", "c")
    await admin.open("/dead-letters/dead.undo", ready="tbody input[type=checkbox]")
    await admin.page.get_by_label("Select all shown").check()
    await admin.click("Requeue selected")
    await admin.click("Requeue 3", within="dialog")
    await admin.shows("3 dead letters requeued", within="#toasts")
    await client.claimed("n1", WORKER, ["dead.undo"])
    await admin.click("Undo", within="#toasts")
    await admin.shows("Taken back: 2; 1 had been claimed already", within="#toasts")
    depth = await client.depth("n1", "admin", "dead.undo")

    assert (0, 2) == (depth["ready"], depth["dlq"])


async def test_a_deletion_can_be_called_off_and_done_at_once(
    admin: Window, client: RecordingClient
) -> None:
    """Nothing is deleted during the delay; deleting all needs the queue's name typed."""
    await die(client, "dead.delete", "a", "b")
    await admin.open("/dead-letters/dead.delete", ready="tbody input[type=checkbox]")
    await admin.click("Delete all")
    await admin.click("Delete 2", within="dialog")
    await admin.shows("Type dead.delete to go on", within="dialog [role=alert]")
    await admin.page.fill("dialog input[name=typed]", "dead.delete")
    await admin.click("Delete 2", within="dialog")
    await admin.click("Undo", within="#toasts")
    await admin.shows("Nothing was done", within="#toasts")
    before = await client.depth("n1", "admin", "dead.delete")
    await admin.page.locator("tbody input[type=checkbox]").first.check()
    await admin.click("Delete selected")
    await admin.click("Delete 1", within="dialog")
    await admin.click("Now", within="#toasts")
    await admin.shows("1 dead letter deleted", within="#toasts")

    assert 2 == before["dlq"]
    assert 1 == (await client.depth("n1", "admin", "dead.delete"))["dlq"]


async def test_dead_letters_that_nobody_was_asked_about_stay(
    admin: Window, client: RecordingClient
) -> None:
    """One that dies after they were counted is not deleted, nor requeued with the others."""
    await die(client, "dead.later", "a", "b")
    await admin.open("/dead-letters/dead.later", ready="tbody input[type=checkbox]")
    await admin.click("Delete all")
    await admin.page.fill("dialog input[name=typed]", "dead.later")
    await die(client, "dead.later", "c")
    await admin.click("Delete 2", within="dialog")
    await admin.click("Now", within="#toasts")
    await admin.shows("2 dead letters deleted", within="#toasts")
    deleted = await client.depth("n1", "admin", "dead.later")
    await admin.click("Requeue all")
    await admin.shows("Requeue 1 dead letter?", within="dialog")
    await die(client, "dead.later", "d")
    await admin.click("Requeue 1", within="dialog")
    await admin.shows("1 dead letter requeued", within="#toasts")
    requeued = await client.depth("n1", "admin", "dead.later")

    assert 1 == deleted["dlq"]
    assert (1, 1) == (requeued["ready"], requeued["dlq"])


async def test_a_dead_letter_is_requeued_from_its_own_view(
    admin: Window, client: RecordingClient
) -> None:
    """The view shows its error and its attempts beside the field for a corrected payload."""
    await die(client, "dead.one", "lost its way")
    await admin.open("/dead-letters/dead.one", ready="tbody a")
    await admin.page.locator("tbody a").first.click()
    await admin.shows("It is a dead letter of queue dead.one: lost its way.")
    await admin.click("Requeue", within="main")
    await admin.page.get_by_text("Change its payload").click()
    await admin.page.get_by_label("New payload").fill("[1, ")
    await admin.click("Requeue 1", within="dialog")
    await admin.shows("The payload is no JSON: line 1, column 5", within="dialog [role=alert]")
    await admin.page.get_by_label("New payload").fill("[1.50, 2]")
    await admin.shows("There is no undo", within="dialog")
    assert "" == await admin.text("dialog [role=alert]")
    await admin.click("Requeue 1", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('Ready')")
    claimed = await client.claimed("n3", WORKER, ["dead.one"])
    timeline = admin.page.locator("ol.timeline")
    shown = await timeline.inner_text()
    requeued = timeline.locator("li", has_text="Requeued by an operator").locator(".dim")
    history = (await client.task("n1", "admin", claimed["id"])).body["history"]
    died, ended = (history[-1][name] for name in ("startedAt", "endedAt"))

    assert "[1.50, 2]" == claimed["payload"]
    assert 1 == shown.count("lost its way")
    assert died < ended
    assert ended == await requeued.locator("time").get_attribute("datetime")
    local = datetime.fromisoformat(ended).astimezone()
    assert (await requeued.inner_text()).startswith(f"{local:%Y-%m-%d %H:%M:%S}")


async def test_an_attempt_that_was_out_of_time_says_so(
    admin: Window, client: RecordingClient
) -> None:
    """The worker's reason tells it from a task that its handler gave back."""
    late = str(HandlerTimeout(30, whose="handler"))
    await die(client, "dead.late", late)
    await admin.open("/dead-letters/dead.late", ready="tbody a")
    await admin.page.locator("tbody a").first.click()
    attempt = admin.page.locator("ol.timeline li.failed").first
    await attempt.get_by_text("Timed out").wait_for()

    assert late in await attempt.inner_text()
    assert "Given back" not in await admin.text()


async def test_a_task_shows_its_life(admin: Window, client: RecordingClient) -> None:
    """Steps, waits and signals stand before the end of their delivery, in the order of time."""
    body = {"command": "lasting", "payload": {}}
    task = await client.done("POST", "n1", "/tasks", "producer", body)
    name = str(task["id"])
    claim = {"commands": ["lasting"], "waitSeconds": 5}
    for path, said in (
        ("steps", {"name": "charge", "value": {"charge": "ch-7"}}),
        ("nack", {"reason": "the bank is closed", "delaySeconds": 1}),
        ("park", {"step": "return", "signal": "return", "forSeconds": 600}),
    ):
        if path != "nack":
            await client.done("POST", "n2", "/tasks/claim", WORKER, claim)
        await client.done("POST", "n3", f"/tasks/{name}/{path}", WORKER, said)
    await client.done("POST", "n1", f"/tasks/{name}/signals/hurry", "producer", {"payload": 1})
    await admin.open(f"/tasks/{name}")
    await admin.shows("its function waits at step return for signal return")
    line = admin.page.locator("main ol.timeline li")
    await line.filter(has_text="hurry").wait_for()
    told = [text.replace("\n", " ") for text in await line.all_inner_texts()]
    await client.done("POST", "n2", f"/tasks/{name}/signals/return", "producer", {"payload": 2})
    await line.filter(has_text="Waited").wait_for()
    await client.done("POST", "n2", "/tasks/claim", WORKER, claim)
    last = {"name": "refund", "value": 7}
    await client.done("POST", "n3", f"/tasks/{name}/steps", WORKER, last)
    end = {"status": "COMPLETED", "result": {}}
    await client.done("POST", "n3", f"/tasks/{name}/result", WORKER, end)
    await line.filter(has_text="Completed").wait_for()
    ended = [text.split(" · ")[0].strip() for text in await line.all_inner_texts()]

    assert ["Created", "Step", "Given back", "Waits", "Signal"] == [
        text.split(" · ")[0].split(" 20")[0].strip() for text in told
    ]
    assert ["Step", "Completed"] == ended[-2:]
    assert '{"charge":"ch-7"}' in told[1]
    assert "for signal return, until" in told[3]
    assert "not waited for yet" in told[4]


async def test_a_dead_letter_is_deleted_from_its_own_view(
    admin: Window, client: RecordingClient
) -> None:
    """The view then says that the task no longer exists."""
    await die(client, "dead.gone", "for good")
    await admin.open("/dead-letters/dead.gone", ready="tbody a")
    await admin.page.locator("tbody a").first.click()
    await admin.click("Delete", within="main")
    await admin.click("Delete 1", within="dialog")
    await admin.click("Now", within="#toasts")
    await admin.shows("This task is gone: it was deleted")

    assert 0 == (await client.depth("n1", "admin", "dead.gone"))["dlq"]


async def test_a_purge_requires_typing_the_queues_name(
    admin: Window, client: RecordingClient
) -> None:
    """The page first shows how many tasks would be cancelled."""
    for delay_s in (0, 0, 600):
        await client.created("n1", "producer", "purge.me", delaySeconds=delay_s)
    await admin.open("/queues/purge.me", ready="main .figures")
    # The node that serves the page may be a moment behind, and the dialog says what the page shows.
    for name, number in (("Ready", "2"), ("Delayed", "1")):
        figure = admin.page.locator("main .figures a", has_text=name)
        await figure.get_by_text(number, exact=True).first.wait_for()
    await admin.click("Purge", within="main")
    await admin.shows("3 waiting tasks, 2 ready ones and 1 delayed one", within="dialog")
    await admin.shows("There is no undo.", within="dialog")
    await admin.page.fill("dialog input[name=typed]", "purge.me")
    await admin.click("Cancel 3 tasks", within="dialog")
    await admin.shows("3 tasks of purge.me cancelled", within="#toasts")
    depth = await client.depth("n2", "admin", "purge.me")

    assert (0, 0) == (depth["ready"], depth["delayed"])


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, False), (NARROW, True)], ids=["wide-light", "narrow-dark"]
)
async def test_everybody_can_use_every_view(
    browser: Chromium,
    cluster: LocalCluster,
    client: RecordingClient,
    size: tuple[int, int],
    dark: bool,
) -> None:
    """By keyboard, screen reader, phone and dark colours: axe finds nothing serious."""
    task = await client.created("n1", "producer", "every.view", payload={"a": [1, "b", None]})
    await client.created("n1", "producer", "every.view", delaySeconds=600)
    await die(client, "every.death", "after 1 ms")
    views = (
        "",
        "/queues",
        "/queues/every.view",
        "/tasks",
        f"/tasks/{task['id']}",
        "/delayed",
        "/dead-letters",
        "/dead-letters/every.death",
        "/limits",
    )
    async with browser.window(url_of(cluster), size=size, dark=dark) as window:
        faults = {"log-in": await window.faults_of_access()}
        await window.log_in("both")
        for path in views:
            await window.open(path)
            await window.page.wait_for_selector("#liveness[data-state=live]")
            faults[path] = await window.faults_of_access()
            if await window.too_wide() > 0:
                faults[path].append("wider than the window")

        assert not {path: found for path, found in faults.items() if found}


async def test_nothing_moves_once_the_page_is_seen(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """No layout shift is noticeable; `bench.page` measures how soon the page is seen."""
    async with browser.window(url_of(cluster), token="both") as window:
        await window.open(ready="main .figures")
        shifted = await window.page.evaluate(
            """() => new Promise((done) => {
              let sum = 0;
              new PerformanceObserver((list) => {
                for (const each of list.getEntries()) sum += each.value;
              }).observe({ type: "layout-shift", buffered: true });
              setTimeout(() => done(sum), 1500);
            })"""
        )

        assert shifted < 0.05


async def test_a_killed_node_is_reported_and_another_goes_on(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """The page keeps its data, shows since when it is stale, and links to a node that answers."""
    async with browser.window(url_of(cluster, "n2"), token="admin") as window:
        await window.open("/queues/pause.me", ready="main .figures")
        await cluster.kill("n2")
        await window.page.wait_for_selector("#notice:has-text('n2 does not answer')")
        kept = await window.text()
        await window.page.locator("#notice a[data-node='n3']").click()
        await window.page.wait_for_selector("#liveness:has-text('n3 · live')")

        assert "pause.me" in kept
        assert f"{cluster.urls['n3']}/ui/queues/pause.me" == window.page.url
        cluster.start("n2")
        await window.page.goto(f"{cluster.urls['n3']}/ui")
        await until(lambda: cluster.ready("n2"), what="n2 is back")


async def test_a_page_goes_on_when_its_node_is_back(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """It needs no reload and no second log-in."""
    async with browser.window(url_of(cluster, "n3"), token="admin") as window:
        await window.open(ready="main .figures")
        await cluster.kill("n3")
        await window.page.wait_for_selector("#notice:has-text('n3 does not answer')")
        cluster.start("n3")
        await window.page.wait_for_selector("#notice:empty", state="attached")
        await window.page.wait_for_selector("#liveness[data-state='live']")
        await cluster.wait_ready()
