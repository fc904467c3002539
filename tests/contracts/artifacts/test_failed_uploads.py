"""A failed upload leaves nothing behind, with every provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from codeq_cluster.artifacts import Upload
from codeq_cluster.artifacts.names import artifact_path, upload_prefix
from codeq_cluster.artifacts.store import UPLOADS_OF_A_SUBMIT_MAX
from codeq_cluster.errors import ArtifactMissing, ArtifactStoreFailed, ArtifactTooLarge
from tests.contracts.artifacts.conftest import MIB, Interrupted, Place, chunked, failing, stuck

PATH = artifact_path("acme", "t1", "u1", "report.txt")
BYTES_MAX = 64 * MIB
# The failure comes within the first part, or after parts were sent.
COUNTS = [1, 20]


async def test_an_upload_is_seen_whole_or_not_at_all(place: Place) -> None:
    """During the upload there is no artifact, although most of it has been sent."""
    reached, go = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        async for chunk in chunked(bytes(20 * MIB)):
            yield chunk
        reached.set()
        await go.wait()
        yield b"end"

    async with asyncio.TaskGroup() as group:
        group.create_task(place.store.put(PATH, source(), content_type="a/b", bytes_max=BYTES_MAX))
        await reached.wait()
        assert place.left(), "it is sent as it comes"
        with pytest.raises(ArtifactMissing):
            await place.store.head(PATH)
        go.set()

    assert 20 * MIB + 3 == (await place.store.head(PATH)).size


@pytest.mark.parametrize("count", COUNTS)
async def test_a_source_that_fails_leaves_nothing(place: Place, count: int) -> None:
    """Its error passes through, and the part already sent is deleted."""
    with pytest.raises(Interrupted):
        await place.store.put(PATH, failing(count), content_type="a/b", bytes_max=BYTES_MAX)

    assert not place.left()


async def test_a_source_that_fails_like_a_store_is_not_taken_for_one(place: Place) -> None:
    """An error of the source passes through even if its class is one that stores raise."""

    async def source() -> AsyncIterator[bytes]:
        yield b"begin"
        raise FileNotFoundError("of the source")

    with pytest.raises(FileNotFoundError, match="of the source"):
        await place.store.put(PATH, source(), content_type="a/b", bytes_max=BYTES_MAX)

    assert not place.left()


@pytest.mark.parametrize("count", COUNTS)
async def test_one_byte_too_many_leaves_nothing(place: Place, count: int) -> None:
    """The limit itself is allowed."""
    content = bytes(count * MIB)
    with pytest.raises(ArtifactTooLarge, match=f"{len(content) - 1} bytes"):
        await place.store.put(
            PATH, chunked(content), content_type="a/b", bytes_max=len(content) - 1
        )
    assert not place.left()

    stored = await place.store.put(
        PATH, chunked(content), content_type="a/b", bytes_max=len(content)
    )
    assert len(content) == stored.size


@pytest.mark.parametrize("count", COUNTS)
async def test_a_failed_put_keeps_the_former_artifact(place: Place, count: int) -> None:
    """An artifact is replaced completely or not at all."""
    before = await place.store.put(PATH, chunked(b"old"), content_type="a/b", bytes_max=3)
    left = place.left()
    with pytest.raises(Interrupted):
        await place.store.put(PATH, failing(count), content_type="c/d", bytes_max=BYTES_MAX)

    assert before == await place.store.head(PATH)
    assert left == place.left()


@pytest.mark.parametrize("count", COUNTS)
async def test_a_cancelled_upload_leaves_nothing(place: Place, count: int) -> None:
    """The remains of a worker that hangs up are deleted."""
    reached = asyncio.Event()
    upload = asyncio.create_task(
        place.store.put(PATH, stuck(count, reached), content_type="a/b", bytes_max=BYTES_MAX)
    )
    await reached.wait()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    await place.store.close()

    assert not place.left()


async def test_an_upload_cancelled_at_its_end_leaves_nothing(place: Place) -> None:
    """An artifact stored after its caller went away is deleted."""

    async def source() -> AsyncIterator[bytes]:
        yield b"all of it"
        upload.cancel()

    upload = asyncio.create_task(
        place.store.put(PATH, source(), content_type="a/b", bytes_max=BYTES_MAX)
    )
    with pytest.raises(asyncio.CancelledError):
        await upload
    await place.store.close()

    assert not place.left()


@pytest.mark.parametrize("count", COUNTS)
async def test_a_source_that_falls_silent_is_given_up(place: Place, count: int) -> None:
    """The timeout ends an upload and deletes its remains."""
    store = place.other(timeout_ms=1500)
    with pytest.raises(ArtifactStoreFailed, match=r"no answer within 1\.5 s"):
        await store.put(
            PATH, stuck(count, asyncio.Event()), content_type="a/b", bytes_max=BYTES_MAX
        )
    await store.close()

    assert not place.left()


async def test_a_submits_artifacts_are_stored_in_their_order(place: Place) -> None:
    """The answers are in the order of the request, whichever upload ends first."""
    sizes = [3 * MIB, 10, 0, 9 * MIB, 7, 2 * MIB, 1]
    uploads = [
        Upload(name=f"n/{size}", chunks=chunked(bytes(size)), content_type=f"a/{size}")
        for size in sizes
    ]
    stored = await place.store.put_all(
        uploads, tenant="acme", task_id="t1", upload_id="u1", bytes_max=BYTES_MAX
    )

    assert [(size, f"a/{size}") for size in sizes] == [(s.size, s.content_type) for s in stored]
    for upload, one in zip(uploads, stored, strict=True):
        assert one == await place.store.head(artifact_path("acme", "t1", "u1", upload.name))


async def test_one_failed_artifact_of_a_submit_leaves_none(place: Place) -> None:
    """Those stored before it and beside it are deleted; other submits' stay."""
    kept = await place.store.put(PATH, chunked(b"kept"), content_type="a/b", bytes_max=4)
    left = place.left()
    reached = asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        await reached.wait()
        async for chunk in failing(10):
            yield chunk

    uploads = [
        Upload(name="stored", chunks=chunked(b"small")),
        Upload(name="under way", chunks=stuck(20, reached)),
        Upload(name="failing", chunks=source()),
        *(Upload(name=f"{number}", chunks=chunked(bytes(100))) for number in range(5)),
    ]
    with pytest.raises(Interrupted):
        await place.store.put_all(
            uploads, tenant="acme", task_id="t1", upload_id="u2", bytes_max=BYTES_MAX
        )

    assert left == place.left()
    assert kept == await place.store.head(PATH)


async def test_a_cancelled_submit_leaves_none(place: Place) -> None:
    """A request that ends takes its artifacts with it."""
    reached = asyncio.Event()
    uploads = [
        Upload(name="stored", chunks=chunked(b"small")),
        Upload(name="under way", chunks=stuck(20, reached)),
    ]
    submit = asyncio.create_task(
        place.store.put_all(
            uploads, tenant="acme", task_id="t1", upload_id="u1", bytes_max=BYTES_MAX
        )
    )
    await reached.wait()
    submit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await submit
    await place.store.close()

    assert not place.left()


class Counted:
    """Sources that wait until this many of them run, and record the highest number."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self.full = asyncio.Event()
        self._now = 0
        self.most = 0

    async def source(self) -> AsyncIterator[bytes]:
        """Yield one chunk."""
        self._now += 1
        self.most = max(self.most, self._now)
        if self._now == self._expected:
            self.full.set()
        await self.full.wait()
        yield b"content"
        self._now -= 1


async def test_a_submit_uploads_five_at_a_time(place: Place) -> None:
    """The others wait, and are stored later."""
    store = place.other(uploads_max=2 * UPLOADS_OF_A_SUBMIT_MAX)
    counted = Counted(UPLOADS_OF_A_SUBMIT_MAX)
    uploads = [Upload(name=f"{number}", chunks=counted.source()) for number in range(12)]
    stored = await store.put_all(
        uploads, tenant="acme", task_id="t1", upload_id="u1", bytes_max=100
    )

    assert (12, 5) == (len(stored), counted.most)
    assert 12 == await place.store.delete_prefix(upload_prefix("acme", "t1", "u1"))


async def test_a_node_uploads_so_many_at_a_time(place: Place) -> None:
    """All submits together take no more memory than the node's limit."""
    store = place.other(uploads_max=3)
    counted = Counted(3)
    async with asyncio.TaskGroup() as group:
        for number in range(9):
            path = artifact_path(f"acme{number}", "t1", "u1", "a")
            group.create_task(store.put(path, counted.source(), content_type="a/b", bytes_max=100))

    assert 3 == counted.most


async def test_a_tenant_whose_uploads_stall_leaves_room_for_another(place: Place) -> None:
    """The stalling tenant may start any number of uploads."""
    store = place.other(uploads_max=4)
    slow = Counted(2)
    go = asyncio.Event()

    async def stalling() -> AsyncIterator[bytes]:
        async for chunk in slow.source():
            await go.wait()
            yield chunk

    async with asyncio.TaskGroup() as group:
        for number in range(9):
            path = artifact_path("acme", f"t{number}", "u1", "a")
            group.create_task(store.put(path, stalling(), content_type="a/b", bytes_max=100))
        await slow.full.wait()
        other = artifact_path("other", "t1", "u1", "a")
        await store.put(other, chunked(b"content"), content_type="a/b", bytes_max=100)
        under_way = slow.most
        go.set()

    assert 2 == under_way
    assert 7 == (await store.head(other)).size
