"""Dead letters on the page, by its own routes on a real node: grouped, requeued, deleted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from tests.integration.http.page import PageWorld, logged_in_world

pytestmark = pytest.mark.asyncio(loop_scope="session")

TIMEOUT = "timed out after {} ms"
KIND = "timed out after # ms"


class World(PageWorld):
    """A node, and what a user of the page does to its dead letters."""

    async def die(self, queue: str, *errors: str, payload: object = None) -> list[str]:
        """Create a dead letter with each error; return their ids."""
        ids = []
        for error in errors:
            body = {"command": queue, "payload": payload or {"n": 1}, "maxAttempts": 1}
            answer = await self.client.post("tasks", body, token="producer")
            task_id = str(answer.json["id"])
            await self.client.claim(queue)
            await self.client.post(f"tasks/{task_id}/nack", {"reason": error})
            ids.append(task_id)
        return ids

    async def act(self, queue: str, verb: str, **body: object) -> dict[str, Any]:
        """Apply an action to a queue's dead letters."""
        answer = await self.admin.write("POST", f"/queues/{queue}/dlq/{verb}", body)
        assert 200 == answer.status, answer.body
        told: dict[str, Any] = answer.json
        return told

    async def kinds(self, queue: str) -> dict[str, int]:
        """Return the number of dead letters of each kind."""
        answer = await self.viewer.get(f"/queues/{queue}/dlq/kinds")
        return {each["kind"]: each["count"] for each in json.loads(answer.body)["kinds"]}

    async def depth(self, queue: str) -> tuple[int, int]:
        """Return the numbers of ready and dead tasks."""
        told = (await self.client.get(f"admin/queues/{queue}", token="admin")).json
        return int(str(told["ready"])), int(str(told["dlq"]))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    async with logged_in_world(tmp_path_factory.mktemp("triage"), World) as world:
        yield world


async def test_errors_are_told_apart_by_their_kind(world: World) -> None:
    """Each kind has one whole error, and a list of its dead letters."""
    await world.die("kinds", *(TIMEOUT.format(n) for n in (1, 22, 333)), "KeyError: 'x'")
    answer = json.loads((await world.viewer.get("/queues/KINDS/dlq/kinds")).body)
    of_kind = await world.viewer.get("/queues/kinds/dlq?kind=timed%20out%20after%20%23%20ms")
    rows = json.loads(of_kind.body)["tasks"]

    assert [
        (KIND, 3),
        ("KeyError: 'x'", 1),
    ] == [(each["kind"], each["count"]) for each in answer["kinds"]]
    assert TIMEOUT.format(333) == answer["kinds"][0]["sample"]
    assert [TIMEOUT.format(n) for n in (333, 22, 1)] == [row["error"] for row in rows]
    assert [] == (await world.stranger.get("/queues/kinds/dlq/kinds")).json["kinds"]


async def test_a_preview_predicts_the_effect_and_changes_nothing(world: World) -> None:
    """The preview has the number of each kind, and the first payload with the patch applied."""
    await world.die("preview", TIMEOUT.format(1), TIMEOUT.format(2), "other")
    told = await world.act("preview", "preview", kind=KIND, patch={"n": None, "m": [1]})

    assert (2, False) == (told["matched"], told["more"])
    assert [(KIND, 2)] == [(each["kind"], each["count"]) for each in told["kinds"]]
    assert ('{"n": 1}', '{"m":[1]}') == (told["before"], told["after"])
    assert (0, 3) == await world.depth("preview")


async def test_a_requeue_is_taken_back_as_far_as_nobody_has_claimed(world: World) -> None:
    """Tasks claimed meanwhile go on; the others become dead letters again."""
    ids = await world.die("undo", *(TIMEOUT.format(n) for n in range(5)))
    done = await world.act("undo", "requeue", kind=KIND)
    claimed = await world.client.claim("undo")
    back = await world.act("undo", "undo", action=done["action"], ids=done["ids"])
    again = await world.act("undo", "undo", action=done["action"], ids=done["ids"])

    assert (5, False, set(ids)) == (done["changed"], done["more"], set(done["ids"]))
    assert (4, 0) == (back["changed"], again["changed"])
    assert (0, 4) == await world.depth("undo")
    assert claimed["id"] in ids
    assert {KIND: 4} == await world.kinds("undo")


async def test_payloads_are_patched_on_their_way_back(world: World) -> None:
    """Tasks whose payload is not an object stay, and the answer says so."""
    [task_id] = await world.die("patched", "e", payload={"n": 12345678901234567890, "old": 1})
    await world.die("patched", "e", payload="text")
    done = await world.act("patched", "requeue", all=True, patch={"old": None, "new": "x"})
    claimed = await world.client.claim("patched")

    assert (1, 1, "") == (done["changed"], done["leftAlone"], done["action"])
    assert task_id == claimed["id"]
    assert '{"n":12345678901234567890,"new":"x"}' == claimed["payload"]
    assert (0, 1) == await world.depth("patched")


async def test_one_dead_letter_gets_a_payload_of_its_own(world: World) -> None:
    """The payload is kept exactly as typed."""
    [task_id] = await world.die("rewritten", "e", payload="text")
    done = await world.act("rewritten", "requeue", ids=[task_id], payload=[1, {"a": None}])
    claimed = await world.client.claim("rewritten")

    assert 1 == done["changed"]
    assert [1, {"a": None}] == json.loads(str(claimed["payload"]))


async def test_dead_letters_are_deleted_by_kind_or_by_name(world: World) -> None:
    """Other dead letters stay."""
    one, _, _ = await world.die("deleted", "a", TIMEOUT.format(1), TIMEOUT.format(2))
    await world.die("deleted", "b")
    by_name = await world.act("deleted", "delete", ids=[one])
    by_kind = await world.act("deleted", "delete", kind=KIND)

    assert (1, 2) == (by_name["changed"], by_kind["changed"])
    assert {"b": 1} == await world.kinds("deleted")


@pytest.mark.parametrize("verb", ["requeue", "delete"])
@pytest.mark.parametrize("by", ["ids", "kind", "all"])
async def test_an_action_leaves_those_that_died_after_its_preview(
    world: World, verb: str, by: str
) -> None:
    """Nobody was asked about them. A named one that has died again since is one of them."""
    queue = f"later-{verb}-{by}"
    ids = await world.die(queue, TIMEOUT.format(1), TIMEOUT.format(2))
    selected: dict[str, object] = {
        "ids": {"ids": ids},
        "kind": {"kind": KIND},
        "all": {"all": True},
    }[by]
    told = await world.act(queue, "preview", **selected)
    await world.act(queue, "requeue", ids=ids[:1])
    again = await world.client.claim(queue)
    await world.client.post(f"tasks/{again['id']}/nack", {"reason": TIMEOUT.format(3)})
    await world.die(queue, TIMEOUT.format(4))
    done = await world.act(queue, verb, **selected, until=told["until"])

    assert (2, False) == (told["matched"], told["more"])
    assert (ids[1:], 1) == (done["ids"], done["changed"])
    assert {KIND: 2} == await world.kinds(queue)


async def test_a_preview_of_nothing_has_no_instant(world: World) -> None:
    """There is nothing that an action could be about."""
    told = await world.act("nothing", "preview", all=True)

    assert (0, None) == (told["matched"], told["until"])


async def test_actions_on_dead_letters_are_audited(world: World) -> None:
    """Requeues, their undoing and changed payloads are recorded."""
    ids = await world.die("record", "a", "b")
    done = await world.act("record", "requeue", ids=ids[:1])
    await world.act("record", "undo", action=done["action"], ids=ids[:1])
    await world.act("record", "requeue", ids=ids[1:], patch={"n": 2})
    records = json.loads((await world.client.get("admin/audit", token="admin")).body)["records"]

    assert {
        ("dlq.requeue", ids[0]),
        ("dlq.undo", ids[0]),
        ("dlq.revise", ids[1]),
    } == {(each["action"], each["target"]) for each in records if each["target"] in ids}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"id": "x"},
        {"ids": []},
        {"ids": ["a"], "all": True},
        {"ids": ["a"], "kind": "x"},
        {"kind": ""},
        {"kind": "after 300 ms"},
        {"all": False},
        {"all": True, "until": ""},
        {"all": True, "until": 0},
        {"all": True, "patch": []},
        {"all": True, "patch": "x"},
        {"all": True, "payload": {}},
        {"ids": ["a", "b"], "payload": {}},
        [],
    ],
)
@pytest.mark.parametrize("verb", ["preview", "requeue", "delete"])
async def test_nothing_is_meant_that_is_not_said(world: World, verb: str, body: object) -> None:
    """A misspelt field must not select all dead letters."""
    if not (await world.depth("unsaid"))[1]:
        await world.die("unsaid", "e")
    refused = await world.admin.write("POST", f"/queues/unsaid/dlq/{verb}", body)
    if verb == "delete" and isinstance(body, dict) and body.keys() & {"patch", "payload"}:
        return  # There the field has no effect, and the request has a selection.

    assert 400 == refused.status
    assert (0, 1) == await world.depth("unsaid")


async def test_a_payload_beyond_the_bounds_is_refused(world: World) -> None:
    """The depth of a payload is bounded; its size is bounded by the whole body's."""
    [task_id] = await world.die("bounds", "e")
    deep: object = 1
    for _ in range(300):
        deep = [deep]
    own = await world.admin.write(
        "POST", "/queues/bounds/dlq/requeue", {"ids": [task_id], "payload": deep}
    )
    merged = await world.act("bounds", "requeue", ids=[task_id], patch={"deep": deep})

    assert 400 == own.status
    assert (0, 1) == (merged["changed"], merged["leftAlone"])
    assert (0, 1) == await world.depth("bounds")
