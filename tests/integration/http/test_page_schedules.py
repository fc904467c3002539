"""Schedules on the page, by its own routes on a real node."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio

from tests.integration.http.page import PageWorld, logged_in_world

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAYLOAD = '{"secret": 12345678901234567890}'
WEBHOOK = "https://hooks.example.com/secret"


class World(PageWorld):
    """A node, and the schedules of its page."""

    async def put(self, schedule_id: str, **fields: object) -> None:
        """Create a schedule that fires once a year."""
        task = {"command": "report", "payload": json.loads(PAYLOAD), "webhook": WEBHOOK}
        body = {"cron": "@yearly", "zone": "Europe/Berlin", "task": task, **fields}
        answer = await self.admin.write("PUT", f"/schedules/{schedule_id}", body)
        assert 201 == answer.status, answer.body

    async def listed(self, **query: object) -> list[dict[str, Any]]:
        """Return the rows that a viewer finds, page by page."""
        rows: list[dict[str, Any]] = []
        cursor = ""
        while True:
            asked = urlencode({**query, "limit": 2, "cursor": cursor})
            page = json.loads((await self.viewer.get(f"/schedules?{asked}")).body)
            assert len(page["schedules"]) <= 2
            rows += page["schedules"]
            cursor = page.get("cursor", "")
            if not cursor:
                return rows

    async def ids(self, **query: object) -> list[str]:
        """Return the ids of these rows."""
        return [row["id"] for row in await self.listed(**query)]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node for this file alone."""
    async with logged_in_world(tmp_path_factory.mktemp("schedules"), World) as world:
        yield world


async def test_schedules_are_found_by_owner_state_and_a_part_of_their_name(world: World) -> None:
    """Filters narrow the list of all pages; another tenant sees none of them."""
    for number in range(5):
        owner = {"owner": "billing"} if number % 2 else {}
        await world.put(f"found-{number}", **owner)
    await world.admin.write("POST", "/schedules/found-3/pause", {})
    unknown = await world.viewer.get("/schedules?state=lost")

    assert [f"found-{number}" for number in range(5)] == await world.ids(text="FOUND-")
    assert ["found-1", "found-3"] == await world.ids(owner="billing")
    assert ["found-3"] == await world.ids(owner="billing", state="paused")
    assert ["found-1"] == await world.ids(owner="billing", state="active")
    assert [] == await world.ids(owner="bill")
    assert (400, "invalid-query") == (unknown.status, unknown.json["code"])
    assert [] == (await world.stranger.get("/schedules")).json["schedules"]


async def test_a_viewer_sees_a_schedule_without_its_payload(world: World) -> None:
    """An admin sees every digit of it."""
    await world.put("seen", note="Once a year")
    [row] = await world.listed(text="seen")
    mine = await world.admin.view("schedule&id=seen")
    viewers = await world.viewer.get("/now?view=schedule&id=seen")
    strangers = await world.stranger.view("schedule&id=seen")
    theirs = viewers.json["view"]
    assert isinstance(theirs, dict)

    assert ("At 00:00 on January 1", "@yearly") == (row["words"], row["written"])
    assert ("report", "active", 0) == (row["command"], row["state"], row["missed"])
    assert row["next"] == mine["view"]["next"][0]
    assert 10 == len(mine["view"]["next"])
    assert (PAYLOAD, WEBHOOK) == (mine["view"]["payload"], mine["view"]["task"]["webhook"])
    assert b"secret" not in viewers.body
    assert ("Once a year", "https://hooks.example.com/…") == (
        theirs["note"],
        theirs["task"]["webhook"],
    )
    assert 404 == strangers["trouble"]["status"]


async def test_a_run_leads_from_its_schedule_to_its_task_and_back(world: World) -> None:
    """The run is the schedule's last one, and its task names the schedule."""
    await world.put("led")
    started = await world.admin.write("POST", "/schedules/led/trigger", {"idempotencyKey": "once"})
    view = (await world.viewer.view("schedule&id=led"))["view"]
    task = (await world.viewer.view(f"task&id={started.json['taskId']}"))["view"]["task"]

    assert [started.json["taskId"]] == [each["taskId"] for each in view["lastRuns"]]
    assert view["last"] == view["lastRuns"][0]
    assert 0 <= view["last"]["lagMs"] < 60_000
    assert ["open"] == [mark["kind"] for mark in view["strip"]["marks"]]
    assert ("led", view["last"]["at"]) == (task["scheduleId"], task["scheduledFor"])
