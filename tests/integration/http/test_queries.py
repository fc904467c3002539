"""Queries: what an admin says in a query is understood, or refused, and never ignored."""

from __future__ import annotations

import pytest

from tests.integration.http.client import Client
from tests.integration.http.operating import delete, died

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_a_dry_run_that_the_route_does_not_know_changes_nothing(node: Client) -> None:
    """A purge takes `dryRun` in its body; in its query it would purge."""
    waiting = await node.create("dry-purge")
    purge = await node.post("admin/queues/dry-purge/purge?dryRun=true", b"")
    letter = await died(node, "dry-letter")
    path = f"admin/queues/dry-letter/dlq/{letter}"
    misspelt = await delete(node, f"{path}?dryrun=true")

    assert (400, "unknown-name") == (purge.status, purge.json["code"])
    assert "invalid 'dryRun' (unknown: the query of this route has no parameters)" == purge.error
    assert "PENDING" == (await node.get(f"tasks/{waiting}")).json["status"]
    assert (400, "invalid 'dryrun' (unknown: use dryRun)") == (misspelt.status, misspelt.error)
    assert 200 == (await node.get(path)).status


async def test_open_routes_and_those_of_producers_ignore_what_is_added(node: Client) -> None:
    """Probes and scrapers may add parameters that they cannot leave out, and so may old clients."""
    answers = [await node.send("GET", f"/{path}?verbose=1", b"") for path in ("healthz", "readyz")]
    answers.append(await node.get(f"tasks/{await node.create('added')}?verbose=1"))

    assert [200, 200, 200] == [answer.status for answer in answers]


async def test_a_tag_may_be_repeated_and_a_filter_may_not(node: Client) -> None:
    """The second of two filters would be ignored."""
    tags = await node.get("admin/tasks?tag=a:b&tag=c:d")
    queues = await node.get("admin/tasks?command=a&command=b")

    assert 200 == tags.status
    assert (400, "invalid 'command' (give it once)") == (queues.status, queues.error)


async def test_a_cursor_of_another_queue_is_refused(node: Client) -> None:
    """It would begin behind the asked queue, so that its list looked empty."""
    for command in ("cursor-a", "cursor-b"):
        for _ in range(2):
            await node.create(command)
    first = await node.get("admin/tasks?command=cursor-b&limit=1")
    cursor = first.json["cursor"]
    other = await node.get(f"admin/tasks?command=cursor-a&cursor={cursor}")
    same = await node.get(f"admin/tasks?command=CURSOR-B&cursor={cursor}")

    assert (400, "invalid-cursor") == (other.status, other.json["code"])
    assert "use the one of the previous page of this list" in other.json["detail"]
    assert (200, 1) == (same.status, len(same.json["tasks"]))


@pytest.mark.parametrize("name", ["createdAfter", "createdBefore"])
async def test_an_instant_that_is_none_is_named(node: Client, name: str) -> None:
    """There are two of them, in lists and in bulk jobs."""
    said = f"invalid '{name}' (use RFC3339)"
    listed = await node.get(f"admin/tasks?command=c&{name}=yesterday")
    select = {"command": "c", name: "yesterday"}
    job = await node.post("admin/bulk", {"select": select, "action": "cancel", "dryRun": True})

    assert (400, said) == (listed.status, listed.error)
    assert (400, said) == (job.status, job.error)


async def test_an_id_that_is_none_is_named(node: Client) -> None:
    """The refusal says which of the ids it is about."""
    answer = await delete(node, "admin/queues/c/dlq?ids=good,not%20good")

    assert (400, "invalid-ids") == (answer.status, answer.json["code"])
    assert answer.json["detail"].startswith("'not good' is the id of no task")


@pytest.mark.parametrize("path", ["admin/queues/c/keys/caf%e9", "admin/tasks?error=caf%e9"])
async def test_an_encoding_other_than_utf_8_is_refused(node: Client, path: str) -> None:
    """It would name something else, without a word."""
    answer = await node.get(path)

    assert (400, "bad-request") == (answer.status, answer.json["code"])
    assert "percent-encode the path and the query as UTF-8" == answer.json["detail"]
