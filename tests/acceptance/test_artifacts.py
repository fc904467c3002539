"""Artifacts: one store for all nodes, which stays correct when a node dies half-way."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from tests.harness.client import RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import ADMIN_TOKEN, PRODUCER_TOKEN, WORKER_TOKENS
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = WORKER_TOKENS["worker-0"]
MIB = 2**20
FILES = 40


class Shared:
    """A cluster whose nodes keep artifacts in one directory."""

    def __init__(
        self,
        cluster: LocalCluster,
        client: RecordingClient,
        http: aiohttp.ClientSession,
        root: Path,
    ) -> None:
        self.http = http
        self.cluster = cluster
        self.client = client
        self.root = root

    def kept(self) -> set[str]:
        """Return the stored files, complete or not."""
        # A walk skips files that are deleted meanwhile.
        return {
            str(Path(place, name).relative_to(self.root))
            for place, _, names in os.walk(self.root)
            for name in names
            if Path(place) != self.root  # A starting node tests here whether it can write.
        }

    def forget(self) -> None:
        """Delete all stored files."""
        for path in self.kept():
            (self.root / path).unlink(missing_ok=True)

    async def until_kept(self, count: int) -> set[str]:
        """Wait until this many files are stored."""

        async def are_kept() -> set[str] | None:
            kept = self.kept()
            return kept if len(kept) == count else None

        return await until(are_kept, what=f"{count} files, not {self.kept()}")

    async def leased(self, node: str, command: str) -> dict[str, Any]:
        """Create a task and claim it."""
        await self.client.created(node, PRODUCER_TOKEN, command)
        return await self.client.claimed(node, WORKER, [command])

    async def finish(self, node: str, task: dict[str, Any], *artifacts: object) -> tuple[int, Any]:
        """Complete a task with artifacts; return status and body, 0 for a broken connection."""
        body = {
            "status": "COMPLETED",
            "result": {},
            "artifacts": artifacts,
            "leaseToken": task["leaseToken"],
        }
        content = BytesIO(msgspec.json.encode(body))
        url = f"{self.cluster.urls[node]}/v1/codeq/tasks/{task['id']}/result"
        headers = {"Authorization": f"Bearer {WORKER}"}
        try:
            async with self.http.post(url, headers=headers, data=content) as answer:
                return answer.status, await answer.json()
        except aiohttp.ClientError:
            return 0, None

    async def served(
        self, url: str, headers: dict[str, str]
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """Read an artifact, over an election if necessary; return the answer and its content."""

        async def answered() -> tuple[aiohttp.ClientResponse, bytes] | None:
            async with self.http.get(url, headers=headers) as answer:
                body = await answer.read()
                return None if answer.status == 503 else (answer, body)

        return await until(answered, what=f"an answer from {url}")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shared]:
    """Run three nodes that sweep a task's uploads 8 s after its end."""
    root = tmp_path_factory.mktemp("artifacts")
    settings = {
        "artifacts": {"provider": "local", "directory": str(root), "timeoutMs": 4000},
        "limits": {"requestTimeoutMs": 4000},
    }
    cluster = LocalCluster(tmp_path_factory.mktemp("nodes"), settings=settings)
    async with cluster, RecordingClient(cluster.urls) as client, aiohttp.ClientSession() as http:
        yield Shared(cluster, client, http, root)


@pytest_asyncio.fixture(loop_scope="module")
async def shared(running: Shared) -> AsyncIterator[Shared]:
    """Yield the module's cluster, with nothing stored and every node running."""
    running.forget()
    yield running
    await running.cluster.restore()


def inline(name: str, content: bytes) -> dict[str, str]:
    """Return an artifact with inline content."""
    return {"name": name, "contentBase64": base64.b64encode(content).decode()}


async def test_another_node_serves_what_a_dead_node_stored(shared: Shared) -> None:
    """Ranges of it can be read too, and nothing can be read without a token."""
    task = await shared.leased("n1", "serve")
    content = bytes(range(256)) * 1024
    status, done = await shared.finish("n1", task, inline("dir/a.bin", content))
    await shared.cluster.kill("n1")
    [artifact] = done["artifacts"]
    url = shared.cluster.urls["n2"] + artifact["url"]
    headers = {"Authorization": f"Bearer {PRODUCER_TOKEN}"}
    whole, body = await shared.served(url, headers)
    part, middle = await shared.served(url, headers | {"Range": "bytes=256-511"})
    refused, _ = await shared.served(url, {})

    assert 200 == status, done
    assert (200, content) == (whole.status, body)
    assert (206, bytes(range(256))) == (part.status, middle)
    assert whole.headers["ETag"] == part.headers["ETag"]
    assert 401 == refused.status


async def test_a_node_killed_while_it_stores_leaves_nothing_in_the_end(shared: Shared) -> None:
    """The result is submitted again elsewhere: those files stay, and the first ones are deleted."""
    artifacts = [inline(f"{number}", bytes([number]) * MIB) for number in range(FILES)]

    async def killed_meanwhile() -> tuple[dict[str, Any], set[str]] | None:
        """Kill the node while it stores; return None if it answered all the same."""
        shared.forget()
        await shared.cluster.restore()
        task = await shared.leased("n1", "kill-in-put")
        submitting = asyncio.create_task(shared.finish("n1", task, *artifacts))

        async def some_are_kept() -> bool:
            return bool(shared.kept())

        await until(some_are_kept, what="something stored")
        await shared.cluster.kill("n1")
        status, answer = await submitting
        assert status in {0, 200, 503}, answer
        return (task, shared.kept()) if status == 0 else None

    task, torn = await until(killed_meanwhile, what="n1 killed in time")

    async def submitted() -> Any:
        status, body = await shared.finish("n2", task, *artifacts)
        return body if status == 200 else None

    done = await until(submitted, what="the result submitted")
    left = await shared.until_kept(len(artifacts))

    assert torn
    assert [each["name"] for each in artifacts] == [each["name"] for each in done["artifacts"]]
    named = {each["url"].split("/artifacts/")[1] for each in done["artifacts"]}
    assert named == {"/".join(path.split("/")[2:]) for path in left}


@pytest.mark.parametrize("whole", [False, True])
async def test_an_upload_whose_node_dies_goes_with_the_tasks_end(
    shared: Shared, whole: bool
) -> None:
    """Both a partial upload and a complete one without a result are deleted."""
    task = await shared.leased("n1", "kill-in-upload")
    url = f"{shared.cluster.urls['n1']}/v1/codeq/tasks/{task['id']}/artifacts/a"
    stalled = asyncio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield bytes(2 * MIB)
        if not whole:
            await stalled.wait()

    sending = asyncio.create_task(_status(shared.http, url, content()))
    if whole:
        assert 201 == await sending
    await shared.until_kept(1)
    await shared.cluster.kill("n1")
    stalled.set()
    if not whole:
        assert 0 == await sending
    stored = shared.kept()
    path = f"/tasks/{task['id']}/cancel"
    await shared.client.done("POST", "n3", path, PRODUCER_TOKEN, repeatable=True)
    await shared.until_kept(0)

    assert 1 == len(stored)


async def test_artifacts_go_when_the_retention_of_their_task_is_over(shared: Shared) -> None:
    """They are deleted whichever node stored them."""
    topic = {"retentionSeconds": 1}
    await shared.client.done("PUT", "n2", "/admin/topics/brief", ADMIN_TOKEN, topic)
    answers = []
    for node in shared.cluster.nodes:
        task = await shared.leased(node, "brief")
        answers.append(await shared.finish(node, task, inline("a", b"x"), inline("b", b"y")))
    await shared.until_kept(0)
    url = answers[0][1]["artifacts"][0]["url"]
    read = partial(shared.client.call, "GET", "n1", url.removeprefix("/v1/codeq"), PRODUCER_TOKEN)
    gone = await answered(read)

    assert [200] * 3 == [status for status, _ in answers]
    assert 404 == gone.status


async def _status(http: aiohttp.ClientSession, url: str, content: AsyncIterator[bytes]) -> int:
    """Return the status of a PUT, 0 if its connection broke."""
    headers = {"Authorization": f"Bearer {WORKER}"}
    try:
        async with http.put(url, headers=headers, data=content) as answer:
            return answer.status
    except aiohttp.ClientError:
        return 0
