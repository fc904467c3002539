"""The contract of the artifact store, for every provider."""

from __future__ import annotations

import os

import pytest

from codeq_cluster.artifacts import ArtifactStore, Stored
from codeq_cluster.artifacts.names import artifact_path, task_prefix, upload_prefix
from codeq_cluster.errors import ArtifactMissing
from tests.contracts.artifacts.conftest import MIB, Place, chunked

PATH = artifact_path("acme", "t1", "u1", "report.txt")
TEXT = b"0123456789"


async def put(
    store: ArtifactStore, path: str, content: bytes, content_type: str = "text/plain"
) -> Stored:
    return await store.put(
        path, chunked(content), content_type=content_type, bytes_max=max(1, len(content))
    )


async def read(store: ArtifactStore, path: str, *, start: int = 0, end: int | None = None) -> bytes:
    async with store.get(path, start=start, end=end) as reading:
        return b"".join([chunk async for chunk in reading.chunks])


@pytest.mark.parametrize("size", [0, 1, 8 * MIB - 1, 8 * MIB, 8 * MIB + 1, 32 * MIB])
async def test_a_stored_artifact_is_read_back_unchanged(place: Place, size: int) -> None:
    """Content, size, content type and etag are the same, also at the boundary of a part."""
    content = os.urandom(size)
    stored = await put(place.store, PATH, content, "image/png")

    async with place.store.get(PATH) as reading:
        chunks = [chunk async for chunk in reading.chunks]
        assert content == b"".join(chunks)
        assert (0, size) == (reading.start, reading.end)
        assert stored == reading.stored
    assert (size, "image/png") == (stored.size, stored.content_type)
    assert stored.etag.startswith('"')
    assert stored == await place.store.head(PATH)
    # A large artifact is not collected in memory before it is passed on.
    assert max(map(len, chunks), default=0) <= 2 * MIB


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, 1, b"0"),
        (3, 7, b"3456"),
        (9, 10, b"9"),
        (4, None, b"456789"),
        (9, None, b"9"),
        (0, 10, TEXT),
        (6, 1000, b"6789"),
        (0, None, TEXT),
    ],
)
async def test_a_range_of_bytes_is_read(
    place: Place, start: int, end: int | None, expected: bytes
) -> None:
    """Ranges from the start, in the middle, at the end and past it are read."""
    await put(place.store, PATH, TEXT)

    async with place.store.get(PATH, start=start, end=end) as reading:
        assert expected == b"".join([chunk async for chunk in reading.chunks])
        assert (start, start + len(expected)) == (reading.start, reading.end)
        assert len(TEXT) == reading.stored.size


async def test_a_range_may_lie_across_parts(place: Place) -> None:
    """The boundaries between uploaded parts make no difference."""
    content = os.urandom(20 * MIB)
    await put(place.store, PATH, content)

    assert content[7 * MIB : 17 * MIB] == await read(place.store, PATH, start=7 * MIB, end=17 * MIB)


async def test_a_put_replaces_the_former_artifact(place: Place) -> None:
    """Content, type and etag are those of the last put."""
    first = await put(place.store, PATH, b"first", "text/plain")
    second = await put(place.store, PATH, b"second!", "text/html")

    assert b"second!" == await read(place.store, PATH)
    assert second == await place.store.head(PATH)
    assert first.etag != second.etag
    async with place.other().get(PATH, etag=second.etag) as reading:
        assert second == reading.stored
    with pytest.raises(ArtifactMissing):
        async with place.store.get(PATH, etag=first.etag):
            pass


async def test_a_missing_artifact_is_missing(place: Place) -> None:
    """No provider invents content."""
    with pytest.raises(ArtifactMissing):
        await place.store.head(PATH)
    with pytest.raises(ArtifactMissing):
        async with place.store.get(PATH):
            pass


async def test_a_reader_may_leave_early(place: Place) -> None:
    """The rest is not read, and the next reader gets the whole."""
    content = os.urandom(4 * MIB)
    await put(place.store, PATH, content)
    async with place.store.get(PATH) as reading:
        first = await anext(reading.chunks)

    assert content.startswith(first)
    assert len(first) < len(content)
    assert content == await read(place.store, PATH)


@pytest.mark.parametrize(
    "name",
    [
        "a b.txt",
        "reports/2026/page 1.pdf",
        "50%25.txt",
        "a#1",
        "a?b=c&d",
        "!2F",
        "...",
        "über/日本語/🎉.png",
        "e\u0301",
        "\u00e9",
        "~'\"<>|*:",
        "🎉" * 255,
        "x" * 255,
    ],
)
async def test_a_name_may_be_anything_a_worker_would_choose(place: Place, name: str) -> None:
    """No name fails in the store or leads to another place."""
    path = artifact_path("acme", "t1", "u1", name)
    await put(place.store, path, name.encode())

    assert name.encode() == await read(place.store, path)
    assert 1 == await place.store.delete_prefix(upload_prefix("acme", "t1", "u1"))


async def test_deleting_a_task_deletes_its_artifacts_and_no_other(place: Place) -> None:
    """A prefix ends at a segment: tasks and tenants with similar ids are separate."""
    ours = [artifact_path("acme", "t1", upload, "a") for upload in ("u1", "u2", "u3")]
    others = [
        artifact_path("acme", "t12", "u1", "a"),
        artifact_path("acme", "t", "u1", "a"),
        artifact_path("acme-2", "t1", "u1", "a"),
        artifact_path("_", "t1", "u1", "a"),
    ]
    for path in (*ours, *others):
        await put(place.store, path, path.encode())

    assert 3 == await place.store.delete_prefix(task_prefix("acme", "t1"))
    for path in ours:
        with pytest.raises(ArtifactMissing):
            await place.store.head(path)
    for path in others:
        assert path.encode() == await read(place.store, path)


async def test_deleting_again_is_harmless(place: Place) -> None:
    """A deletion is repeated if its answer was lost."""
    await put(place.store, PATH, TEXT)
    prefix = task_prefix("acme", "t1")

    assert [1, 0, 0] == [await place.store.delete_prefix(prefix) for _ in range(3)]
    assert not place.left()
    assert 0 == await place.store.delete_prefix(task_prefix("nobody", "t9"))


async def test_a_check_leaves_nothing(place: Place) -> None:
    """The check deletes its test object."""
    await place.store.check()

    assert not place.left()
