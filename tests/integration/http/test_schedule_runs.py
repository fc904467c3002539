"""Runs of schedules: what fires, what waits for another run, and what of the past fires again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.settings import BudgetSettings, LimitSettings
from tests.integration.http.client import Answer, Client, eventually, serving, single

pytestmark = pytest.mark.asyncio(loop_scope="session")

DONE = {"status": "COMPLETED", "result": {}}
MARCH = {"from": "2026-03-28T00:00:00Z", "to": "2026-03-31T00:00:00Z"}  # Three nights.
NIGHTS = ["2026-03-28T01:30:00.000Z", "2026-03-29T01:00:00.000Z", "2026-03-30T00:30:00.000Z"]
NIGHTLY = {"cron": "30 2 * * *", "zone": "Europe/Berlin"}


class Nightly:
    """A schedule of a test, with a queue of its own."""

    def __init__(self, node: Client, name: str) -> None:
        self.node = node
        self.name = name

    async def put(self, **fields: object) -> dict[str, Any]:
        """Put it; without a calendar of its own it fires at night."""
        calendar = {} if "every" in fields or "cron" in fields else NIGHTLY
        task = {"command": self.name, "payload": {"of": self.name}}
        body = json.dumps({"task": task, **calendar, **fields}).encode()
        answer = await self.node.send("PUT", f"admin/schedules/{self.name}", body)
        assert answer.status in (200, 201), answer.body
        return answer.json

    async def get(self) -> dict[str, Any]:
        """Return it."""
        return (await self.node.get(f"admin/schedules/{self.name}")).json

    async def asked(self, verb: str, **body: object) -> Answer:
        """Ask for a change."""
        return await self.node.post(f"admin/schedules/{self.name}/{verb}", body)

    async def trigger(self, **body: object) -> dict[str, Any]:
        """Ask for a run."""
        answer = await self.asked("trigger", **body)
        assert 200 == answer.status, answer.body
        return answer.json

    async def backfill(self, **body: object) -> dict[str, Any]:
        """Let the nights of March fire; return it when the walk is over."""
        answer = await self.asked("backfill", **MARCH, **body)
        assert 202 == answer.status, answer.body
        return await eventually(self.get, lambda found: "backfill" not in found)

    async def claim(self) -> dict[str, Any]:
        """Claim the task of a run."""
        return await self.node.claim(self.name, waitSeconds=10)

    async def end(self, task: dict[str, Any], **fields: object) -> None:
        """End the task of a run."""
        answer = await self.node.post(f"tasks/{task['id']}/result", {**DONE, **fields})
        assert 200 == answer.status, answer.body

    async def delete(self) -> None:
        """Delete it, with what waits in its queue."""
        await self.node.send("DELETE", f"admin/schedules/{self.name}", b"")
        await self.node.post(f"admin/queues/{self.name}/purge")


def runs(schedule: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the last runs, the newest first: the instant and the status of each."""
    return [(each["at"], each["status"]) for each in schedule["lastRuns"]]


async def test_each_instant_makes_one_task(node: Client) -> None:
    """The task names its schedule and its instant; its end is noted, and the next one fires."""
    tick = Nightly(node, "tick")
    made = await tick.put(every="1s")
    tasks = []
    for _ in range(3):
        tasks.append(await tick.claim())
        await tick.end(tasks[-1])
    known = await tick.get()
    await tick.delete()

    instants = [each["scheduledFor"] for each in tasks]
    assert instants == sorted(set(instants))
    assert {each["at"] for each in made["next"]} >= set(instants[:1])
    assert [("tick", '{"of": "tick"}')] * 3 == [
        (each["scheduleId"], each["payload"]) for each in tasks
    ]
    assert not any("late" in each for each in tasks)
    ended = {each["taskId"]: each["status"] for each in known["lastRuns"] if "taskId" in each}
    assert {"COMPLETED"} == {ended[each["id"]] for each in tasks}
    assert 3 <= known["made"]
    assert 0 == known["missed"]["count"]


@pytest.mark.parametrize(
    ("overlap", "outcomes", "running", "queued"),
    [
        ("skip", ["created", "skipped", "skipped"], 1, 0),
        ("queueOne", ["created", "queued", "skipped"], 1, 1),
        ("queue", ["created", "queued", "queued"], 1, 2),
        ("allow", ["created", "created", "created"], 3, 0),
        ("cancel", ["created", "created", "created"], 1, 0),
    ],
)
async def test_a_run_meets_another_that_has_not_ended(
    node: Client, overlap: str, outcomes: list[str], running: int, queued: int
) -> None:
    """The policy says whether it begins, waits or is skipped; the queued ones run in turn."""
    job = Nightly(node, f"overlap.{overlap}")
    await job.put(overlap=overlap)
    said = [await job.trigger() for _ in range(3)]
    known = await job.get()
    done = []
    for _ in range(running + queued):
        done.append((await job.claim())["id"])
        await job.end({"id": done[-1]})
    after = await job.get()
    left = await node.depth(job.name)
    await job.delete()

    assert outcomes == [each["outcome"] for each in said]
    # What is skipped are instants, and a run that was asked for is none.
    assert (running, queued, 0) == (known["running"], known["queued"], known["skipped"])
    assert {each["taskId"] for each in said[-running:] if "taskId" in each} <= set(done)
    assert (0, 0) == (after["running"], after["queued"])
    expected = ["COMPLETED"] * (running + queued) + ["CANCELLED"] * 2 * (overlap == "cancel")
    assert sorted(expected) == sorted(status for _, status in runs(after))
    assert (0, 0) == (left["ready"], left["inProgress"])


async def test_what_fires_is_counted_with_its_lag(node: Client) -> None:
    """Each instant counts once, and each firing has a lag; a run that is asked for has neither."""

    async def counted() -> tuple[float, float]:
        text = (await node.get("/metrics")).body.decode()
        names = ("codeq_schedule_fired_total", "codeq_schedule_lag_seconds_count")
        found = dict(line.split(" ", 1) for line in text.splitlines() if line.startswith(names))
        return float(found[names[0]]), float(found.get(names[1], 0))  # Nothing may have fired yet.

    before = await counted()
    job = Nightly(node, "counted")
    await job.put()
    await job.trigger()
    between = await counted()
    await job.put(every="1s", maxRuns=2, overlap="allow")
    await eventually(job.get, lambda found: found["state"] == "over")
    after = await eventually(counted, lambda now: now[0] >= before[0] + 2)
    await job.delete()

    assert before == between
    assert before[0] + 2 == after[0]
    assert 1 <= after[1] - before[1] <= 2


async def test_an_instant_is_skipped_while_a_run_is_open(node: Client) -> None:
    """It is counted, and makes no run: the next one after the end does."""
    job = Nightly(node, "skipped")
    await job.put(every="1s", maxRuns=2)
    known = await eventually(job.get, lambda found: found["skipped"] >= 2)
    await job.end(await job.claim())
    after = await eventually(job.get, lambda found: found["state"] == "over")
    await job.delete()

    assert (1, 1, 0) == (known["made"], known["running"], known["missed"]["count"])
    assert (2, 1) == (after["made"], after["running"])


async def test_the_overlap_of_one_run_may_be_another(node: Client) -> None:
    """It holds for this run alone."""
    job = Nightly(node, "overlap.once")
    await job.put(overlap="skip")
    said = [await job.trigger(overlap=each) for each in ("allow", "allow", "queueOne")]
    last = await job.trigger()
    await job.delete()

    assert ["created", "created", "queued"] == [each["outcome"] for each in said]
    assert "skipped" == last["outcome"]


async def test_a_repeated_request_makes_no_second_run(node: Client) -> None:
    """The key names the run, while it is open, when it waits, and when it has ended."""
    job = Nightly(node, "repeated")
    await job.put(overlap="queue")
    open_ = [await job.trigger(idempotencyKey="first") for _ in range(2)]
    waits = [await job.trigger(idempotencyKey="second") for _ in range(2)]
    known = await job.get()
    await job.end(await job.claim())
    again = await job.trigger(idempotencyKey="first")
    begun = await job.trigger(idempotencyKey="second")
    await job.end(await job.claim())
    await job.delete()

    assert open_[0] == open_[1] == again
    assert [{"outcome": "queued"}] * 2 == waits
    assert (1, 1) == (known["running"], known["queued"])
    assert "created" == begun["outcome"]
    assert begun["taskId"] != again["taskId"]


@pytest.mark.parametrize("catch_up", [True, False])
async def test_instants_of_a_pause_fire_if_they_are_asked_for(node: Client, catch_up: bool) -> None:
    """Those within a minute are in time; otherwise the schedule goes on from now."""
    job = Nightly(node, f"pause.{catch_up}".lower())
    await job.put(every="1s", overlap="allow")
    paused = (await job.asked("pause")).json
    again = (await job.asked("pause")).json
    run = await job.trigger()
    third: Any = datetime.fromisoformat(paused["next"][2]["at"])
    await eventually(job.get, lambda _: datetime.now(UTC) > third)
    still = await job.get()
    resumed = (await job.asked("resume", catchUp=catch_up)).json
    known = await eventually(job.get, lambda found: found["running"] >= still["running"] + 4)
    await job.delete()

    fired = {at for at, _ in runs(known)}
    assert ("paused", "w") == (paused["state"], paused["pausedBy"])
    assert paused == again
    assert "created" == run["outcome"]
    assert (paused["running"] + 1, paused["made"]) == (still["running"], still["made"])
    assert "active" == resumed["state"]
    of_pause = {each["at"] for each in paused["next"][:3]}
    assert (of_pause <= fired) is catch_up, (of_pause, fired)
    assert 0 == known["missed"]["count"]


async def test_failures_in_a_row_pause_it(node: Client) -> None:
    """A success between them counts from the beginning; resuming it counts anew."""
    job = Nightly(node, "failing")
    await job.put(pauseAfterFailures=2)
    states = []
    for status in ("FAILED", "COMPLETED", "FAILED", "FAILED"):
        await job.trigger()
        fields = {"status": status, "error": "e"} if status == "FAILED" else {}
        await job.end(await job.claim(), **fields)
        states.append((await job.get())["state"])
    paused = await job.get()
    resumed = (await job.asked("resume")).json
    await job.trigger()
    await job.end(await job.claim(), status="FAILED", error="e")
    after = await job.get()
    await job.delete()

    assert ["active", "active", "active", "paused"] == states
    assert "failures" == paused["pausedBy"]
    assert ("active", "active") == (resumed["state"], after["state"])


async def test_it_fires_as_often_as_it_may(node: Client) -> None:
    """Afterwards it is over and has no next instant; a run can still be asked for."""
    job = Nightly(node, "few")
    await job.put(every="1s", maxRuns=2, overlap="allow")
    known = await eventually(job.get, lambda found: found["state"] == "over")
    run = await job.trigger()
    await job.delete()

    assert (2, 2, []) == (known["made"], known["running"], known["next"])
    assert "created" == run["outcome"]


async def test_past_instants_fire_once(node: Client) -> None:
    """A dry run makes nothing; a second backfill makes no task that is kept, unless forced."""
    job = Nightly(node, "backfilled")
    await job.put()
    shown = (await job.asked("backfill", **MARCH, dryRun=True)).json
    untouched = await job.get()
    first = await job.backfill(overlap="allow")
    again = await job.backfill(overlap="allow")
    forced = await job.backfill(overlap="allow", force=True, idempotencyKey="forced")
    repeated = await job.backfill(overlap="allow", force=True, idempotencyKey="forced")
    tasks = [await job.claim() for _ in range(6)]
    for task in tasks:
        await job.end(task)
    await job.delete()

    assert (3, True) == (shown["count"], shown["dryRun"])
    assert NIGHTS == [each["at"] for each in shown["instants"]]
    assert (0, []) == (untouched["running"], untouched["lastRuns"])
    assert [(night, "OPEN") for night in reversed(NIGHTS)] == runs(first) == runs(again)
    assert (6, 6) == (forced["running"], repeated["running"])
    assert {(night, True) for night in NIGHTS} == {
        (each["scheduledFor"], each["late"]) for each in tasks
    }
    assert 6 == len({each["id"] for each in tasks})


async def test_a_run_that_waits_is_not_made_in_another_way_too(node: Client) -> None:
    """What was asked for twice runs once, and holds up nothing behind it."""
    job = Nightly(node, "twice")
    await job.put()
    first = await job.backfill()
    again = await job.backfill()
    both = await job.backfill(overlap="allow")
    tasks = []
    while (await job.get())["running"]:
        tasks.append(await job.claim())
        await job.end(tasks[-1])
    after = await job.get()
    await job.delete()

    assert (1, 2) == (first["running"], first["queued"]) == (again["running"], again["queued"])
    assert 1 <= both["running"] <= 3
    assert NIGHTS == sorted(each["scheduledFor"] for each in tasks)
    assert 0 == after["queued"]


async def test_past_instants_are_checked(node: Client) -> None:
    """What is refused makes nothing."""
    job = Nightly(node, "refused")
    await job.put(every="1s")
    refused = [
        await job.asked("backfill", **{**MARCH, **changed})
        for changed in (
            {"from": "yesterday"},
            {"to": "2026-03-01T00:00:00Z"},
            {"to": "2096-01-01T00:00:00Z"},
            {"overlap": "both"},
            {},
        )
    ]
    run = await job.asked("trigger", overlap="both")
    await job.delete()

    assert ["invalid-from", "invalid-to", "invalid-to"] == [
        each.json["code"] for each in refused[:3]
    ]
    assert [400] * 5 == [each.status for each in refused]
    assert "overlap" == refused[3].json["field"] == run.json["field"]
    assert "invalid 'instants' (at most 10000)" == refused[4].error
    assert 400 == run.status


async def test_a_run_beyond_a_bound_is_refused_by_its_name(
    tmp_path: Path, node_with: Callable[..., AbstractAsyncContextManager[Client]]
) -> None:
    """The tenant's budget, and the bound on queues with tasks."""
    settings = replace(single(tmp_path, LimitSettings()), budgets=BudgetSettings(ready_tasks=1))
    async with serving(settings) as node:
        job = Nightly(node, "budget")
        await job.put(overlap="allow")
        first = await job.asked("trigger")
        budget = await job.asked("trigger")
    async with node_with(queues_max=1) as node:
        await node.create("other")
        job = Nightly(node, "queues")
        await job.put()
        queues = await job.asked("trigger")

    assert 200 == first.status
    assert (429, "budget-exceeded") == (budget.status, budget.json["code"])
    assert (409, "too-many") == (queues.status, queues.json["code"])
    assert "queues with tasks" in str(queues.error)
