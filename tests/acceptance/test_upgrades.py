"""Upgrades: nodes of two releases form one cluster, until the newer formats are in use."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from codeq_cluster.codec import levels
from tests.golden.release import stored_releases, unpack_release
from tests.harness.accounting import RecordedOutcome, audit
from tests.harness.client import ClientAnswer, RecordingClient
from tests.harness.cluster import LocalCluster
from tests.harness.commands import command
from tests.harness.load import Load, workers
from tests.harness.next_release import ENTRY_VERSION, LEVEL, next_release
from tests.harness.node_process import (
    ADMIN_TOKEN,
    FIRST_SCOPES,
    OPERATOR_TOKEN,
    PRODUCER_TOKEN,
    WORKER_TOKENS,
    providers,
)
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CYCLES_PER_S = 20
SETTLES_S = 60.0
MEMBERS_AWAY = (0, 1)  # The status ends with 1 while a node is stopped.
OLD_LEVEL = LEVEL - 1
# The only failure a client may see is a refused connection to a node that is down.
REFUSED = "Refused("


def under_load(cluster: LocalCluster) -> Load:
    """Return producers and workers that ask all nodes during the changes."""
    return Load(
        cluster.urls,
        producer_token=PRODUCER_TOKEN,
        worker_tokens=workers(WORKER_TOKENS, 4),
        command="upgrade",
        cycles_per_s=CYCLES_PER_S,
    )


async def entry_versions(cluster: LocalCluster, node: str, release: Path) -> set[int]:
    """Return the versions of the entries in the log of a stopped node."""
    data = str(cluster.nodes[node].data_path)
    asked = ("inspect", data, "--log", "--limit", "100000", "--json")
    shown = await command(*asked, release=release)
    assert 0 == shown.code, shown.err
    return {entry["version"] for entry in shown.document["log"] if entry["kind"] == "batch"}


async def all_know(cluster: LocalCluster, *wanted: int) -> None:
    """Wait until the cluster has recorded these format versions for these nodes."""

    async def do() -> bool:
        shown = await status(cluster)
        return [node["level"] for node in shown["nodes"]] == list(wanted)

    await until(do, what=f"nodes on record with the levels {wanted}")


async def answer(cluster: LocalCluster, *arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
    """Return the JSON of a command that the first node answers."""
    asked = (*arguments, "--url", cluster.urls["n1"], "--json")
    shown = await command(*asked, token=OPERATOR_TOKEN)
    assert shown.code in codes, shown.err
    return shown.document


async def move(cluster: LocalCluster, node: str, release: Path | None) -> None:
    """Stop a node without notifying clients, and start it with another release."""
    assert 0 == await cluster.stop(node)
    await begin(cluster, node, release)


async def begin(cluster: LocalCluster, node: str, release: Path | None) -> None:
    """Start a stopped node with a release."""
    cluster.nodes[node].release = release
    cluster.start(node)
    await cluster.wait_ready([node], within_s=SETTLES_S)


async def refused(cluster: LocalCluster, node: str) -> str:
    """Start a stopped node with this release, which must end; return its output."""
    log = cluster.nodes[node].log_path
    before = len(log.read_text())
    cluster.nodes[node].release = None
    cluster.start(node)
    process = cluster.nodes[node].process
    assert process is not None
    assert 1 == await asyncio.to_thread(process.wait, SETTLES_S)
    return log.read_text()[before:]


async def test_two_releases_in_one_cluster_until_the_newer_formats_are_used(tmp_path: Path) -> None:
    """Upgrade, downgrade and upgrade, node by node under load; no downgrade after the switch."""
    (tmp_path / "next").mkdir()
    newer = next_release(tmp_path / "next")
    async with (
        LocalCluster(tmp_path, shards=2, settings={"limits": {"drainMs": 0}}) as cluster,
        under_load(cluster) as load,
    ):
        url = ("--url", cluster.urls["n1"])
        for node in ("n1", "n2"):
            await move(cluster, node, newer)
        await all_know(cluster, LEVEL, LEVEL, OLD_LEVEL)
        early = await command("cluster", "upgrade", *url, token=OPERATOR_TOKEN)
        assert 4 == early.code, early.err
        assert f"formats of level {LEVEL}: n3 (level {OLD_LEVEL}); start each" in early.err
        await move(cluster, "n3", newer)
        for release in (None, newer):
            for node in cluster.nodes:
                await move(cluster, node, release)
        await all_know(cluster, LEVEL, LEVEL, LEVEL)
        load.avoid("n3")
        assert 0 == await cluster.stop("n3")
        # Until an operator enables the newer formats, the earlier release can read everything.
        assert {ENTRY_VERSION - 1} == await entry_versions(cluster, "n3", newer)

        done = await command("cluster", "upgrade", *url, token=OPERATOR_TOKEN)
        assert 0 == done.code, done.err
        shown = await status(cluster)
        assert LEVEL == shown["level"]
        assert [LEVEL, LEVEL] == [shard["level"] for shard in shown["shards"]]
        records = (await answer(cluster, "audit", "--token", ADMIN_TOKEN))["records"]
        assert "cluster.upgrade" == records[0]["action"]

        # This node's log may not have the change yet, but its leader's log has.
        said = await refused(cluster, "n3")
        assert f"uses formats of level {LEVEL}, and this release knows those up to" in said
        await begin(cluster, "n3", newer)
        load.allow("n3")
        assert await load.drain(within_s=SETTLES_S)
        verdict = audit(load.calls, await load.final_tasks())
        await cluster.wait_converged()
        assert 0 == await cluster.stop("n3")

        assert ENTRY_VERSION in await entry_versions(cluster, "n3", newer)
        said = await refused(cluster, "n3")
        [line] = [each for each in said.splitlines() if f"level {OLD_LEVEL}" in each]
        assert "start this node with the release that the others run" in line

    assert not failures(load)
    assert replace(verdict, failed=()).clean, str(verdict)


@pytest.mark.parametrize("version", stored_releases())
async def test_a_cluster_of_a_stored_release_becomes_one_of_this(
    version: str, tmp_path: Path
) -> None:
    """Node by node under load, forth and back and forth; then its formats are the newest."""
    release = unpack_release(version, tmp_path / "release")
    # An earlier release refuses a configuration with a scope that it does not know.
    settings = {
        "limits": {"drainMs": 0},
        "auth": providers(FIRST_SCOPES),
        "allowProducerAsWorker": True,
    }
    cluster = LocalCluster(tmp_path, shards=2, settings=settings)
    for node in cluster.nodes.values():
        node.release = release
    async with cluster, under_load(cluster) as load:
        began = [node["level"] for node in (await status(cluster))["nodes"]]
        for chosen in (None, release, None):
            for name in cluster.nodes:
                await move(cluster, name, chosen)
        await all_know(cluster, *[levels.LEVEL] * 3)
        early = await tried(cluster)
        url = ("--url", cluster.urls["n1"])
        done = await command("cluster", "upgrade", *url, token=OPERATOR_TOKEN)
        assert 0 == done.code, done.err
        level = (await status(cluster))["level"]
        late = await tried(cluster)
        run = await claimed_run(cluster)
        assert await load.drain(within_s=SETTLES_S)
        verdict = audit(load.calls, await load.final_tasks())
        await cluster.wait_converged()

    assert all(each <= levels.LEVEL for each in began)
    assert levels.LEVEL == level
    if max(began) < levels.FOLLOW_UPS_FROM:
        refusal = (503, "upgrade-under-way")
        assert dict.fromkeys(early, refusal) == {
            name: (each.status, each.detail) for name, each in early.items()
        }
    assert {} == {name: each for name, each in late.items() if each.status not in (200, 201, 202)}
    assert 1 == len(late["a follow-up"].body["next"])
    assert "often" == run["scheduleId"]
    assert not failures(load)
    assert replace(verdict, failed=()).clean, str(verdict)


# What a cluster of 0.1.0 does not have: on a new task that is claimed, or by itself.
_LATER: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "a follow-up": (
        "POST",
        "/tasks/{id}/result",
        {"status": "COMPLETED", "result": {}, "next": [{"command": "followed", "payload": {}}]},
    ),
    "a step": (
        "POST",
        "/tasks/{id}/steps",
        {"name": "charge", "value": 1, "position": 0, "extendSeconds": 60},
    ),
    "a checkpoint": (
        "POST",
        "/tasks/{id}/heartbeat",
        {"extendSeconds": 60, "checkpoint": {"page": 3}},
    ),
    "a log": (
        "POST",
        "/tasks/{id}/heartbeat",
        {"extendSeconds": 60, "log": ["page 3 is slow"]},
    ),
    "a grace": ("POST", "/tasks/{id}/cancel", {"graceSeconds": 30}),
    "a wait": ("POST", "/tasks/{id}/park", {"step": "rest", "position": 0, "forSeconds": 60}),
    "a schedule": (
        "PUT",
        "/admin/schedules/often",
        {"every": "1s", "task": {"command": "scheduled", "payload": {}}},
    ),
    "a key": ("POST", "/tasks", {"command": "keyed", "payload": {}, "key": "k"}),
    "a limit": ("PUT", "/admin/limits/api", {"maxRunning": 2}),
    "a key's rule": ("PUT", "/admin/queues/keyed/keys/k", {"maxRunning": 2}),
    "a tag": ("POST", "/tasks", {"command": "tagged", "payload": {}, "tags": {"env": "prod"}}),
    "other tags": ("PATCH", "/tasks/{id}/tags", {"set": {"env": "prod"}}),
    "a bulk job": ("POST", "/admin/bulk", {"select": {"command": "b"}, "action": "cancel"}),
    "a list by group": ("GET", "/admin/tasks?group=g", {}),
    "a unique key": ("POST", "/tasks", {"command": "one", "payload": {}, "unique": {"key": "k"}}),
    "a graph": (
        "POST",
        "/tasks/graph",
        {
            "tasks": [
                {"ref": "a", "command": "graph", "payload": {}},
                {"ref": "b", "command": "graph", "payload": {}, "dependsOn": [{"ref": "a"}]},
            ]
        },
    ),
    "a group": ("POST", "/groups", {"id": "g", "tasks": [{"command": "member", "payload": {}}]}),
}


async def tried(cluster: LocalCluster) -> dict[str, ClientAnswer]:
    """Ask for each thing that a later release has, at another node each time."""
    worker = PRODUCER_TOKEN  # As a worker it has every scope that its node knows.
    nodes = itertools.cycle(cluster.urls)
    found = {}
    async with RecordingClient(cluster.urls) as client:
        for name, (method, route, body) in _LATER.items():
            path = route
            sent, token = dict(body), ADMIN_TOKEN if route.startswith("/admin") else worker
            if "{id}" in route:
                new = {"command": "held", "payload": {}}
                await client.call("POST", next(nodes), "/tasks", PRODUCER_TOKEN, new)
                wanted = {"commands": ["held"], "waitSeconds": 20}
                task = (await client.call("POST", next(nodes), "/tasks/claim", worker, wanted)).body
                path = route.format(id=task["id"])
                sent["leaseToken"] = task["leaseToken"]
            found[name] = await client.call(method, next(nodes), path, token, sent)
    return found


async def claimed_run(cluster: LocalCluster) -> dict[str, Any]:
    """Claim a run of it."""
    wanted = {"commands": ["scheduled"], "waitSeconds": 20}
    async with RecordingClient(cluster.urls) as client:
        answer = await client.call("POST", "n3", "/tasks/claim", PRODUCER_TOKEN, wanted)
    assert 200 == answer.status, answer
    body: dict[str, Any] = answer.body
    return body


def failures(load: Load) -> list[Any]:
    """Return the calls that failed though a node answered them."""
    return [
        call
        for call in load.calls
        if call.outcome is not RecordedOutcome.OK
        and not call.excused
        and not call.detail.startswith(REFUSED)
    ]


async def status(cluster: LocalCluster) -> Any:
    """Return the cluster's status; a stopped node is no failure."""
    return await answer(cluster, "cluster", "status", codes=MEMBERS_AWAY)


async def raised(cluster: LocalCluster, node: str) -> int:
    """Ask a node to enable the newer formats; return the status of its answer."""
    async with RecordingClient(cluster.urls) as client:
        path = "/admin/cluster/upgrade"
        return (await client.call("POST", node, path, OPERATOR_TOKEN, {})).status


async def test_the_newer_formats_come_into_use_though_a_leader_dies_meanwhile(
    tmp_path: Path,
) -> None:
    """Whatever the first outcome, the request is repeated until the change is done."""
    (tmp_path / "next").mkdir()
    newer = next_release(tmp_path / "next")
    cluster = LocalCluster(tmp_path, shards=2)
    for node in cluster.nodes.values():
        node.release = newer
    async with (
        cluster,
        under_load(cluster) as load,
    ):
        await all_know(cluster, LEVEL, LEVEL, LEVEL)
        victim = await cluster.leader_of(1)
        asked = next(node for node in cluster.nodes if node != victim)
        load.avoid(victim)
        first, _ = await asyncio.gather(raised(cluster, asked), cluster.kill(victim))

        async def done() -> bool:
            return await raised(cluster, asked) == 200

        await until(done, what="the newer formats in use")
        cluster.start(victim)
        await cluster.wait_ready([victim], within_s=SETTLES_S)
        load.allow(victim)
        assert await load.drain(within_s=SETTLES_S)
        verdict = audit(load.calls, await load.final_tasks())
        await cluster.wait_converged()
        shown = await status(cluster)

    assert first in (200, 503), first
    assert [LEVEL, LEVEL] == [shard["level"] for shard in shown["shards"]]
    assert verdict.clean, str(verdict)
