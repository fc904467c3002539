"""The providers under test: a directory, and a bucket of a real S3 server."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from codeq_cluster.artifacts import ArtifactStore, open_store
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings
from tests.contracts.artifacts.s3_server import S3Server, bucket_at, running

MIB = 2**20
# Generous bounds: a test that needs a timeout sets a short one itself.
TIMEOUT_MS = 60_000


def s3_settings(server: S3Server, *, prefix: str) -> ArtifactSettings:
    """Return a node's settings for the server."""
    return ArtifactSettings(
        provider=ArtifactProvider.S3,
        s3=bucket_at(server.endpoint, prefix=prefix),
        timeout_ms=TIMEOUT_MS,
    )


@dataclass
class Place:
    """A store, and another way to see its content.

    Attributes:
        left: Lists all files on the disk or the server, half-written ones included.
    """

    store: ArtifactStore
    settings: ArtifactSettings
    left: Callable[[], list[str]]

    def other(self, **changes: object) -> ArtifactStore:
        """Open the same place with other settings."""
        store = open_store(replace(self.settings, **changes))  # type: ignore[arg-type]
        assert store is not None
        return store


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Yield one server for all tests; each has a prefix of its own."""
    with running(tmp_path_factory.mktemp("s3") / "data") as server:
        yield server


@pytest.fixture
async def s3_place(s3_server: S3Server) -> AsyncIterator[Place]:
    """Yield an empty prefix of the bucket."""
    prefix = f"tests/{secrets.token_hex(8)}"

    def left() -> list[str]:
        return sorted([*s3_server.keys(prefix), *s3_server.unfinished(prefix)])

    async with _opened(s3_settings(s3_server, prefix=prefix), left) as place:
        yield place


@pytest.fixture
async def local_place(tmp_path: Path) -> AsyncIterator[Place]:
    """Yield an empty directory."""
    root = tmp_path / "artifacts"
    settings = ArtifactSettings(
        provider=ArtifactProvider.LOCAL, directory=root, timeout_ms=TIMEOUT_MS
    )

    def left() -> list[str]:
        return sorted(str(path.relative_to(root)) for path in root.rglob("*"))

    async with _opened(settings, left) as place:
        yield place


@pytest.fixture(params=["local", "s3"])
def place(request: pytest.FixtureRequest) -> Place:
    """Yield an empty place of each provider."""
    made: Place = request.getfixturevalue(f"{request.param}_place")
    return made


@asynccontextmanager
async def _opened(
    settings: ArtifactSettings, left: Callable[[], list[str]]
) -> AsyncIterator[Place]:
    store = open_store(settings)
    assert store is not None
    await store.check()
    yield Place(store, settings, left)
    await store.close()


async def chunked(content: bytes, *, size: int = MIB) -> AsyncIterator[bytes]:
    """Yield the content piece by piece."""
    for start in range(0, len(content), size):
        yield content[start : start + size]


class Interrupted(Exception):
    """The error that a test's source raises."""


async def failing(count: int) -> AsyncIterator[bytes]:
    """Yield `count` chunks of a MiB, then fail."""
    for _ in range(count):
        yield bytes(MIB)
    raise Interrupted


async def stuck(count: int, reached: asyncio.Event) -> AsyncIterator[bytes]:
    """Yield `count` chunks of a MiB, then nothing for ever."""
    for _ in range(count):
        yield bytes(MIB)
    reached.set()
    await asyncio.Event().wait()
