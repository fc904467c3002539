"""The bucket's promises beyond the contract: wrong settings, and servers that fail."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from codeq_cluster.artifacts import open_store
from codeq_cluster.artifacts.names import artifact_path, task_prefix
from codeq_cluster.errors import ArtifactStoreFailed
from codeq_cluster.testing.ports import free_ports
from tests.contracts.artifacts.conftest import MIB, Place, chunked, s3_settings
from tests.contracts.artifacts.s3_server import SECRET_ACCESS_KEY, S3Server, running

PATH = artifact_path("acme", "t1", "u1", "report.txt")


async def test_an_object_is_one_for_other_clients_too(s3_place: Place, s3_server: S3Server) -> None:
    """Other clients find it under the documented key and prefix, with its content type."""
    for content in (b"small", bytes(9 * MIB)):
        await s3_place.store.put(
            PATH, chunked(content), content_type="text/csv", bytes_max=len(content)
        )
        key = f"{s3_place.settings.s3.prefix}/acme/t1/u1/report.txt"

        assert [key] == s3_place.left()
        assert "text/csv" == s3_server.content_type(key)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"bucket": "another"}, "the bucket another at .*: cannot be used: NoSuchBucket"),
        ({"access_key_id": "nobody"}, "cannot be used: InvalidAccessKeyId"),
        ({"secret_access_key": "wrong"}, "cannot be used: SignatureDoesNotMatch"),
        ({"allow_http": False}, "cannot be used: "),
    ],
)
async def test_a_wrong_setting_stops_the_node_in_one_line(
    s3_place: Place, change: dict[str, object], text: str
) -> None:
    """The check repeats the store's error, without any secret."""
    with pytest.raises(ArtifactStoreFailed, match=text) as caught:
        await s3_place.other(s3=replace(s3_place.settings.s3, **change)).check()  # type: ignore[arg-type]

    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400
    assert SECRET_ACCESS_KEY not in str(caught.value)


def test_the_secret_is_in_no_representation(s3_place: Place) -> None:
    """Accidental logs or prints contain no key."""
    store = s3_place.store._provider._store  # type: ignore[attr-defined]
    shown = f"{s3_place.settings!r} {store!r} {store.config!r} {vars(s3_place.store)!r}"

    assert s3_place.settings.s3.bucket in shown
    assert SECRET_ACCESS_KEY not in shown


async def test_a_server_that_is_down_fails_every_call(s3_place: Place) -> None:
    """A refused connection fails at once, before the timeout."""
    nobody = f"http://127.0.0.1:{free_ports(1)[0]}"
    store = s3_place.other(s3=replace(s3_place.settings.s3, endpoint=nobody))
    calls = (
        store.check(),
        store.head(PATH),
        store.delete_prefix(task_prefix("acme", "t1")),
        store.put(PATH, chunked(b"x"), content_type="a/b", bytes_max=1),
        store.put(PATH, chunked(bytes(9 * MIB)), content_type="a/b", bytes_max=9 * MIB),
    )
    for call in calls:
        with pytest.raises(ArtifactStoreFailed, match="error sending request"):
            await call
    with pytest.raises(ArtifactStoreFailed, match="error sending request"):
        async with store.get(PATH):
            pass


async def test_a_server_that_is_silent_is_given_up(s3_place: Place) -> None:
    """A server that accepts connections but never answers delays a call by the timeout at most."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        s3 = replace(s3_place.settings.s3, endpoint=endpoint)
        store = s3_place.other(s3=s3, timeout_ms=300)
        calls = (
            store.head(PATH),
            store.put(PATH, chunked(b"x"), content_type="a/b", bytes_max=1),
            store.delete_prefix(task_prefix("acme", "t1")),
        )
        for call in calls:
            with pytest.raises(ArtifactStoreFailed):
                await call
        await store.close()


async def test_a_server_that_dies_fails_transfers_in_progress(tmp_path: Path) -> None:
    """An upload and a download in progress end with an error, not with half an artifact."""
    with running(tmp_path / "data") as server:
        store = open_store(s3_settings(server, prefix="a"))
        assert store is not None
        content = bytes(32 * MIB)
        await store.put(PATH, chunked(content), content_type="a/b", bytes_max=len(content))

        async def source() -> AsyncIterator[bytes]:
            async for chunk in chunked(bytes(20 * MIB)):
                yield chunk
            server.kill()
            async for chunk in chunked(bytes(20 * MIB)):
                yield chunk

        async with store.get(PATH) as reading:
            first = await anext(reading.chunks)
            with pytest.raises(ArtifactStoreFailed, match="error sending request"):
                await store.put(
                    artifact_path("acme", "t1", "u1", "other"),
                    source(),
                    content_type="a/b",
                    bytes_max=64 * MIB,
                )
            with pytest.raises(ArtifactStoreFailed):
                [chunk async for chunk in reading.chunks]
        assert len(first) < len(content)
        await store.close()
