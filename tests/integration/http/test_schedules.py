"""Schedules: their instants are shown before they exist; they are put, changed and deleted."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.api.app import SERVICES
from codeq_cluster.client import Operator, Refused
from codeq_cluster.core.schedules import TEMPLATE_BYTES_MAX
from codeq_cluster.schedules.zones import zone_rules
from tests.golden.release import (
    ARCHIVE,
    EXPECTED,
    OPERATOR,
    STORED,
    MovedClock,
    Places,
    running,
    settings_of,
)
from tests.integration.http.client import Answer, eventually
from tests.integration.http.world import World, created

pytestmark = pytest.mark.asyncio(loop_scope="session")

BERLIN = "Europe/Berlin"
ROUTE = "admin/schedules/preview"
DAILY = {"cron": "30 2 * * *", "zone": BERLIN, "task": {"command": "report", "payload": {"of": 1}}}
FULL = {
    **DAILY,
    "task": {"command": "report", "payload": {"of": 1}, "priority": 5, "timeoutSeconds": 60},
    "overlap": "queueOne",
    "missed": {"policy": "all", "windowSeconds": 600},
    "jitterSeconds": 90,
    "startAt": "2026-01-01T00:00:00.000Z",
    "endAt": "2096-01-01T00:00:00.000Z",
    "maxRuns": 1000,
    "pauseAfterFailures": 3,
    "owner": "nobody",
    "note": "for the board",
}
ACME, OTHER = "admin-of-acme", "admin-of-other"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    async with created(tmp_path_factory.mktemp("schedules")) as world:
        yield world


async def _shown(world: World, **schedule: object) -> list[dict[str, Any]]:
    answer = await world.client.post(ROUTE, schedule, token=ACME)
    assert 200 == answer.status, answer.body
    assert zone_rules() == answer.json["zoneRules"]
    found: Any = answer.json["instants"]
    return list(found)


async def test_both_nights_of_berlin_are_shown(world: World) -> None:
    """A daily time has one instant in the night that skips it, and one in that with two."""
    daily = {"cron": "30 2 * * *", "zone": BERLIN, "count": 2}

    assert [
        {"at": "2026-03-29T01:00:00.000Z", "local": "2026-03-29T02:30:00", "fold": 0},
        {"at": "2026-03-30T00:30:00.000Z", "local": "2026-03-30T02:30:00", "fold": 0},
    ] == await _shown(world, **daily, **{"from": "2026-03-28T12:00:00Z"})
    assert [
        {"at": "2026-10-25T00:30:00.000Z", "local": "2026-10-25T02:30:00", "fold": 0},
        {"at": "2026-10-26T01:30:00.000Z", "local": "2026-10-26T02:30:00", "fold": 0},
    ] == await _shown(world, **daily, **{"from": "2026-10-24T14:00:00+02:00"})


async def test_ten_instants_from_now_are_shown(world: World) -> None:
    """An interval is aligned to the epoch; a cron expression without a zone is in UTC."""
    before = datetime.now(UTC)
    every = [datetime.fromisoformat(each["at"]) for each in await _shown(world, every="15m")]
    hourly = await _shown(world, cron="@hourly", count=100)

    assert 10 == len(every)
    assert before < every[0] <= datetime.now(UTC) + timedelta(minutes=15)
    assert {0} == {each.timestamp() % 900 for each in every}
    assert [each["local"] for each in hourly] == [each["at"][:19] for each in hourly]
    assert 100 == len({each["at"] for each in hourly})


@pytest.mark.parametrize(
    ("schedule", "code", "field", "detail"),
    [
        ({"cron": "0 24 * * *"}, "invalid-schedule", "cron", "cron, character 3: the hour"),
        ({"every": "1h", "offset": "1d"}, "invalid-schedule", "offset", "must be shorter"),
        ({}, "invalid-schedule", "cron", "is missing"),
        (
            {"cron": "0 0 29 2 */7", "from": "2101-01-01T00:00:00Z"},
            "invalid-schedule",
            "cron",
            "ten",
        ),
        ({"every": "1d", "from": "9999-01-01T00:00:00Z"}, "invalid-schedule", "every", "ten"),
        (
            {"cron": "@daily", "zone": "Berlin"},
            "invalid-zone",
            "zone",
            "zone, character 1: 'Berlin'",
        ),
        ({"cron": "@daily", "from": "tomorrow"}, "invalid-from", None, ""),
        ({"cron": "@daily", "from": "1969-12-31T23:59:59Z"}, "invalid-from", None, ""),
        ({"cron": "@daily", "count": 0}, "out-of-range", None, ""),
        ({"cron": "@daily", "count": 101}, "out-of-range", None, ""),
        ({"cron": 5}, "invalid-body", None, ""),
    ],
)
async def test_a_refusal_says_what_is_wrong_and_where(
    world: World, schedule: dict[str, object], code: str, field: str | None, detail: str
) -> None:
    """Field and position stand in the detail."""
    answer = await world.client.post(ROUTE, schedule, token=ACME)

    assert (400, code) == (answer.status, answer.json["code"])
    assert field == answer.json.get("field")
    assert detail in str(answer.json.get("detail", ""))


async def test_a_long_zone_is_not_quoted_in_full(world: World) -> None:
    """An error is short, whatever was sent."""
    answer = await world.client.post(ROUTE, {"cron": "@daily", "zone": "x" * 50_000}, token=ACME)

    assert 400 == answer.status
    assert 500 > len(answer.body)


async def test_a_tenant_whose_previews_take_long_leaves_room_for_another(world: World) -> None:
    """Its second one is refused while the first is computed; another tenant's is served."""
    with world.app[SERVICES].shares.previews.one("acme"):
        own = await world.client.post(ROUTE, {"cron": "@daily"}, token=ACME)
        others = await world.client.post(ROUTE, {"cron": "@daily"}, token=OTHER)
    again = await world.client.post(ROUTE, {"cron": "@daily"}, token=ACME)

    assert (503, "overloaded", "not-applied") == (
        own.status,
        own.json["code"],
        own.headers["x-outcome"],
    )
    assert 200 == others.status == again.status


async def _put(world: World, schedule_id: str, schedule: object, token: str = ACME) -> Answer:
    body = json.dumps(schedule).encode()
    return await world.client.send("PUT", f"admin/schedules/{schedule_id}", body, token=token)


async def _get(world: World, path: str = "", token: str = ACME) -> Answer:
    return await world.client.get(f"admin/schedules{path}", token=token)


async def _delete(world: World, schedule_id: str, token: str = ACME) -> Answer:
    return await world.client.send("DELETE", f"admin/schedules/{schedule_id}", b"", token=token)


async def test_a_schedule_is_created_changed_and_deleted(world: World) -> None:
    """The answer has what was said, and the next ten instants; a repetition changes nothing."""
    made = await _put(world, "report", FULL)
    same = await _put(world, "report", FULL)
    changed = await _put(world, "report", DAILY)
    read = await _get(world, "/report")
    gone = [await _delete(world, "report") for _ in range(2)]
    missing = await _get(world, "/report")
    new = await _put(world, "report", DAILY)
    await _delete(world, "report")

    assert [201, 200, 200, 201] == [each.status for each in (made, same, changed, new)], made.body
    assert FULL == {name: made.json.get(name) for name in FULL} | {
        "missed": {"policy": "all", "windowSeconds": 600}
    }
    assert {"policy": "all", "windowSeconds": 600, "count": 0} == made.json["missed"]
    assert ("report", "active", 1) == tuple(made.json[name] for name in ("id", "state", "version"))
    assert [0] * 4 == [made.json[name] for name in ("running", "queued", "made", "skipped")]
    instants: Any = made.json["next"]
    assert (10, {"02:30:00"}) == (len(instants), {each["local"][11:] for each in instants})
    assert made.json == same.json
    assert 2 == changed.json["version"]
    assert not {"note", "owner", "maxRuns", "startAt", "jitterSeconds"} & changed.json.keys()
    assert changed.json == read.json
    assert [204, 204] == [each.status for each in gone]
    assert (404, "not-found") == (missing.status, missing.json["code"])


async def test_schedules_are_listed_by_id_in_pages(world: World) -> None:
    """Each shows its first instant; those of other tenants are not there."""
    ids = [f"of-list-{number}" for number in range(5)]
    for each in ids:
        await _put(world, each, {**DAILY, "owner": "of-list"})
    await _put(world, "of-list-others", DAILY, token=OTHER)
    found: list[Any] = []
    cursor = ""
    while True:
        page = (await _get(world, f"?owner=of-list&limit=2{cursor}")).json
        found += page["schedules"]  # type: ignore[arg-type]
        if "cursor" not in page:
            break
        cursor = f"&cursor={page['cursor']}"
    for each in ids:
        await _delete(world, each)

    assert ids == [each["id"] for each in found]
    assert {1} == {len(each["next"]) for each in found}


async def test_tenants_share_names_and_see_nothing_of_each_other(world: World) -> None:
    """A name that the other tenant has is missing here, whatever is asked of it."""
    await _put(world, "theirs", {**DAILY, "note": "secret"})
    asked = [await _get(world, "/theirs", OTHER)]
    for verb in ("pause", "resume", "trigger"):
        asked += [await world.client.post(f"admin/schedules/theirs/{verb}", token=OTHER)]
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    asked.append(await world.client.post("admin/schedules/theirs/backfill", span, token=OTHER))
    deleted = await _delete(world, "theirs", OTHER)
    made = await _put(world, "theirs", DAILY, token=OTHER)
    listed = [each["id"] for each in _rows(await _get(world, "", OTHER))]
    kept = await _get(world, "/theirs")
    for token in (ACME, OTHER):
        await _delete(world, "theirs", token)

    assert [404] * 5 == [each.status for each in asked]
    assert (204, 201) == (deleted.status, made.status)
    assert "theirs" in listed
    assert ("secret", "active") == (kept.json["note"], kept.json["state"])


@pytest.mark.parametrize(
    ("said", "status", "code", "field", "detail"),
    [
        ({"cron": "0 24 * * *"}, 400, "invalid-schedule", "cron", "cron, character 3: the hour"),
        ({"cron": ""}, 400, "invalid-schedule", "cron", "cron is empty"),
        ({"every": "1h"}, 400, "invalid-schedule", "every", "stands beside cron"),
        ({"zone": "Mars/Olympus"}, 400, "invalid-zone", "zone", "zone, character 1"),
        ({"cron": "0 0 30 2 *"}, 400, "invalid-schedule", "cron", ""),
        ({"task": None}, 400, "invalid-schedule", "task", "task is missing"),
        ({"task": {"payload": 1}}, 400, "invalid-body", "task", "command is missing"),
        ({"task": {"command": "a b", "payload": 1}}, 400, "invalid-command", "task", ""),
        (
            {"task": {"command": "c", "payload": 1, "runAt": "2096-01-01T00:00:00Z"}},
            *(400, "invalid-schedule", "task", "idempotency key, start and delay"),
        ),
        (
            {"task": {"command": "c", "payload": 1, "idempotencyKey": "k"}},
            *(400, "invalid-schedule", "task", "idempotency key, start and delay"),
        ),
        (
            {"task": {"command": "c", "payload": "x" * TEMPLATE_BYTES_MAX}},
            *(413, "body-too-large", "task", ""),
        ),
        ({"overlap": "sometimes"}, 400, "invalid-schedule", "overlap", "queueOne"),
        ({"missed": {"policy": "none"}}, 400, "invalid-schedule", "missed.policy", "all"),
        ({"missed": {"windowSeconds": -1}}, 400, "out-of-range", None, ""),
        ({"jitterSeconds": 3601}, 400, "out-of-range", None, ""),
        ({"maxRuns": -1}, 400, "out-of-range", None, ""),
        ({"startAt": "soon"}, 400, "invalid-schedule", "startAt", "RFC 3339"),
        ({"endAt": "1969-01-01T00:00:00Z"}, 400, "invalid-schedule", "endAt", "from 1970 on"),
        ({"note": "n" * 1025}, 400, "invalid-schedule", "note", "at most 1024 bytes"),
        ({"owner": "not a name"}, 400, "invalid-schedule", "owner", "owner: use 1 to 128"),
        ({"crom": "@daily"}, 400, "invalid-schedule", "crom", "it has cron"),
        ({"cron": 5}, 400, "invalid-body", None, "$.cron"),
    ],
)
async def test_a_schedule_that_cannot_be_is_refused_by_its_field(
    world: World, said: dict[str, object], *, status: int, code: str, field: str | None, detail: str
) -> None:
    """Nothing is created; the answer names the field, and the place in it."""
    answer = await _put(world, "odd", {**DAILY, **said})
    missing = await _get(world, "/odd")

    assert (status, code) == (answer.status, answer.json["code"]), answer.body
    assert field == answer.json.get("field")
    assert detail in str(answer.json.get("detail", ""))
    assert 404 == missing.status


@pytest.mark.parametrize("name", ["a%20b", "x" * 129, "a%2fb"])
async def test_a_name_that_is_none_is_refused(world: World, name: str) -> None:
    """The same names are refused everywhere."""
    asked = [await _put(world, name, DAILY), await _get(world, f"/{name}")]
    asked.append(await _delete(world, name))

    assert [(400, "invalid-schedule-id")] * 3 == [
        (each.status, each.json["code"]) for each in asked
    ]


async def test_the_key_of_its_tasks_and_their_cost_are_shown(world: World) -> None:
    """So whoever puts what is shown loses nothing."""
    task = {"command": "call", "payload": {}, "key": "api", "cost": 3}
    await _put(world, "keyed", {**DAILY, "task": task})
    shown = (await _get(world, "/keyed")).json

    assert task == {name: shown["task"][name] for name in task}


async def test_every_change_is_on_record_once(world: World) -> None:
    """A repetition changes nothing and leaves no record."""
    for _ in range(2):
        await _put(world, "recorded", DAILY)
    await _put(world, "recorded", {**DAILY, "note": "n"})
    for verb in ("pause", "pause", "resume", "resume"):
        await world.client.post(f"admin/schedules/recorded/{verb}", token=ACME)
    await world.client.post("admin/schedules/recorded/trigger", {}, token=ACME)
    span = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-02T00:00:00Z"}
    await world.client.post("admin/schedules/recorded/backfill", span, token=ACME)
    for _ in range(2):
        await _delete(world, "recorded")
    records: Any = (await world.client.get("admin/audit?limit=500", token=ACME)).json["records"]
    said = [each for each in records if each["target"] == "recorded"]

    assert {"admin"} == {each["actor"] for each in said}
    assert [
        ("schedule.put", "version 1"),
        ("schedule.put", "version 2"),
        ("schedule.pause", None),
        ("schedule.resume", None),
        ("schedule.trigger", None),
        ("schedule.backfill", None),
        ("schedule.delete", None),
    ] == [(each["action"], each.get("detail")) for each in reversed(said)]


async def test_a_calendar_is_asked_when_it_is_the_tenants_turn(world: World) -> None:
    """A change waits for its turn instead of being refused; a preview is refused."""
    with world.app[SERVICES].shares.previews.one("acme"):
        waits = asyncio.ensure_future(_put(world, "turn", DAILY))
        refused = await world.client.post(ROUTE, {"cron": "@daily"}, token=ACME)
        is_done = waits.done()
    made = await waits
    many = await asyncio.gather(*(_get(world, "/turn") for _ in range(20)))
    await _delete(world, "turn")

    assert (503, False, 201) == (refused.status, is_done, made.status)
    assert [(200, 10)] * 20 == [(each.status, len(each.json["next"])) for each in many]  # type: ignore[arg-type]


async def test_nothing_is_put_before_every_node_knows_schedules(tmp_path: Path) -> None:
    """On data of release 0.1.0 the answer names the upgrade, until it is done."""
    with tarfile.open(STORED / "0.1.0" / ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    clock = MovedClock(json.loads((STORED / "0.1.0" / EXPECTED).read_text())["made_ms"])
    async with running(settings_of(Places(tmp_path)), clock) as (_, client):

        async def put(path: str, body: object) -> Answer:
            return await client.send("PUT", f"admin/schedules{path}", json.dumps(body).encode())

        early = [await put("/early", DAILY), await put("?owner=early", {"schedules": []})]
        shown = await client.post(ROUTE, {"cron": "@daily"})
        listed = await client.get("admin/schedules")
        await client.post("admin/cluster/upgrade", {}, token=OPERATOR)
        late = await eventually(lambda: put("/early", DAILY), lambda answer: answer.status != 503)

    assert [(503, "upgrade-under-way")] * 2 == [(each.status, each.json["code"]) for each in early]
    assert {"not-applied"} == {each.headers["x-outcome"] for each in early}
    assert (200, []) == (listed.status, listed.json["schedules"])
    assert (200, 201) == (shown.status, late.status)


def _rows(answer: Answer) -> list[dict[str, Any]]:
    found: Any = answer.json["schedules"]
    return list(found)


async def test_the_client_asks_for_a_preview(world: World) -> None:
    """The SDK sends what the caller says, and raises what the broker refuses."""
    url = f"http://127.0.0.1:{world.client.port}"
    async with Operator([url], token=ACME) as operator:
        found = await operator.preview_schedule(
            {"cron": "0 0 29 2 *"}, after=datetime(2026, 1, 1, tzinfo=UTC), count=1
        )
        with pytest.raises(
            Refused, match=r"invalid zone: zone, character 1: .* mean Europe/Berlin"
        ):
            await operator.preview_schedule({"cron": "@daily", "zone": "europe/berlin"})

    assert ["2028-02-29T00:00:00.000Z"] == [each["at"] for each in found["instants"]]
