"""Task lists: existing tasks, their place, the reason for it, and cleanups."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from codeq_cluster.settings import LifecycleSettings, LimitSettings, RateLimitSettings, RateSettings
from tests.integration.http.client import Client, eventually, serving, single
from tests.integration.http.operating import died, finished, pages, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"


async def _one_of_each(node: Client, command: str) -> dict[str, set[str]]:
    """Create a task of every status; return their ids by status."""
    cancelled = await node.create(command)
    await node.post(f"tasks/{cancelled}/cancel")
    dead = await died(node, command)
    done = await finished(node, command)
    held = await node.create(command)
    await node.claim(command)
    ready = await node.create(command)
    delayed = await node.create(command, delaySeconds=3600)
    return {
        "PENDING": {ready, delayed},
        "IN_PROGRESS": {held},
        "COMPLETED": {done},
        "FAILED": {dead, cancelled},
    }


async def test_the_beginning_of_an_id_finds_its_task(node: Client) -> None:
    """Another tenant's ids are not found, and too short a beginning is refused."""
    task_id = await node.create("short-id")
    mine = await node.get(f"tasks?idPrefix={task_id[:13]}")
    whole = await node.get(f"tasks?idPrefix={task_id}")
    theirs = await Client(node.port, "other").get(f"tasks?idPrefix={task_id[:13]}")
    short = await node.get(f"tasks?idPrefix={task_id[:7]}")
    none = await node.get("tasks")

    assert {"ids": [task_id], "more": False} == mine.json == whole.json
    assert {"ids": [], "more": False} == theirs.json
    assert [(400, "bad-prefix")] * 2 == [(each.status, each.json["code"]) for each in (short, none)]


async def _until_after(node: Client, task_id: str) -> str:
    """Return a past instant at which the task had ended for a while."""
    ended = datetime.fromisoformat(str((await node.get(f"tasks/{task_id}")).json["updatedAt"]))
    before = ended + timedelta(milliseconds=1)
    while datetime.now(tz=UTC) < before:
        await node.get("/healthz")
    return before.isoformat()


async def test_tasks_are_listed_by_status(node: Client) -> None:
    """Each task is in the list of its status and in the list of all."""
    expected = await _one_of_each(node, "tl-status")
    for status, ids in expected.items():
        path = f"admin/tasks?command=TL-status&status={status}"
        found = await walked(node, path, "tasks")

        assert ids == {each["id"] for each in found}
        assert {status} == {each["status"] for each in found}
    everything = await walked(node, "admin/tasks?command=tl-status&limit=1", "tasks")

    assert sorted(set.union(*expected.values())) == sorted(each["id"] for each in everything)


async def test_a_listed_task_is_the_task(node: Client) -> None:
    """It has its payload and all other fields."""
    task_id = await node.create("tl-same", payload={"a": [1, 2.5, None]}, priority=3)
    [listed] = await walked(node, "admin/tasks?command=tl-same", "tasks")

    assert (await node.get(f"tasks/{task_id}")).json == listed


async def test_a_walk_meets_each_task_once_while_tasks_are_added(node: Client) -> None:
    """A task that does not move appears exactly once, over queues, states and shards."""
    lister = Client(node.port, "listed")
    before = set()
    for command in ("one", "Two", "three.3"):
        before |= set.union(*(await _one_of_each(lister, command)).values())
        before |= {await lister.create(command) for _ in range(4)}
    met: list[str] = []
    async for page in pages(lister, "admin/tasks?limit=3"):
        assert len(page["tasks"]) <= 3
        met += [each["id"] for each in page["tasks"]]
        await lister.create("Two")
        await lister.create("zero", delaySeconds=60)

    assert len(set(met)) == len(met)
    assert before <= set(met)


async def test_waiting_tasks_are_listed_in_claim_order(node: Client) -> None:
    """Higher priorities come first."""
    low, high = (
        await node.create("tl-order", priority=0),
        await node.create("tl-order", priority=9),
    )
    listed = await walked(node, "admin/tasks?command=tl-order&status=PENDING", "tasks")

    assert [high, low] == [each["id"] for each in listed]


async def test_a_list_is_narrowed_by_the_error(node: Client) -> None:
    """Without a queue, all queues are searched."""
    lister = Client(node.port, "mine")
    task_id = await died(lister, "tl-error", "rare")
    await died(lister, "tl-error", "common")

    assert [task_id] == [
        each["id"] for each in await walked(lister, "admin/tasks?error=rare", "tasks")
    ]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("status=READY", "invalid status"),
        ("status=pending", "invalid status"),
        ("command=a%20b", "invalid command"),
        ("command=a%2Fb", "invalid command"),
        ("limit=0", "invalid 'limit' (must be >= 1)"),
        ("limit=501", "invalid 'limit' (must be <= 500)"),
        ("limit=ten", "invalid 'limit' (use an integer)"),
        ("cursor=nonsense", "invalid 'cursor'"),
    ],
)
async def test_a_list_asked_for_wrongly_is_refused(node: Client, query: str, text: str) -> None:
    """The refusal names the bounds."""
    answer = await node.get(f"admin/tasks?{query}")

    assert (400, text) == (answer.status, answer.error)


# -- cleanup -----------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b" "])
async def test_a_cleanup_without_a_word_deletes_nothing_before_its_time(
    node: Client, body: bytes
) -> None:
    """The answer has the defaults used: a thousand tasks, and the broker's retention."""
    cleaner = Client(node.port, "cleaned")
    task_id = await finished(cleaner, "kept")
    answer = await cleaner.post("admin/tasks/cleanup", body)
    age = datetime.now(tz=UTC) - datetime.fromisoformat(str(answer.json["before"]))

    assert 200 == answer.status
    assert {"deleted", "before", "limit"} == set(answer.json)
    assert (0, 1000) == (answer.json["deleted"], answer.json["limit"])
    assert age >= timedelta(days=1)
    assert 200 == (await cleaner.get(f"tasks/{task_id}")).status


async def test_a_cleanup_deletes_tasks_that_ended_before_and_leaves_the_rest(node: Client) -> None:
    """Living tasks, dead letters and tasks that ended later stay."""
    cleaner = Client(node.port, "cleaned")
    expected = await _one_of_each(cleaner, "cleanup")
    [done] = expected["COMPLETED"]
    before = await _until_after(cleaner, done)
    later = await finished(cleaner, "cleanup-later")
    answer = await cleaner.post("admin/tasks/cleanup", {"before": before})
    left = {each["id"] for each in await walked(cleaner, "admin/tasks?command=cleanup", "tasks")}
    dead = {each["id"] for each in (await cleaner.get("admin/queues/cleanup/dlq")).json["tasks"]}

    assert answer.json["deleted"] >= 2
    assert expected["PENDING"] | expected["IN_PROGRESS"] | dead == left
    assert 200 == (await cleaner.get(f"tasks/{later}")).status
    assert 404 == (await cleaner.get(f"tasks/{done}")).status


async def test_a_cleanup_stops_at_its_limit(node: Client) -> None:
    """The answer has the limit in force, clamped to its bounds."""
    cleaner = Client(node.port, "theirs")
    ids = [await finished(cleaner, "limited") for _ in range(3)]
    before = await _until_after(cleaner, ids[-1])
    first = await cleaner.post("admin/tasks/cleanup", {"limit": 2, "before": before})
    huge = await cleaner.post("admin/tasks/cleanup", {"limit": 10**9, "before": before})
    none = await cleaner.post("admin/tasks/cleanup", {"limit": -5, "before": before})

    assert (2, 2) == (first.json["deleted"], first.json["limit"])
    assert (1, 10_000) == (huge.json["deleted"], huge.json["limit"])
    assert (0, 1000) == (none.json["deleted"], none.json["limit"])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"before": "yesterday"}, "invalid 'before' (use RFC3339)"),
        ({"before": "2024-01-01"}, "invalid 'before' (use RFC3339)"),
        ({"before": "2024-01-01T00:00:00"}, "invalid 'before' (use RFC3339)"),
        ({"before": "9999-12-31T23:59:59Z"}, "invalid 'before' (must not be in the future)"),
        ({"before": 5}, "invalid body"),
        ({"limit": "5"}, "invalid body"),
        ({"limit": 10**30}, "invalid body"),
    ],
)
async def test_a_cleanup_asked_for_wrongly_is_refused(
    node: Client, body: dict[str, object], text: str
) -> None:
    """The refusal has the reference's words if there are any."""
    answer = await node.post("admin/tasks/cleanup", body)

    assert (400, text) == (answer.status, answer.error)


async def test_a_cleanup_before_the_epoch_finds_nothing(node: Client) -> None:
    """No task is that old."""
    answer = await node.post("admin/tasks/cleanup", {"before": "1901-01-01T00:00:00Z"})

    assert (200, 0) == (answer.status, answer.json["deleted"])
    assert "1901-01-01T00:00:00.000Z" == answer.json["before"]


async def test_a_cleanup_without_arguments_spares_tasks_that_are_kept_longer(
    tmp_path: Path,
) -> None:
    """A topic's retention or an idempotency key may keep a task for longer than the broker does."""
    settings = replace(
        single(tmp_path / "node", LimitSettings()),
        lifecycle=LifecycleSettings(retention_seconds=1),
    )
    async with serving(settings) as client:
        await client.send("PUT", "admin/topics/long", b'{"retentionSeconds":3600}')
        kept = await finished(client, "long")
        ended = str((await client.get(f"tasks/{kept}")).json["updatedAt"])
        answer = await eventually(
            lambda: client.post("admin/tasks/cleanup"),
            lambda answer: str(answer.json["before"]) > ended,
        )
        spared = await client.get(f"tasks/{kept}")
        told = await client.post("admin/tasks/cleanup", {"before": answer.json["before"]})

    assert (0, 200) == (answer.json["deleted"], spared.status)
    assert 1 == told.json["deleted"]


async def test_cleanups_are_counted_against_their_limit(tmp_path: Path) -> None:
    """The second cleanup within a minute is refused, whatever its body."""
    settings = replace(
        single(tmp_path / "node", LimitSettings()),
        rate_limit=RateLimitSettings(admin=RateSettings(requests_per_minute=1, burst_size=1)),
    )
    async with serving(settings) as client:
        first = await client.post("admin/tasks/cleanup")
        second = await client.post("admin/tasks/cleanup", b"nonsense")
        listed = await client.get("admin/tasks")

    assert (200, 200) == (first.status, listed.status)
    assert (429, "rate limit exceeded") == (second.status, second.error)
    assert ("admin", "cleanup") == (second.json["scope"], second.json["operation"])
    assert int(second.headers["retry-after"]) >= 1


# -- explain -----------------------------------------------------------------------------------


async def test_every_state_of_a_task_is_explained(node: Client) -> None:
    """Each state has one reason, with its end if time ends it."""
    ready, behind = await node.create("tl-explain"), await node.create("tl-explain", priority=0)
    delayed = await node.create("tl-explain", delaySeconds=3600)
    dead, done = await died(node, "tl-explain-2"), await finished(node, "tl-explain-2")
    cancelled = await node.create("tl-explain-2")
    await node.post(f"tasks/{cancelled}/cancel")
    held = await node.create("tl-explain-3")
    await node.claim("tl-explain-3")

    async def reason(task_id: str) -> tuple[object, object, bool]:
        told = (await node.get(f"tasks/{task_id}/explain")).json
        assert task_id == told["taskId"]
        assert told["message"]
        return told["reason"], told["waiting"], "until" in told

    assert ("no-claim", True, False) == await reason(ready)
    assert (await reason(behind))[0] in ("no-claim", "behind-others")
    assert ("scheduled", True, True) == await reason(delayed)
    assert ("dead-letter", False, False) == await reason(dead)
    assert ("completed", False, False) == await reason(done)
    assert ("cancelled", False, False) == await reason(cancelled)
    assert ("running", False, True) == await reason(held)
    await node.post("admin/queues/tl-explain/pause")
    assert ("queue-paused", True, False) == await reason(ready)
    await node.post("admin/queues/tl-explain/resume")


async def test_any_token_of_the_tenant_may_ask_why(node: Client) -> None:
    """A worker of the tenant may ask too; another tenant may not."""
    task_id = await node.create("tl-asked")
    worker = await node.get(f"tasks/{task_id}/explain", token="narrow")
    stranger = await node.get(f"tasks/{task_id}/explain", token="other")

    assert 200 == worker.status
    assert (404, "task not found") == (stranger.status, stranger.error)


@pytest.mark.parametrize("task_id", [ID, "x" * 3000, "a%2Fb", "..", "%00", "%F0%9F%92%A9"])
async def test_an_unknown_task_is_not_explained(node: Client, task_id: str) -> None:
    """An unknown task is not found."""
    answer = await node.get(f"tasks/{task_id}/explain")

    assert (404, "task not found") == (answer.status, answer.error)
