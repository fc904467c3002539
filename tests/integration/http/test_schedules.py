"""Schedules: their instants are shown before they exist."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.api.app import SERVICES
from codeq_cluster.client import Operator, Refused
from codeq_cluster.schedules.zones import zone_rules
from tests.integration.http.world import World, created

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUTE = "admin/schedules/preview"
BERLIN = "Europe/Berlin"
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
