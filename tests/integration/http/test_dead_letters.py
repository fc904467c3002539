"""Dead letters: listed, counted, requeued and deleted by their own tenant."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.api.routes.dead_letters import IDS_MAX
from tests.integration.http.client import Client
from tests.integration.http.operating import delete, died, pages, quoted, walked

pytestmark = pytest.mark.asyncio(loop_scope="session")

ID = "00000000-0000-4000-8000-000000000000"


async def test_dead_letters_are_listed_with_their_payloads_the_newest_first(node: Client) -> None:
    """Payloads are unchanged, including big integers."""
    payload = {"n": 2**70}
    first = await died(node, "dl-list", "one", payload=payload)
    second = await died(node, "dl-list", "two")
    await node.create("dl-list")
    page = (await node.get("admin/queues/DL-List/dlq")).json

    assert "cursor" not in page
    assert [
        (second, "two"),
        (first, "one"),
    ] == [(each["id"], each["error"]) for each in page["tasks"]]
    [_, shown] = page["tasks"]
    assert payload == json.loads(shown["payload"])
    assert (await node.get(f"tasks/{first}")).json == shown


async def test_a_walk_meets_each_once_while_more_die(node: Client) -> None:
    """Tasks that die meanwhile are newer than the walk's position."""
    before = {await died(node, "dl-walk") for _ in range(7)}
    met: list[str] = []
    sizes = []
    async for page in pages(node, "admin/queues/dl-walk/dlq?limit=2"):
        met += [each["id"] for each in page["tasks"]]
        sizes.append(len(page["tasks"]))
        await died(node, "dl-walk")

    assert len(met) == len(set(met)) == 7
    assert before == set(met)
    assert 2 == max(sizes)


async def test_a_list_is_narrowed_by_the_error(node: Client) -> None:
    """Only the whole text of an error matches."""
    await died(node, "dl-error", "timeout")
    other = await died(node, "dl-error", "no such file: ä&b")
    path = f"admin/queues/dl-error/dlq?error={quoted('no such file: ä&b')}"

    assert [other] == [each["id"] for each in await walked(node, path, "tasks")]
    assert [] == await walked(node, "admin/queues/dl-error/dlq?error=time", "tasks")


async def test_a_page_ends_where_its_payloads_would_be_too_much(node: Client) -> None:
    """Each payload is below the limit of a body, but a page must not hold the sum of many."""
    made = [await died(node, "dl-big", payload="x" * 900_000) for _ in range(6)]
    found = [page async for page in pages(node, "admin/queues/dl-big/dlq")]

    assert [4, 2] == [len(page["tasks"]) for page in found]
    assert made[::-1] == [each["id"] for page in found for each in page["tasks"]]


async def test_causes_of_death_are_counted(node: Client) -> None:
    """The most frequent cause comes first."""
    for error in ("a", "b", "b"):
        await died(node, "dl-groups", error)
    answer = await node.get("admin/queues/dl-groups/dlq?groupBy=error")
    empty = await node.get("admin/queues/dl-none/dlq?groupBy=error")

    assert {
        "groups": [{"error": "b", "count": 2}, {"error": "a", "count": 1}],
        "matched": 3,
        "more": False,
    } == answer.json
    assert {"groups": [], "matched": 0, "more": False} == empty.json


async def test_errors_that_differ_in_numbers_are_of_one_kind(node: Client) -> None:
    """Kinds have counts and a sample; a list and a requeue select by a kind or by one error."""
    errors = ("timeout after 31 s", "timeout after 7 s", "no such table")
    ids = [await died(node, "dl-kinds", error) for error in errors]
    path = "admin/queues/dl-kinds/dlq"
    grouped = (await node.get(f"{path}?groupBy=kind")).json
    listed = (await node.get(f"{path}?kind=timeout+after+99+s")).json
    done = await node.post(f"{path}/requeue", {"kind": "timeout after # s"})
    empty = await delete(node, f"{path}?kind=")

    assert [("timeout after # s", errors[1], 2), ("no such table", errors[2], 1)] == [
        (kind["kind"], kind["sample"], kind["count"]) for kind in grouped["kinds"]
    ]
    assert [ids[1], ids[0]] == [task["id"] for task in listed["tasks"]]
    assert (2, False) == (done.json["requeued"], done.json["more"])
    assert (400, "invalid 'kind' (must not be empty)") == (empty.status, empty.error)


async def test_a_requeue_changes_payloads_by_a_patch(node: Client) -> None:
    """A dry run shows the newest payload before and after; one that is no object stays dead."""
    list_ = await died(node, "dl-patch", payload=[1])
    object_ = await died(node, "dl-patch", payload={"url": "http://old", "n": 12345678901234567890})
    path = "admin/queues/dl-patch/dlq/requeue"
    patch = {"patch": {"url": "http://new"}}
    dry = await node.post(path, {**patch, "dryRun": True})
    done = await node.post(path, patch)
    claimed = await node.claim("dl-patch")
    wrong = [await node.post(path, {"patch": each}) for each in ([1], "x")]
    deletion = await delete(node, "admin/queues/dl-patch/dlq", json.dumps(patch).encode())

    assert ('{"url":"http://old","n":12345678901234567890}', 0) == (
        dry.json["before"].replace(" ", ""),
        dry.json["requeued"],
    )
    assert '{"url":"http://new","n":12345678901234567890}' == dry.json["after"].replace(" ", "")
    assert (2, 1, 1) == tuple(done.json[name] for name in ("matched", "requeued", "leftAlone"))
    assert (object_, dry.json["after"]) == (claimed["id"], claimed["payload"])
    assert "DLQ_SET" == (await node.get(f"tasks/{list_}")).json["lastKnownLocation"]
    assert [(400, "invalid 'patch' (must be a JSON object)")] * 2 == [
        (each.status, each.error) for each in wrong
    ]
    assert (400, "unknown-name") == (deletion.status, deletion.json["code"])


async def test_a_patch_has_a_bound(node: Client) -> None:
    """It is merged into each of a thousand payloads."""
    path = "admin/queues/dl-patched/dlq/requeue"
    sent = [await node.post(path, {"patch": {"a": "x" * n}}) for n in (65_527, 65_528)]

    assert [(200, None), (400, "out-of-range")] == [
        (each.status, each.json.get("code")) for each in sent
    ]


async def test_a_requeue_replaces_the_payload_of_one_task(node: Client) -> None:
    """It is for one task, not beside a patch, and within the bounds of a create."""
    first, second = [await died(node, "dl-replaced", payload={"n": n}) for n in (1, 2)]
    path = "admin/queues/dl-replaced/dlq/requeue"
    new = {"payload": [1.5], "ids": [first]}
    deep = json.loads("[" * 201 + "]" * 201)
    refused = [
        await node.post(path, wrong)
        for wrong in (
            {"payload": [1.5]},
            {**new, "ids": [first, second]},
            {**new, "patch": {"n": 3}},
            {**new, "payload": deep},
        )
    ]
    dry = await node.post(path, {**new, "dryRun": True})
    done = await node.post(path, new)
    claimed = await node.claim("dl-replaced")

    assert ["invalid-payload"] * 3 + ["out-of-range"] == [each.json["code"] for each in refused]
    assert ("[1.5]", 0) == (dry.json["after"].replace(" ", ""), dry.json["requeued"])
    assert 1 == done.json["requeued"]
    assert (first, "[1.5]") == (claimed["id"], claimed["payload"].replace(" ", ""))


async def test_dead_letters_of_all_queues_are_one_list(node: Client) -> None:
    """The list of tasks has them under DEAD, without tasks that a worker failed."""
    dead = {await died(node, "dl-here", "everywhere"), await died(node, "dl-there", "everywhere")}
    rows = [
        task
        async for page in pages(node, "admin/tasks?status=DEAD&error=everywhere")
        for task in page["tasks"]
    ]

    assert dead == {row["id"] for row in rows}
    assert ["dl-here", "dl-there"] == [row["command"] for row in rows]


async def test_a_purge_cancels_what_waits_and_nothing_else(node: Client) -> None:
    """A dry run counts; tasks in progress and dead letters stay; a misspelt field is refused."""
    path = "admin/queues/dl-purge/purge"
    dead = await died(node, "dl-purge")
    leased = await node.create("dl-purge")
    await node.claim("dl-purge")
    waiting = [await node.create("dl-purge"), await node.create("dl-purge", delaySeconds=60)]
    dry = await node.post(path, {"dryRun": True})
    wrong = await node.post(path, {"dryrrun": True})
    first = await node.post(path, {"limit": 1})
    rest = await node.post(path)
    depth = await node.depth("dl-purge")

    assert (2, 0, False, True) == tuple(dry.json.values())
    assert (400, "unknown-name") == (wrong.status, wrong.json["code"])
    assert (1, 1, True, False) == tuple(first.json.values())
    assert (1, 1, False, False) == tuple(rest.json.values())
    assert (0, 0, 1, 1) == tuple(depth[name] for name in ("ready", "delayed", "inProgress", "dlq"))
    assert ["CANCELLED"] * 2 == [
        (await node.get(f"tasks/{each}")).json["error"] for each in waiting
    ]
    assert ["DLQ_SET", "INPROG_SET"] == [
        (await node.get(f"tasks/{each}")).json["lastKnownLocation"] for each in (dead, leased)
    ]


async def test_one_dead_letter_is_shown_with_its_result(node: Client) -> None:
    """It is found only in its own queue."""
    task_id = await died(node, "dl-one", "broken")
    alive = await node.create("dl-one")
    answer = await node.get(f"admin/queues/dl-one/dlq/{task_id}")
    elsewhere = await node.get(f"admin/queues/dl-two/dlq/{task_id}")
    living = await node.get(f"admin/queues/dl-one/dlq/{alive}")

    assert (await node.get(f"tasks/{task_id}")).json == answer.json["task"]
    assert "FAILED" == answer.json["result"]["status"]
    assert "broken" == answer.json["result"]["error"]
    assert (404, "task not found") == (elsewhere.status, elsewhere.error)
    assert (404, "task not found") == (living.status, living.error)


async def test_dead_letters_are_revived_as_selected(node: Client) -> None:
    """A dry run reports the effect that the same request then has."""
    kept = await died(node, "dl-requeue", "keep")
    revived = {await died(node, "dl-requeue", "transient") for _ in range(3)}
    path = "admin/queues/dl-requeue/dlq/requeue"
    dry = await node.post(path, {"error": "transient", "dryRun": True})
    depth = await node.depth("dl-requeue")
    done = await node.post(path, {"ERROR": "transient"})
    again = await node.post(path, {"error": "transient"})

    report = {"matched": 3, "byError": {"transient": 3}, "more": False}
    assert {**report, "requeued": 0, "dryRun": True} == dry.json
    assert (0, 4) == (depth["ready"], depth["dlq"])
    assert {**report, "requeued": 3, "dryRun": False} == done.json
    assert 0 == again.json["matched"]
    assert revived == {str((await node.claim("dl-requeue"))["id"]) for _ in range(3)}
    assert "DLQ_SET" == (await node.get(f"tasks/{kept}")).json["lastKnownLocation"]


async def test_a_limit_takes_the_newest_and_says_that_there_are_more(node: Client) -> None:
    """The answer reports further dead letters even if all of them were examined."""
    ids = [await died(node, "dl-limit") for _ in range(3)]
    done = await node.post("admin/queues/dl-limit/dlq/requeue", {"limit": 1})

    assert (1, True) == (done.json["requeued"], done.json["more"])
    assert ids[2] == (await node.claim("dl-limit"))["id"]


@pytest.mark.parametrize("body", [b"", b"null", b"{}", b" \n"])
async def test_a_request_that_selects_nothing_means_all(node: Client, body: bytes) -> None:
    """Clients send nothing, null or an empty object."""
    ids = {await died(node, "dl-all") for _ in range(2)}
    revived = await node.post("admin/queues/dl-all/dlq/requeue", body)
    for _ in ids:
        claimed = await node.claim("dl-all")
        await node.post(f"tasks/{claimed['id']}/nack", {"reason": "again"})
    deleted = await delete(node, "admin/queues/dl-all/dlq", body)

    assert 2 == revived.json["requeued"]
    assert (2, {"again": 2}) == (deleted.json["deleted"], deleted.json["byError"])
    assert [404, 404] == [(await node.get(f"tasks/{each}")).status for each in ids]


async def test_dead_letters_are_deleted_as_selected_by_body_or_query(node: Client) -> None:
    """The body overrides the query if both select."""
    path = "admin/queues/dl-delete/dlq"
    one, two, three = [await died(node, "dl-delete", error) for error in ("a", "b", "c")]
    dry = await delete(node, f"{path}?error=a&dryRun=true")
    by_query = await delete(node, f"{path}?ids={one},{ID}&dryRun=false&limit=5")
    by_body = await delete(node, f"{path}?error=c", json.dumps({"error": "b"}).encode())

    assert (1, 0, True) == (dry.json["matched"], dry.json["deleted"], dry.json["dryRun"])
    assert (1, 1) == (by_query.json["matched"], by_query.json["deleted"])
    assert {"b": 1} == by_body.json["byError"]
    assert [
        404,
        404,
        200,
    ] == [(await node.get(f"tasks/{each}")).status for each in (one, two, three)]


async def test_ids_select_dead_letters_of_the_queue_alone(node: Client) -> None:
    """Living tasks, other queues' ids and unknown ids are skipped; a repeated id counts once."""
    dead = await died(node, "dl-ids")
    elsewhere = await died(node, "dl-ids-2")
    alive = await node.create("dl-ids")
    ids = [dead, dead, elsewhere, alive, ID]
    done = await node.post("admin/queues/dl-ids/dlq/requeue", {"ids": ids})

    assert (1, 1) == (done.json["matched"], done.json["requeued"])
    assert "DLQ_SET" == (await node.get(f"tasks/{elsewhere}")).json["lastKnownLocation"]


async def test_one_is_revived_or_deleted_by_its_id(node: Client) -> None:
    """A second request does not find it any more."""
    one, two = await died(node, "dl-single", "x"), await died(node, "dl-single", "y")
    path = "admin/queues/dl-single/dlq"
    dry = await node.post(f"{path}/{one}/requeue?dryRun=1")
    revived = await node.post(f"{path}/{one}/requeue")
    deleted = await delete(node, f"{path}/{two}")
    gone = [await node.post(f"{path}/{one}/requeue"), await delete(node, f"{path}/{two}")]

    assert (1, 0) == (dry.json["matched"], dry.json["requeued"])
    assert {
        "matched": 1,
        "requeued": 1,
        "byError": {"x": 1},
        "more": False,
        "dryRun": False,
    } == revived.json
    assert (1, 1) == (deleted.json["matched"], deleted.json["deleted"])
    assert [(404, "task not found")] * 2 == [(each.status, each.error) for each in gone]
    assert one == (await node.claim("dl-single"))["id"]


async def test_another_queues_dead_letters_lie_where_the_topic_says(node: Client) -> None:
    """A requeue puts them into the queue of their own command."""
    await node.send("PUT", "admin/topics/dl-from", b'{"deadLetterTopicRef":"dl-target"}')
    task_id = await died(node, "dl-from")
    there = await node.get("admin/queues/dl-target/dlq")
    revived = await node.post(f"admin/queues/dl-target/dlq/{task_id}/requeue")

    assert [task_id] == [each["id"] for each in there.json["tasks"]]
    assert 1 == revived.json["requeued"]
    assert task_id == (await node.claim("dl-from"))["id"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"ids": []}, "invalid 'ids' (name at least one)"),
        ({"ids": ["a/b"]}, "invalid 'ids' (name at least one)"),
        ({"ids": [ID] * (IDS_MAX + 1)}, f"invalid 'ids' (at most {IDS_MAX})"),
        ({"ids": ["a/b"] * (IDS_MAX + 1)}, f"invalid 'ids' (at most {IDS_MAX})"),
        ({"ids": "all"}, "invalid body"),
        ({"ids": [1]}, "invalid body"),
        ({"error": 1}, "invalid body"),
        ({"error": ""}, "invalid 'error' (must not be empty)"),
        ({"dryRun": "yes"}, "invalid body"),
        ({"limit": "1"}, "invalid body"),
        ({"limit": 0}, "invalid 'limit' (must be >= 1)"),
        ({"limit": 10_001}, "invalid 'limit' (must be <= 10000)"),
        ({"id": ID}, "invalid 'id' (unknown: use ids, error, kind, limit, dryRun)"),
        ({"dry_run": True}, "invalid 'dry_run' (unknown: use ids, error, kind, limit, dryRun)"),
    ],
)
async def test_a_selection_out_of_bounds_touches_nothing(
    node: Client, body: dict[str, object], text: str
) -> None:
    """An empty list of ids must not stand for all."""
    raw = json.dumps(body).encode()
    requeued = await node.post("admin/queues/dl-bounds/dlq/requeue", raw)
    deleted = await delete(node, "admin/queues/dl-bounds/dlq", raw)

    # A requeue takes changes of payloads, too.
    assert (400, text) == (requeued.status, requeued.error.replace(", patch, payload)", ")"))
    assert (400, text) == (deleted.status, deleted.error)


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("ids=", "invalid 'ids' (name at least one)"),
        ("ids=,", "invalid 'ids' (name at least one)"),
        ("limit=x", "invalid 'limit' (use an integer)"),
        ("limit=0", "invalid 'limit' (must be >= 1)"),
        ("dryRun=maybe", "invalid 'dryRun' (use true or false)"),
        ("dryRun=", "invalid 'dryRun' (use true or false)"),
        ("dryRun", "invalid 'dryRun' (use true or false)"),
        ("error=", "invalid 'error' (must not be empty)"),
        (f"id={ID}", "invalid 'id' (unknown: use ids, error, kind, limit, dryRun)"),
        ("dryrun=true", "invalid 'dryrun' (unknown: use ids, error, kind, limit, dryRun)"),
    ],
)
async def test_a_query_out_of_bounds_deletes_nothing(node: Client, query: str, text: str) -> None:
    """A misspelt parameter must not turn a dry run into a deletion."""
    task_id = await died(node, "dl-query")
    answer = await delete(node, f"admin/queues/dl-query/dlq?{query}")

    assert (400, text) == (answer.status, answer.error)
    assert 200 == (await node.get(f"tasks/{task_id}")).status


@pytest.mark.parametrize("task_id", [ID, "x" * 200, "a%2Fb", "%00", "requeue"])
async def test_an_unknown_dead_letter_is_not_found(node: Client, task_id: str) -> None:
    """The answer is the one for an unknown task."""
    path = f"admin/queues/c/dlq/{task_id}"
    answers = [
        await node.get(path),
        await delete(node, path),
        await node.post(f"{path}/requeue"),
    ]

    assert [(404, "task not found")] * 3 == [(each.status, each.error) for each in answers]


@pytest.mark.parametrize("command", ["a%2Fb", "a%20b", "%00", "x" * 129])
async def test_an_invalid_command_has_no_dead_letters(node: Client, command: str) -> None:
    """Every route of the queue refuses it."""
    path = f"admin/queues/{command}/dlq"
    answers = [
        await node.get(path),
        await delete(node, path),
        await node.post(f"{path}/requeue"),
        await node.get(f"{path}/{ID}"),
        await delete(node, f"{path}/{ID}"),
        await node.post(f"{path}/{ID}/requeue"),
    ]

    assert [(400, "invalid command")] * 6 == [(each.status, each.error) for each in answers]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("groupBy=id", "invalid 'groupBy' (use error or kind)"),
        ("limit=0", "invalid 'limit' (must be >= 1)"),
        ("limit=-1", "invalid 'limit' (must be >= 1)"),
        ("limit=501", "invalid 'limit' (must be <= 500)"),
        ("limit=1.5", "invalid 'limit' (use an integer)"),
        ("cursor=nonsense", "invalid 'cursor'"),
        ("cursor=%C3%BF", "invalid 'cursor'"),
        ("cursor=AAAA", "invalid 'cursor'"),
        (f"cursor={'A' * 2000}", "invalid 'cursor'"),
        ("cursor=a%2Fb%2B", "invalid 'cursor'"),
    ],
)
async def test_a_list_asked_for_wrongly_is_refused(node: Client, query: str, text: str) -> None:
    """The refusal names the bounds."""
    answer = await node.get(f"admin/queues/c/dlq?{query}")

    assert (400, text) == (answer.status, answer.error)


async def test_a_cursor_is_good_for_its_own_list_alone(node: Client) -> None:
    """A cursor that is truncated, or of another queue or tenant, is refused."""
    for _ in range(2):
        await died(node, "dl-cursor")
    path = "admin/queues/dl-cursor/dlq?limit=1&cursor="
    cursor = str((await node.get(path)).json["cursor"])
    sound = await node.get(path + cursor)
    broken = [
        await node.get(path + cursor[:-2]),
        await node.get(path + cursor + "AA"),
        await node.get("admin/queues/dl-other/dlq?cursor=" + cursor),
        await node.get("admin/tasks?cursor=" + cursor),
        await Client(node.port, "other").get(path + cursor),
    ]

    assert 200 == sound.status
    assert [(400, "invalid 'cursor'")] * 5 == [(each.status, each.error) for each in broken]
