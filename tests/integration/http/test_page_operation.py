"""Workers, policies, callbacks, cluster, backups and audit, by the page's own routes."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from codeq_cluster import __version__
from codeq_cluster.settings import BackupSettings, LimitSettings, Unsigned, WebhookSettings
from tests.harness.ports import dead_url
from tests.integration.http.client import Client, eventually, serving, single
from tests.integration.http.page import ROLES, Session, logged_in, with_roles

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "?key=secret"


@dataclass(slots=True)
class World:
    """A node, sessions of its roles by name, and one of another tenant's admin."""

    client: Client
    roles: dict[str, Session]

    async def told(self, role: str, path: str) -> dict[str, Any]:
        """Return a route's answer to a role."""
        answer = await self.roles[role].get(path)
        assert 200 == answer.status, answer.body
        told: dict[str, Any] = json.loads(answer.body)
        return told

    async def wrote(
        self, role: str, method: str, path: str, body: object = None
    ) -> tuple[int, dict[str, Any]]:
        """Return the answer to a role's write."""
        answer = await self.roles[role].write(method, path, body)
        return answer.status, json.loads(answer.body or b"{}")

    async def view(self, role: str, query: str) -> dict[str, Any]:
        """Return a view as a role sees it."""
        shown: dict[str, Any] = (await self.roles[role].view(query))["view"]
        return shown

    async def worker(self, name: str, command: str) -> dict[str, Any]:
        """Return a worker's row once the page shows its lease and its claim of a command."""

        async def shown() -> dict[str, Any] | None:
            rows = (await self.view("viewer", "workers"))["workers"]
            its = (row for row in rows if row["worker"] == name and row["leases"] and row["nodes"])
            return next((row for row in its if command in row["commands"]), None)

        return dict(await eventually(shown) or {})


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Run a node that tries each callback once, and keeps backups."""
    place = tmp_path_factory.mktemp("operation")
    webhooks = WebhookSettings(allow_private=True, unsigned=Unsigned.ALLOW, max_attempts=1)
    settings = replace(
        with_roles(single(place / "node", LimitSettings(), webhooks)),
        backup=BackupSettings(directory=place / "backups"),
    )
    async with serving(settings) as client:
        client.token = "worker"
        names = (*ROLES, "stranger")
        yield World(client, {name: await logged_in(client, name) for name in names})


async def created(world: World, command: str, **fields: object) -> str:
    """Create a task as the tenant's producer."""
    body = {"command": command, "payload": {"n": 1}, **fields}
    answer = await world.client.post("tasks", body, token="producer")
    assert 202 == answer.status, answer.body
    return str(answer.json["id"])


async def undelivered(world: World, command: str) -> str:
    """Make a callback die whose target does not listen; return its id."""
    webhook = dead_url(f"hook/{command}{SECRET}")
    task_id = await created(world, command, webhook=webhook)
    await world.client.claim(command)
    body = {"status": "COMPLETED", "result": {}}
    assert 200 == (await world.client.post(f"tasks/{task_id}/result", body)).status
    [found] = await eventually(lambda: dead(world, command))
    return str(found["id"])


async def dead(world: World, command: str, role: str = "admin") -> list[dict[str, Any]]:
    """Return the dead deliveries of one command."""
    page = await world.told(role, "/deliveries?status=dead")
    return [each for each in page["deliveries"] if each["command"] == command]


async def test_two_processes_under_one_token_are_two_workers(world: World) -> None:
    """Each has its row, and the list of tasks finds what one of them holds."""
    for name in ("host-1:7", "host-2:8"):
        await created(world, "shared")
        await world.client.claim("shared", workerName=name)
    rows = [await world.worker(f"w/{name}", "shared") for name in ("host-1:7", "host-2:8")]
    held = await world.told("admin", "/tasks?state=in-progress&worker=w/host-2:8")

    assert [1, 1] == [row["leases"] for row in rows]
    assert ["w/host-2:8"] == [task["worker"] for task in held["tasks"]]


async def test_a_worker_is_shown_with_its_commands_and_tasks(world: World) -> None:
    """Other tenants do not see it."""
    await created(world, "held")
    await world.client.claim("held")
    row = await world.worker("w", "held")
    others = (await world.view("stranger", "workers"))["workers"]

    assert (1, 0, ["n1"]) == (row["leases"], row["expired"], row["nodes"])
    assert ["held"] == row["commands"]
    # Two clocks are involved, the node's and that of the shard's leader.
    polled, claimed = (datetime.fromisoformat(row[it]) for it in ("lastPollAt", "oldestClaimAt"))
    assert abs(polled - claimed) < timedelta(seconds=60)
    assert [] == others


async def test_a_dead_callback_is_listed_and_replayed(world: World) -> None:
    """Its own tenant replays it by id; it dies again, because its target still fails."""
    delivery = await undelivered(world, "hooked")
    by_stranger = await world.wrote("stranger", "POST", "/deliveries/replay", {"ids": [delivery]})
    status, answer = await world.wrote("admin", "POST", "/deliveries/replay", {"ids": [delivery]})
    await eventually(lambda: dead(world, "hooked"))

    assert (200, {"replayed": 0}) == by_stranger
    assert (200, {"replayed": 1}) == (status, answer)


async def test_a_viewer_sees_no_more_of_a_target_than_its_host(world: World) -> None:
    """The rest of a callback's or subscription's URL may be secret."""
    await undelivered(world, "hidden")
    body = {"callbackUrl": dead_url(f"wake{SECRET}"), "ttlSeconds": 60}
    subscribed = await world.client.post("workers/subscriptions", body)
    assert 200 == subscribed.status, subscribed.body
    urls = {
        role: [
            *(each["url"] for each in await dead(world, "hidden", role)),
            *(
                each["callbackUrl"]
                for each in (await world.told(role, "/subscriptions"))["subscriptions"]
            ),
        ]
        for role in ("viewer", "admin")
    }

    assert all(url.endswith(SECRET) for url in urls["admin"])
    hosts = {role: [urlsplit(url).hostname for url in urls[role]] for role in urls}
    assert 2 == len(hosts["viewer"])
    assert hosts["admin"] == hosts["viewer"]
    assert not [url for url in urls["viewer"] if "key" in url or "hook" in url]


async def test_deliveries_are_listed_only_by_a_known_status(world: World) -> None:
    """An unknown status is refused with a list of the known ones."""
    refused = await world.roles["viewer"].get("/deliveries?status=lost")

    assert (
        400,
        "invalid 'status' (use dead or pending)",
    ) == (refused.status, refused.json["error"])


async def test_a_policy_is_saved_shown_and_deleted(world: World) -> None:
    """The queue's view and the list show it, and its values have the API's bounds."""
    made = await world.wrote("admin", "PUT", "/topics/governed", {"maxAttempts": 2, "weight": 3})
    shown = await world.view("viewer", "queue&queue=governed")
    listed = (await world.told("viewer", "/topics"))["topics"]
    refused = await world.wrote("admin", "PUT", "/topics/governed", {"weight": 0})
    deleted = await world.wrote("admin", "DELETE", "/topics/governed?deletionPolicy=Delete")
    after = (await world.told("viewer", "/topics"))["topics"]

    assert (201, 2) == (made[0], shown["topic"]["maxAttempts"])
    assert ["governed"] == [each["name"] for each in listed]
    assert (422, "weight") == (refused[0], refused[1]["field"])
    assert (204, []) == (deleted[0], after)


async def test_the_cluster_is_shown_to_operators_as_each_node_tells_of_itself(
    world: World,
) -> None:
    """The view has leaders, progress and disk space as each node reports them."""
    shown = await world.view("operator", "cluster")
    [node] = shown["nodes"]
    shards = shown["shards"]

    assert ("n1", True, True, True) == (node["id"], node["self"], node["connected"], node["voter"])
    assert (__version__, [0, 1]) == (node["version"], node["leads"])
    assert 0 < node["diskFreeBytes"] <= node["diskBytes"]
    assert node["memoryBytes"] > 0
    assert [
        (0, "n1", "n1"),
        (1, "n1", "n1"),
    ] == [(each["shard"], each["leader"], each["preferred"]) for each in shards]
    assert [0, 0] == [replica["lag"] for each in shards for replica in each["replicas"]]
    assert shown["backups"] is True


async def test_a_leadership_goes_only_to_a_known_node(world: World) -> None:
    """An unknown node or shard is refused."""
    nowhere = await world.wrote("operator", "POST", "/cluster/transfer", {"shard": 0, "to": "n9"})
    nothing = await world.wrote("operator", "POST", "/cluster/transfer", {"shard": 2})

    assert (400, "no-such-node") == (nowhere[0], nowhere[1]["code"])
    assert (400, "out-of-range") == (nothing[0], nothing[1]["code"])


async def test_a_backup_is_taken_followed_and_listed(world: World) -> None:
    """An operator takes it, and then finds it in the audit."""
    status, begun = await world.wrote("operator", "POST", "/backups")
    await eventually(
        lambda: world.told("operator", f"/backups/{begun['id']}"),
        lambda told: told["status"] == "DONE",
    )
    listed = (await world.told("operator", "/backups"))["backups"]
    [record] = (await world.told("operator", "/audit"))["records"]

    assert 202 == status
    assert [(begun["id"], True)] == [(each["id"], each["complete"]) for each in listed]
    assert ("backup.create", begun["id"]) == (record["action"], record["target"])
    assert "a operator" == record["actor"]


async def test_an_operator_reads_no_record_of_a_tenants_queues(world: World) -> None:
    """An admin reads the tenant's records, newest first; another tenant's admin reads none."""
    await world.wrote("admin", "POST", "/queues/on.record/pause")
    await world.wrote("admin", "POST", "/queues/on.record/resume")
    of_admin = (await world.told("admin", "/audit?limit=2"))["records"]
    of_operator = (await world.told("operator", "/audit"))["records"]
    of_stranger = (await world.told("stranger", "/audit"))["records"]

    assert [
        ("queue.resume", "on.record"),
        ("queue.pause", "on.record"),
    ] == [(each["action"], each["target"]) for each in of_admin]
    assert "on.record" not in json.dumps(of_operator)
    assert [] == of_stranger
