"""Artifacts over HTTP, kept in a bucket of a real S3 server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.settings import ArtifactProvider, ArtifactSettings
from tests.contracts.artifacts.s3_server import S3Server, bucket_at, running
from tests.integration.http.artifacts import Keeping, inline, keeping

LARGE = bytes(range(256)) * 4096 * 9  # 9 MiB are uploaded in two parts.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Run one server for the module; each test has its own prefix."""
    with running(tmp_path_factory.mktemp("s3") / "data") as server:
        yield server


@pytest_asyncio.fixture
async def node(server: S3Server, tmp_path: Path) -> AsyncIterator[Keeping]:
    """Run a node that keeps artifacts in the bucket."""
    async with keeping_in(server, tmp_path) as node:
        yield node


@contextlib.asynccontextmanager
async def keeping_in(server: S3Server, directory: Path) -> AsyncIterator[Keeping]:
    """Run a node that keeps artifacts in the bucket of a server."""
    prefix = f"http/{secrets.token_hex(8)}"
    settings = ArtifactSettings(
        provider=ArtifactProvider.S3,
        s3=bucket_at(server.endpoint, prefix=prefix),
        timeout_ms=15_000,  # The server is slow in its first seconds.
    )

    def kept() -> list[str]:
        return sorted([*server.keys(prefix), *server.unfinished(prefix)])

    async with keeping(directory / "data", settings, kept) as node:
        yield node


async def test_artifacts_of_every_kind_are_stored_read_and_swept(node: Keeping) -> None:
    """Artifacts are stored and deleted alike, whether uploaded in one request or in parts."""
    task = await node.leased()
    await node.put(task, "unnamed", b"x")
    sent = (await node.put(task, "large.bin", LARGE, Content_Type="image/png")).json
    done = await node.finish(task, inline("small", b"0123456789"), sent)
    again = await node.finish(task, inline("small", b"0123456789"), sent)
    small, large = (each["url"] for each in done.json["artifacts"])  # type: ignore[attr-defined]
    part = await node.client.get(small, Range="bytes=2-4")
    whole = await node.client.get(large)
    stored = await asyncio.to_thread(node.kept)
    left = await node.until_kept(lambda kept: len(kept) == 2)

    assert 200 == done.status, done.body
    assert done.body == again.body
    assert (206, b"234") == (part.status, part.body)
    assert (200, "image/png") == (whole.status, whole.headers["content-type"])
    assert sent["etag"] == whole.headers["etag"]
    assert LARGE == whole.body
    assert 3 == len(stored)
    assert ["large.bin", "small"] == sorted(Path(each).name for each in left)


async def test_an_upload_whose_task_ends_is_refused_and_gone(node: Keeping) -> None:
    """Uploaded parts are deleted as well."""
    task = await node.leased()
    reader, writer = await node.client.connect()
    path = f"tasks/{task['id']}/artifacts/a"
    writer.write(node.client.head("PUT", path, len(LARGE)) + LARGE[:-1])
    await writer.drain()
    await node.client.post(f"tasks/{task['id']}/cancel")
    writer.write(LARGE[-1:])
    refused = (await reader.readuntil(b"\r\n")).decode()

    assert " 409 " in refused
    assert [] == await asyncio.to_thread(node.kept)


async def test_a_missing_server_is_reported_and_the_task_can_be_finished(tmp_path: Path) -> None:
    """Stored artifacts are reported as unreachable, not as missing."""
    with running(tmp_path / "s3") as server:
        async with keeping_in(server, tmp_path) as node:
            task = await node.leased()
            done = await node.finish(task, inline("a", b"x"))
            [artifact] = done.json["artifacts"]  # type: ignore[misc]
            other = await node.leased()
            server.kill()
            answers = [
                await node.finish(other, inline("a", b"x")),
                await node.put(other, "a", b"x"),
                await node.client.get(artifact["url"]),
            ]
            finished = await node.finish(other)

    assert {(503, "artifact-store-failed")} == {
        (each.status, each.json["code"]) for each in answers
    }
    assert 200 == finished.status
