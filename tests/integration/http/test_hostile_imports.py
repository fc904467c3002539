"""Hostile imports: a tenant's admin sends records that no route could have made."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import asdict, replace

from codeq_cluster.codec.arrivals import Arrivals
from codeq_cluster.core import task_ids
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.items import Subscription, Topic
from codeq_cluster.core.log_line import LogLine, line_id
from codeq_cluster.core.task import Durable, More, Result, State, Task
from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import Answer, Client, serving, single

pytestmark = pytest.mark.asyncio(loop_scope="session")

BACKUP = "20260131T123000000Z-5f0c4a2e"
NEIGHBOUR = {"token": "other"}
MIB = 2**20


async def sent(node: Client, arrivals: Arrivals) -> Answer:
    """Import as the admin of tenant `acme`."""
    body = b"\x01" + msgspec.msgpack.encode(arrivals)
    return await node.post(f"admin/import?backup={BACKUP}&tenant=acme", body)


def ended_now(**fields: object) -> Arrival:
    """Return a finished task whose retention ends in a moment."""
    now_ms = time.time_ns() // 1_000_000
    task = Task(
        id=task_ids.task_id("acme", os.urandom(16)),
        tenant="acme",
        command="hostile",
        priority=0,
        max_attempts=1,
        created_ms=now_ms,
        updated_ms=now_ms,
        state=State.DONE,
        has_result=True,
        retain_until_ms=now_ms + 500,
    )
    result = Result(task_id=task.id, status="COMPLETED", body="{}")
    return Arrival(task=Task(**asdict(task) | fields), payload="{}", result=result)


async def neighbour_is_served(node: Client, *, delay_s: int = 1) -> None:
    """Assert that another tenant's delays end on each shard."""
    for _ in range(8):
        body = {"command": "calm", "payload": {}, "delaySeconds": delay_s}
        assert 202 == (await node.post("tasks", body, **NEIGHBOUR)).status
    for _ in range(8):
        asked = {"commands": ["calm"], "waitSeconds": 10}
        claimed = await node.post("tasks/claim", asked, **NEIGHBOUR)
        assert 200 == claimed.status, "a neighbour's delayed task never came"


async def test_a_queue_of_dead_letters_that_is_no_name_stops_no_timers(tmp_path: Path) -> None:
    """A task that dies into it would fail its shard's timers for every tenant."""
    async with serving(single(tmp_path, LimitSettings())) as node:
        topic = Topic(tenant="acme", id="mortal", name="mortal", dead_letter="a/b")
        answer = await sent(node, Arrivals(items=(topic,)))
        for _ in range(8):
            await node.create("mortal", ttlSeconds=1)
        await neighbour_is_served(node)

    assert (400, "invalid-body") == (answer.status, answer.json["code"])
    assert str(answer.error).startswith("topic mortal: dead_letter: must be a DNS label")


async def test_more_uploads_than_a_task_may_have_stop_no_deletions(tmp_path: Path) -> None:
    """The deletion of a task sweeps each of its uploads, all in one entry."""
    async with serving(single(tmp_path, LimitSettings())) as node:
        arrival = ended_now(uploads=tuple(f"{n:040x}" for n in range(30_000)))
        answer = await sent(node, Arrivals((arrival,)))
        await neighbour_is_served(node)

    assert (400, "invalid-body") == (answer.status, answer.json["code"])
    assert f"task {arrival.task.id}: uploads: " in str(answer.error)


async def test_a_huge_subscription_costs_neither_memory_nor_the_loop(tmp_path: Path) -> None:
    """Its list is refused by the length it announces, before it is decoded."""
    subscription = Subscription(
        tenant="acme",
        id="huge",
        worker="w",
        callback_url="https://example.com/",
        event_types=tuple(f"c{n}" for n in range(300_000)),
        ttl_ms=60_000,
        created_ms=1,
        expires_ms=2**40,
    )
    async with serving(single(tmp_path, LimitSettings())) as node:
        await sent(node, Arrivals())
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        body = b"\x01" + msgspec.msgpack.encode(Arrivals(items=(subscription,) * 3))
        slowest = 0.0

        async def watched() -> None:
            nonlocal slowest
            while True:
                began = time.perf_counter()
                await asyncio.sleep(0)
                slowest = max(slowest, time.perf_counter() - began)

        watch = asyncio.create_task(watched())
        answers = [
            await node.post(f"admin/import?backup={BACKUP}&tenant=acme", body) for _ in range(10)
        ]
        watch.cancel()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024

    assert {400} == {each.status for each in answers}
    assert "sub huge: event_types: Expected `array` of length <= 100" in str(answers[0].error)
    assert grown < 64 * MIB, f"{grown / MIB:.0f} MiB more for bodies of {len(body) / MIB:.1f} MiB"
    assert slowest < 0.25


async def test_a_part_with_many_rows_is_checked_by_the_loop_in_its_turns(tmp_path: Path) -> None:
    """A thread that checks it for long takes the interpreter from the loop at each of its steps."""
    arrivals = [_logged(lines=200) for _ in range(255)]
    arrivals.append(replace(arrivals[0], payload="{"))
    async with serving(single(tmp_path, LimitSettings())) as node:
        await sent(node, Arrivals())
        all_s, own_s = time.process_time(), time.thread_time()
        answer = await sent(node, Arrivals(tuple(arrivals)))
        by_loop_s = time.thread_time() - own_s
        by_threads_s = time.process_time() - all_s - by_loop_s

    assert (400, "invalid-body") == (answer.status, answer.json["code"])
    assert by_threads_s < by_loop_s


def _logged(*, lines: int) -> Arrival:
    """Return a finished task with so many lines in its log."""
    arrival = ended_now(more=More(durable=Durable(lines=lines, line_bytes=lines, logged=lines)))
    task_id, at_ms = arrival.task.id, arrival.task.created_ms
    log = (
        LogLine(tenant="acme", id=line_id(task_id, n), at_ms=at_ms, attempt=1, text="x")
        for n in range(1, lines + 1)
    )
    return replace(arrival, beside=tuple(log))


async def test_an_item_that_is_there_twice_is_taken_once(tmp_path: Path) -> None:
    """Two ends of one subscription would leave a timer that names nothing."""
    async with serving(single(tmp_path, LimitSettings())) as node:
        now_ms = time.time_ns() // 1_000_000
        first, second = (
            Subscription(
                tenant="acme",
                id="twice",
                worker="w",
                callback_url="https://example.com/",
                ttl_ms=60_000,
                created_ms=now_ms,
                expires_ms=now_ms + life_ms,
            )
            for life_ms in (3000, 3500)
        )
        answer = await sent(node, Arrivals(items=(second, first)))
        await neighbour_is_served(node, delay_s=4)  # After both have ended.

    assert (1, 1) == (answer.json["itemsImported"], answer.json["itemsPresent"])


async def test_an_import_does_not_tell_that_another_tenant_has_an_id(tmp_path: Path) -> None:
    """The answer and the tasks afterwards are the same for an id in use and for one that is not."""
    async with serving(single(tmp_path, LimitSettings())) as node:
        taken = str(
            (await node.post("tasks", {"command": "theirs", "payload": {}}, **NEIGHBOUR)).json["id"]
        )
        free = task_ids.task_id("other", os.urandom(16))
        seen = []
        for task_id in (taken, free):
            arrival = ended_now(id=task_id, retain_until_ms=2**42)
            arrival = msgspec.structs.replace(
                arrival, result=Result(task_id=task_id, status="COMPLETED", body="{}")
            )
            dry = await node.post(
                f"admin/import?backup={BACKUP}&tenant=acme&dryRun=true",
                b"\x01" + msgspec.msgpack.encode(Arrivals((arrival,))),
            )
            done = await sent(node, Arrivals((arrival,)))
            again = await sent(node, Arrivals((arrival,)))
            read = await node.get(f"tasks/{task_id}")
            answers = [each.json for each in (dry, done, again)]
            # The record in the audit is drawn anew for each import.
            records = {each.pop("record") for each in answers}
            seen.append((answers, len(records), read.status, read.error))
        theirs = await node.get(f"tasks/{taken}", **NEIGHBOUR)

    assert seen[0] == seen[1]
    assert (1, 1) == (done.json["imported"], done.json["renamed"])
    assert (0, 1) == (again.json["imported"], again.json["present"])
    assert "PENDING" == theirs.json["status"]
