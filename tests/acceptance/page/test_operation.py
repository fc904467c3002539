"""Operators' and admins' actions on the page, in a real browser on three real nodes."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Route
from playwright.async_api import TimeoutError as NotInTime

from codeq_cluster.core.task import PRIORITY_MAX
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
from tests.harness.ports import dead_url
from tests.harness.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.needs("chromium")]

# The cluster moves a leadership back by itself after five seconds, and after twice as long each
# further time.
TRIES = 10
BEFORE_ITSELF_MS = 4000


async def undelivered(client: RecordingClient, command: str) -> str:
    """Complete a task whose callback nobody can take; return the callback's URL."""
    webhook = dead_url(f"{command}?key=secret")
    await client.created("n1", "producer", command, webhook=webhook)
    await client.finished("n1", WORKER, await client.claimed("n1", WORKER, [command]), {})
    return webhook


async def test_a_task_is_created_as_it_was_typed_and_shown(
    admin: Window, client: RecordingClient
) -> None:
    """The page and the server show an error beside the field it belongs to."""
    await admin.open("/tasks")
    await admin.click("New task")
    await admin.page.get_by_label("Command").fill("first task")
    await admin.page.get_by_label("Payload, JSON").fill('{"big": 12345678901234567890, ')
    await admin.click("Create", within="dialog")
    await admin.shows(
        "The payload is no JSON: line 1, column 31: it ends too early",
        within="dialog label:has(textarea) + [role=alert]",
    )
    await admin.page.get_by_label("Payload, JSON").fill('{"big": 12345678901234567890}')
    assert "" == await admin.text("dialog [role=alert]")
    await admin.click("Create", within="dialog")
    await admin.shows(
        "invalid command: use 1 to 128 of", within="dialog label:has([name=command]) + [role=alert]"
    )
    wrong = await admin.page.locator("dialog [aria-invalid]").get_attribute("name")
    await admin.page.get_by_text("More", exact=True).click()
    await admin.page.get_by_label("Attempts").fill("0.5")
    await admin.page.get_by_text("More", exact=True).click()
    await admin.click("Create", within="dialog")
    await admin.page.wait_for_selector("dialog [name=maxAttempts]:focus")
    await admin.page.get_by_label("Attempts").fill("4000")
    await admin.page.get_by_label("Command").fill("first.TASK")
    await admin.click("Create", within="dialog")
    await admin.shows("maxAttempts", within="dialog label:has([name=maxAttempts]) + [role=alert]")
    await admin.page.get_by_label("Attempts").fill("")
    await admin.page.get_by_label("Priority").fill("7")
    highest = await admin.page.get_by_label("Priority").get_attribute("max")
    await admin.click("Create", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('Ready')")
    await admin.shows("12345678901234567890")
    shown = await admin.text()
    await admin.page.get_by_role("link", name="Who works on it?").click()
    await admin.shows("codeq-cluster worker start --commands first.task --handler PROGRAM")
    claimed = await client.claimed("n3", WORKER, ["first.task"])

    assert ("command", str(PRIORITY_MAX)) == (wrong, highest)
    assert claimed["id"] in shown
    assert '{"big": 12345678901234567890}' == claimed["payload"]
    assert ("first.TASK", 7) == (claimed["command"], claimed["priority"])


async def test_a_new_task_has_every_field_of_the_api(
    admin: Window, client: RecordingClient
) -> None:
    """What is typed is what is created; a refused one is shown beside its field."""
    webhook = dead_url("called")
    start = datetime.now().astimezone().replace(microsecond=0) + timedelta(days=2)
    typed = {
        "Delay, seconds": "",
        "Attempts": "7",
        "Time limit, seconds": "30",
        "Run at": f"{start:%Y-%m-%dT%H:%M:%S}",
        "Time to live, seconds": "700000",
        "Backoff": "no_such",
        "Backoff starts at, seconds": "2",
        "Backoff is at most, seconds": "60",
        "Webhook": webhook,
        "Idempotency key": "typed.by.hand",
    }
    await admin.open("/queues/every.field", ready="main .figures")
    await admin.click("New task")
    await admin.page.get_by_label("Payload, JSON").fill("{}")
    await admin.page.get_by_text("More", exact=True).click()
    for label, text in typed.items():
        await admin.page.locator("dialog").get_by_label(label, exact=True).fill(text)
    await admin.click("Create", within="dialog")
    wrong = admin.page.locator("dialog label:has([name=backoffPolicy]) + [role=alert]")
    await wrong.filter(has_text="exp_full_jitter").wait_for()
    await admin.page.get_by_label("Backoff", exact=True).fill("linear")
    await admin.click("Create", within="dialog")
    await admin.page.wait_for_selector("main .tag:has-text('Delayed')")
    task = (await client.task("n2", "admin", admin.page.url.rsplit("/", 1)[1])).body
    again = await client.created("n2", "producer", "every.field", idempotencyKey="typed.by.hand")
    created, expires = (datetime.fromisoformat(task[name]) for name in ("createdAt", "expiresAt"))

    assert task["id"] == again["id"]
    assert timedelta(seconds=700_000) == expires - created
    assert start == datetime.fromisoformat(task["runAt"])
    assert (7, 30, webhook) == (task["maxAttempts"], task["timeoutSeconds"], task["webhook"])
    assert ("linear", 2, 60) == tuple(
        task[f"backoff{part}"] for part in ("Policy", "BaseSeconds", "MaxSeconds")
    )


async def test_a_queue_shows_what_governs_it_and_who_says_so(
    admin: Window, client: RecordingClient
) -> None:
    """A value is the topic's, or else the broker's default."""
    policy = {"maxAttempts": 9, "backoffBaseSeconds": 3}
    await client.done("PUT", "n1", "/admin/topics/governed.by", "admin", policy)
    await admin.open("/queues/governed.by", ready="main dl.facts dd")
    facts = admin.page.locator("dl.facts").last
    await facts.get_by_text("governed.by, version 1").wait_for()
    terms = await facts.locator("dt").all_inner_texts()
    values = dict(zip(terms, await facts.locator("dd").all_inner_texts(), strict=True))

    assert "9 topic" == values["Attempts"]
    assert "3 s topic" == values["Backoff starts at"]
    assert "15 min broker's default" == values["Backoff is at most"]
    assert "exp_full_jitter broker's default" == values["Backoff"]
    assert "1 d broker's default" == values["Results are kept"]


async def test_a_double_click_creates_one_task(admin: Window, client: RecordingClient) -> None:
    """A queue's own view fills in the queue's name."""
    await admin.open("/queues/clicked.twice", ready="main .figures")
    await admin.click("New task")
    await admin.page.get_by_label("Payload, JSON").fill("[]")
    await admin.page.get_by_role("button", name="Create", exact=True).dblclick()
    await admin.page.wait_for_selector("main .tag:has-text('Ready')")

    assert 1 == (await client.depth("n1", "admin", "clicked.twice"))["ready"]


async def test_a_task_whose_answer_got_lost_is_not_created_again(
    admin: Window, client: RecordingClient
) -> None:
    """The form stays open, and sends the same idempotency key."""

    async def lose(route: Route) -> None:
        await route.fetch()
        await route.abort()

    await admin.page.route("**/ui/api/tasks", lose, times=1)
    await admin.open("/queues/answer.lost", ready="main .figures")
    await admin.click("New task")
    await admin.page.get_by_label("Payload, JSON").fill("[]")
    await admin.click("Create", within="dialog")
    await admin.shows("this node does not answer", within="dialog [role=alert]")
    await admin.click("Create", within="dialog")
    await admin.shows("There was a task with this idempotency key already", within="#toasts")
    await admin.page.wait_for_selector("main .tag:has-text('Ready')")

    assert 1 == (await client.depth("n1", "admin", "answer.lost"))["ready"]


async def test_a_readers_place_in_the_problems_is_kept(
    admin: Window, client: RecordingClient
) -> None:
    """The place is kept when another problem is inserted before it."""
    await client.created("n1", "producer", "place.older")
    await admin.open()
    await client.created("n1", "producer", "place.kept")
    await client.done("POST", "n1", "/admin/queues/place.kept/pause", "admin", {})
    kept = admin.page.locator("li[data-key='paused/place.kept'] a")
    await kept.focus()
    await client.done("POST", "n1", "/admin/queues/place.older/pause", "admin", {})
    before = "li[data-key='paused/place.older'] ~ li[data-key='paused/place.kept']"
    await admin.page.wait_for_selector(before)

    assert await kept.evaluate("(link) => link === document.activeElement")


async def test_workers_are_shown_with_their_tasks(admin: Window, client: RecordingClient) -> None:
    """Their names are shown as text whatever they contain, and lead to their tasks."""
    created = await client.created("n1", "producer", "workers.held")
    name = {"workerName": "resizer@host-1:7"}
    claimed = await client.claimed("n2", HOSTILE_WORKER, ["workers.held"], **name)
    assert created["id"] == claimed["id"]
    await admin.open("/workers")
    row = admin.page.locator("tr", has_text=f"{HOSTILE}/resizer@host-1:7")
    columns = await row.locator("th").evaluate("cell => cell.offsetWidth")
    await row.get_by_role("link", name="1", exact=True).click()
    await admin.page.get_by_role("link", name=created["id"][:13]).wait_for()

    assert HOSTILE in await admin.text()
    assert columns >= 200, "a name of a host and a process breaks in the middle"
    assert 0 == await admin.page.locator("main img").count()


async def test_dead_callbacks_are_replayed(admin: Window, client: RecordingClient) -> None:
    """An admin can replay a single callback or all of them."""
    for command in ("hooks.one", "hooks.two"):
        await undelivered(client, command)
    await until_dead(client, "hooks.one", "hooks.two")
    await admin.open("/webhooks")
    await admin.page.locator("tr", has_text="hooks.one").get_by_role("checkbox").check()
    await admin.click("Replay selected")
    await admin.click("Replay 1", within="dialog")
    await admin.shows("1 delivery on the way again", within="#toasts")
    await until_dead(client, "hooks.one", "hooks.two")
    await admin.click("Refresh")
    await admin.page.wait_for_selector("main .pager:has-text('shown, all there are')")
    await admin.click("Replay all", within="main")
    await admin.click("Replay all", within="dialog")

    await admin.shows("deliveries on the way again", within="#toasts")


async def test_an_admin_sees_and_rotates_the_webhook_key(
    admin: Window, client: RecordingClient
) -> None:
    """The key is shown on demand alone; a rotation shows the new key beside the old one."""
    await admin.open("/webhooks")
    await admin.shows("Showing it leaves an audit record")
    hidden = await admin.text()
    await admin.click("Show keys")
    await admin.shows("version 1, current")
    await admin.click("Rotate key")
    await admin.click("Rotate", within="dialog")
    await admin.shows("version 2, current")
    shown = await admin.text()
    keys = await client.done("GET", "n1", "/admin/webhooks/keys", "admin")
    replaced = datetime.fromisoformat(keys["keys"][1]["signsUntil"]).astimezone()

    assert "cqwh_" not in hidden
    assert f"version 1, signs until {replaced:%Y-%m-%d %H:%M:%S}" in shown
    assert [2, 1] == [each["version"] for each in keys["keys"]]
    assert all(each["key"] in shown and each["id"] in shown for each in keys["keys"])


async def until_dead(client: RecordingClient, *commands: str) -> None:
    """Wait until callbacks of these commands are dead."""

    async def given_up() -> bool:
        dead = await client.done("GET", "n1", "/admin/deliveries?status=dead", "admin")
        return {each["command"] for each in dead["deliveries"]} >= set(commands)

    await until(given_up, what=f"the callbacks of {commands} are given up")


async def test_a_policy_is_made_changed_and_deleted(admin: Window, client: RecordingClient) -> None:
    """The broker's own error is shown beside the form."""
    await admin.open("/topics")
    await admin.click("New policy")
    await admin.page.get_by_label("Queue", exact=True).fill("policy.made")
    await admin.page.get_by_label("Dead letters go to").fill("NOT A NAME")
    await admin.click("Save", within="dialog")
    await admin.shows("invalid deadLetterTopicRef", within="dialog [role=alert]")
    await admin.page.get_by_label("Dead letters go to").fill("policy-dead")
    await admin.page.get_by_label("Backoff", exact=True).fill("linear")
    await admin.page.get_by_label("Priorities").fill("1, 5")
    await admin.click("Save", within="dialog")
    await admin.page.get_by_role("link", name="policy-dead").wait_for()
    await admin.click("Edit")
    await admin.page.get_by_label("Attempts", exact=True).fill("3")
    await admin.click("Save", within="dialog")
    await admin.shows("3 deliveries")
    put = await client.done("GET", "n2", "/admin/topics/policy.made", "admin")
    await admin.click("Delete", within="main")
    await admin.page.fill("dialog input[name=typed]", "policy.made")
    await admin.click("Delete the policy", within="dialog")
    await admin.shows("no policy of its own any more", within="#toasts")
    gone = await client.call("GET", "n2", "/admin/topics/policy.made", "admin")

    assert {
        "priorityTiers": [1, 5],
        "maxAttempts": 3,
        "backoffPolicy": "linear",
        "deadLetterTopicRef": "policy-dead",
        "weight": 1,
    } == put["policy"]
    assert 404 == gone.status


async def test_a_leadership_is_transferred_and_all_are_rebalanced(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """An operator sees each shard's leader and its preferred leader."""
    async with browser.window(url_of(cluster), token="operator") as window:
        await window.open("/cluster", ready="main .chip.lead")
        for _ in range(TRIES):
            if await rebalancing_is_asked(window):
                break
            await window.page.keyboard.press("Escape")  # Escape closes the dialog, if one is open.
        await window.shows("1 by n2", within="dialog")
        await window.click("Rebalance", within="dialog")
        await window.shows("transferred", within="#toasts")
        await window.page.wait_for_selector("tr[data-key='1'] .chip.lead:has-text('n2')")

        assert await window.page.get_by_role("button", name="Rebalance").is_disabled()


async def rebalancing_is_asked(window: Window) -> bool:
    """Transfer shard 1 to n3 and click `Rebalance`; return whether the click came in time."""
    page = window.page
    # The leader before a restart may still lead for a moment.
    await page.wait_for_selector("tr[data-key='1'] .chip.lead:has-text('n2')")
    await page.get_by_label("Transfer shard 1").click()
    dialog = page.get_by_role("dialog")
    try:
        await dialog.get_by_role("combobox").select_option("n3", timeout=BEFORE_ITSELF_MS)
        await dialog.get_by_role("button", name="Transfer", exact=True).click()
        done = page.locator("#toasts").get_by_text("Shard 1 is led by n3").first
        await done.wait_for(timeout=BEFORE_ITSELF_MS)
        await page.get_by_role("button", name="Rebalance").click(timeout=BEFORE_ITSELF_MS)
    except NotInTime:
        return False
    return True


async def test_a_row_that_is_drawn_again_acts_on_what_it_shows(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """A shard's dialog names the current leader, not the one from when the page was opened."""
    async with browser.window(url_of(cluster), token="operator") as window:
        await window.open("/cluster", ready="main .chip.lead")
        row = window.page.locator("tr[data-key='2']")
        for _ in range(TRIES):
            leader = await row.locator(".chip.lead").inner_text()
            other = next(node for node in cluster.nodes if node not in leader)
            body = {"shard": 2, "to": other}
            await client.call("POST", "n1", "/admin/cluster/transfer", "operator", body)
            try:
                # The cluster moves the leadership back by itself after a while.
                chip = row.locator(f".chip.lead:has-text('{other}')")
                await chip.wait_for(timeout=BEFORE_ITSELF_MS)
            except NotInTime:
                continue
            await window.page.get_by_label("Transfer shard 2").click()
            named = await window.text("dialog p")
            await window.page.keyboard.press("Escape")
            if await chip.count():
                break

        assert named.startswith(f"{other} leads it.")


async def test_a_backup_is_taken_and_on_record(browser: Chromium, cluster: LocalCluster) -> None:
    """An operator follows the backup to its end, and the audit names the operator."""
    async with browser.window(url_of(cluster), token="operator") as window:
        await window.open("/cluster")
        await window.click("Back up now")
        await window.click("Take a backup", within="dialog")
        await window.shows("The backup is complete", within="#toasts")
        await window.page.locator("tr", has_text="complete").first.wait_for()
        await window.page.get_by_role("link", name="Audit").first.click()
        await window.shows("Began a backup")

        assert "the operator" in await window.text()


async def test_the_operator_who_changed_a_queue_is_on_record_as_text(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """An admin's name is text whatever it contains; a cluster's operator sees no record of it."""
    await client.done("POST", "n2", "/admin/queues/audit.me/pause", "hostile", {})
    async with browser.window(url_of(cluster), token="hostile") as window:
        await window.open("/audit")
        await window.page.get_by_role("link", name="audit.me").wait_for()
        shown = await window.text()

        assert HOSTILE in shown
        assert 0 == await window.page.locator("img[src=x]").count()
    async with browser.window(url_of(cluster), token="operator") as window:
        await window.open("/audit")
        await window.page.wait_for_selector("main .pager:not(:has(button))")

        assert "audit.me" not in await window.text()


async def test_a_viewer_is_offered_nothing_that_changes_anything(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """Of a callback's target a viewer sees the host, without the part that may be secret."""
    url = await undelivered(client, "hooks.viewed")
    await until_dead(client, "hooks.viewed")
    async with browser.window(url_of(cluster), token="viewer") as window:
        await window.open("/webhooks")
        await window.shows("hooks.viewed")
        shown = await window.page.content()
        buttons = []
        for path in ("/webhooks", "/topics", "/topics/hooks.viewed", "/workers", "/tasks", ""):
            await window.open(path)
            buttons += await window.page.locator("main button").all_inner_texts()

        assert f"http://{urlsplit(url).hostname}/…" in shown
        assert "secret" not in shown
        assert set(buttons) <= {"Refresh", "Stop"}  # The buttons of a search.


async def test_another_site_changes_nothing_through_a_browser_that_is_logged_in(
    admin: Window, cluster: LocalCluster, client: RecordingClient
) -> None:
    """Even requests from another port of the same host, which carry the cookie, are refused."""
    await client.created("n1", "producer", "forged")
    path = f"{url_of(cluster)}/ui/api/queues/forged/pause"
    await admin.page.route(
        "http://127.0.0.1:9/**",
        lambda route: route.fulfill(body="<p>harmless</p>", content_type="text/html"),
    )
    answered: list[int] = []
    admin.page.on(
        "response", lambda said: answered.append(said.status) if said.url == path else None
    )
    await admin.page.goto("http://127.0.0.1:9/")
    await admin.page.evaluate(
        """(path) => {
          const form = document.createElement("form");
          Object.assign(form, { method: "POST", action: path, enctype: "text/plain" });
          document.body.append(form);
          form.submit();
        }""",
        path,
    )
    await admin.page.wait_for_url(path)
    await client.claimed("n2", WORKER, ["forged"])  # The queue is not paused.

    assert [403] == answered


@pytest.mark.parametrize(
    ("size", "dark"), [(WIDE, True), (NARROW, False)], ids=["wide-dark", "narrow-light"]
)
async def test_everybody_can_use_every_view(
    browser: Chromium,
    cluster: LocalCluster,
    client: RecordingClient,
    size: tuple[int, int],
    dark: bool,
) -> None:
    """By keyboard, screen reader, phone and dark colours: axe finds nothing serious."""
    await client.done("PUT", "n1", "/admin/topics/every.topic", "admin", {"weight": 2})
    await client.done("POST", "n1", "/tasks/claim", WORKER, {"commands": ["every.topic"]})
    await undelivered(client, "every.hook")
    views = ("/workers", "/webhooks", "/topics", "/topics/every.topic", "/cluster", "/audit")
    async with browser.window(url_of(cluster), size=size, dark=dark, token="both") as window:
        faults = {}
        for path in views:
            await window.open(path)
            await window.page.wait_for_selector("#liveness[data-state=live]")
            faults[path] = await window.faults_of_access()
            if await window.too_wide() > 0:
                faults[path].append("wider than the window")
        await window.open("/topics/every.topic")
        await window.click("Edit")
        faults["dialog"] = await window.faults_of_access()
        await window.open("/tasks")
        await window.click("New task")
        await window.page.get_by_label("Payload, JSON").fill("{")
        await window.page.get_by_label("Command").fill("every.task")
        await window.click("Create", within="dialog")
        await window.shows("The payload is no JSON", within="dialog [role=alert]")
        faults["new task"] = await window.faults_of_access()

        assert not {path: found for path, found in faults.items() if found}


async def test_a_node_without_the_majority_says_so_and_leads_to_the_others(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """The known data stays visible, and the warning goes when the others are back."""
    async with browser.window(url_of(cluster), token="both") as window:
        await window.open("/cluster", ready="main .chip.lead")
        await asyncio.gather(cluster.kill("n2"), cluster.kill("n3"))
        await window.page.wait_for_selector("#notice:has-text('n1 knows no leader of any shard')")
        offered = await window.page.locator("#notice a").all_inner_texts()
        kept = await window.text()
        for node in ("n2", "n3"):
            cluster.start(node)
        await window.page.wait_for_selector("#notice:empty", state="attached")

        assert ["n2", "n3"] == offered
        assert "away" in kept


async def test_no_view_says_that_there_is_nothing_when_it_cannot_know(
    browser: Chromium, cluster: LocalCluster, client: RecordingClient
) -> None:
    """Without a majority every empty list says why it cannot tell, and asks again afterwards."""
    nowhere = "/queues?text=in.no.name"
    views = {
        "": 0,
        "/queues/never.used": 1,
        **dict.fromkeys(("/topics", "/workers", "/audit", "/delayed", "/tasks", nowhere), 1),
        **dict.fromkeys(("/queues", "/dead-letters"), 1),
        "/dead-letters/never.used": 2,
        "/webhooks": 3,
    }
    task = await client.created("n1", "producer", "cannot.tell", delaySeconds=900)
    async with browser.window(url_of(cluster), token="both") as window:
        empty = window.page.locator("td.empty, .problems .good")
        await window.open(nowhere)
        await window.shows("No queue matches.")
        await asyncio.gather(cluster.kill("n2"), cluster.kill("n3"))
        because = "Cannot tell: n1 knows no leader of any shard."
        await window.shows(because)
        said: dict[str, list[str]] = {}
        for path, least in views.items():
            await window.open(path)
            await window.page.wait_for_function(
                """least => {
                  const shown = [...document.querySelectorAll("tbody tr, .problems .good")];
                  const known = shown.every((each) => each.innerText.trim() !== "…");
                  return shown.length >= least && known;
                }""",
                arg=least,
            )
            said[path] = await empty.all_inner_texts()
        for path in (f"/tasks/{task['id']}", "/topics/never.used"):
            await window.open(path)
            await window.shows(because)
        await window.open("/cluster")
        await window.shows("none known")
        await window.open("/dead-letters/never.used")
        for node in ("n2", "n3"):
            cluster.start(node)
        await window.shows("There are no dead letters of this kind.")
        await window.open("/delayed")
        await window.page.get_by_role("link", name="cannot.tell").wait_for()

        texts = {text.replace(" Try again", "") for each in said.values() for text in each}
        # Queues of other tests may still be in a list, which then says that it may lack some.
        texts.discard(because.replace("Cannot tell", "There may be more"))
        assert {because} == texts, said


async def test_a_dead_node_leaves_no_doubt_about_what_the_leaders_know(
    browser: Chromium, cluster: LocalCluster
) -> None:
    """With every shard led, nothing waits; only what each node counts by itself has a gap."""
    async with browser.window(url_of(cluster), token="both") as window:
        await cluster.kill("n3")
        await window.open("/cluster")
        await window.shows("away lost")
        await window.open("")
        waiting = window.page.get_by_role("table", name="Longest waiting")
        await waiting.filter(has_not_text="Cannot tell").wait_for()
        busiest = window.page.get_by_role("region", name="Busiest")
        await busiest.get_by_text("n3 cannot be asked.").wait_for()
        cluster.start("n3")
        await window.page.get_by_text("cannot be asked").first.wait_for(state="detached")

        assert "Cannot tell" not in await window.text()


@pytest.mark.parametrize("view", ["tasks", "audit", "topics", "backups"])
async def test_a_list_whose_request_failed_says_so_and_asks_again(
    browser: Chromium, cluster: LocalCluster, view: str
) -> None:
    """A single failed answer shows its reason in the list, with a button."""
    path = "/cluster" if view == "backups" else f"/{view}"
    async with browser.window(url_of(cluster), token="both") as window:
        await window.page.route(
            f"**/ui/api/{view}*",
            lambda route: route.fulfill(status=503, json={"error": "no leader for shard"}),
            times=1,
        )
        await window.open(path)
        await window.shows("Cannot tell: no leader for shard.")
        await window.click("Try again", within="main")
        await window.page.get_by_text("Cannot tell").wait_for(state="detached")
