"""Store: artifacts with every call bounded, and no remains of a failed upload."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import assert_never

from codeq_cluster.artifacts.local import LocalDirectory
from codeq_cluster.artifacts.names import (
    DEFAULT_CONTENT_TYPE,
    artifact_path,
    tenant_segment,
    upload_prefix,
)
from codeq_cluster.artifacts.provider import ArtifactBackend, Reading, Stored
from codeq_cluster.artifacts.s3 import S3Bucket
from codeq_cluster.artifacts.source import UploadSource
from codeq_cluster.errors import ArtifactStoreFailed, first_of
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings

log = logging.getLogger(__name__)

# Of one submit: more would let one worker take every place of the node.
UPLOADS_OF_A_SUBMIT_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """One artifact of a submit; its name satisfies `names.is_name`."""

    name: str
    chunks: AsyncIterator[bytes]
    content_type: str = DEFAULT_CONTENT_TYPE


class ArtifactStore:
    """Stores artifacts in a provider.

    Args:
        timeout_s: Of one put, of one deletion, and of each step of a read.
        uploads_max: In progress at once; others wait, within their timeout. One tenant gets at
            most half of them.
    """

    def __init__(self, provider: ArtifactBackend, *, timeout_s: float, uploads_max: int) -> None:
        self._provider = provider
        self._timeout_s = timeout_s
        self._places = FairShares(uploads_max, name="the places for uploads")
        # Uploads whose callers have gone, with their paths.
        self._ending: dict[asyncio.Task[None], str] = {}

    async def check(self) -> None:
        """Write, find and delete a test object.

        Raises:
            ArtifactStoreFailed: The store cannot be used; the text is one line with the reason.
        """
        async with self._deadline("checking the artifact store"):
            await self._provider.check()

    async def put(
        self, path: str, chunks: AsyncIterator[bytes], *, content_type: str, bytes_max: int
    ) -> Stored:
        """Store an artifact, replacing an older one; visible whole or not at all.

        After any error, cancellation included, nothing is left behind, at the latest once `close`
        has returned. An error of `chunks` passes through.

        Raises:
            ArtifactTooLarge: More than `bytes_max` bytes came.
            ArtifactStoreFailed: The store refused, or did not take it within the timeout.
        """
        source = UploadSource(chunks, bytes_max=bytes_max)
        upload = asyncio.get_running_loop().create_task(
            self._upload(path, source, content_type=content_type)
        )
        try:
            async with self._deadline(f"storing {path}"):
                return await asyncio.shield(upload)
        except BaseException:
            # A failed upload has cleaned up after itself.
            if not upload.done() or upload.exception() is None:
                source.stop()
                self._later(self._end(upload, path), path)
            raise

    async def put_all(
        self,
        uploads: Sequence[Upload],
        *,
        tenant: str,
        task_id: str,
        upload_id: str,
        bytes_max: int,
    ) -> tuple[Stored, ...]:
        """Store the artifacts of one submit, all or none, `UPLOADS_OF_A_SUBMIT_MAX` at a time.

        Args:
            uploads: Each name at most once.
            upload_id: Used by no other upload: a failure deletes everything below it.
            bytes_max: Of each.

        Returns:
            The stored artifacts, in the order of `uploads`.

        Raises:
            ArtifactTooLarge: One of them is too large.
            ArtifactStoreFailed: One of them could not be stored.
        """
        prefix = upload_prefix(tenant, task_id, upload_id)
        places = asyncio.Semaphore(UPLOADS_OF_A_SUBMIT_MAX)

        async def one(upload: Upload) -> Stored:
            path = artifact_path(tenant, task_id, upload_id, upload.name)
            async with places:
                return await self.put(
                    path, upload.chunks, content_type=upload.content_type, bytes_max=bytes_max
                )

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(upload)) for upload in uploads]
        except BaseExceptionGroup as failures:
            await asyncio.shield(self._later(self._withdraw(prefix), prefix))
            raise first_of(failures) from None
        except asyncio.CancelledError:
            self._later(self._withdraw(prefix), prefix)
            raise
        return tuple(task.result() for task in tasks)

    async def head(self, path: str) -> Stored:
        """Return an artifact's description.

        Raises:
            ArtifactMissing: There is none.
            ArtifactStoreFailed: The store did not answer.
        """
        async with self._deadline(f"reading {path}"):
            return await self._provider.head(path)

    @asynccontextmanager
    async def get(
        self, path: str, *, start: int = 0, end: int | None = None, etag: str = ""
    ) -> AsyncIterator[Reading]:
        """Open an artifact, or the bytes from `start` to before `end`; the chunks stream.

        Args:
            path: By `names`.
            start: Below the artifact's size unless it is 0.
            end: Above `start`; cut to the size.
            etag: The etag it must have; empty for any.

        Raises:
            ArtifactMissing: There is none, or it has another etag.
            ArtifactStoreFailed: The store refused or fell silent; the chunks may raise it too.
        """
        assert start >= 0, "a range begins in the artifact"
        assert end is None or start < end, "a range has a byte"
        async with AsyncExitStack() as stack:
            async with self._deadline(f"reading {path}"):
                opening = self._provider.get(path, start=start, end=end, etag=etag)
                reading = await stack.enter_async_context(opening)
            yield replace(reading, chunks=self._timed(path, reading.chunks))

    async def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix, of a task or of an upload; repeat it after a failure.

        Returns:
            How many artifacts there were.

        Raises:
            ArtifactStoreFailed: Some may be left.
        """
        async with self._deadline(f"deleting {prefix}"):
            return await self._provider.delete_prefix(prefix)

    async def close(self) -> None:
        """Wait until abandoned uploads are cleaned up, as long as one call may take."""
        ending = tuple(self._ending)
        if ending:
            await asyncio.wait(ending, timeout=self._timeout_s)
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)

    async def _upload(self, path: str, source: UploadSource, *, content_type: str) -> Stored:
        async with self._places.one_in_time(tenant_segment(path)):
            try:
                return await self._provider.put(path, source, content_type=content_type)
            except Exception:
                # Raise the source's own error, however the provider wrapped it.
                if source.error is not None:
                    raise source.error from None
                raise

    async def _end(self, upload: asyncio.Task[Stored], path: str) -> None:
        """Wait for an abandoned upload to end, and delete the artifact if it was stored."""
        await asyncio.wait([upload])
        if upload.cancelled() or upload.exception() is not None:
            return
        try:
            async with self._deadline(f"deleting {path}"):
                await self._provider.delete(path)
        except ArtifactStoreFailed as error:
            log.warning("artifact is left behind", extra={"path": path, "error": str(error)})

    async def _withdraw(self, prefix: str) -> None:
        """Delete the stored part of a failed submit, once its other uploads have ended."""
        ending = [task for task, path in self._ending.items() if path.startswith(f"{prefix}/")]
        if ending:
            await asyncio.wait(ending, timeout=self._timeout_s)
        try:
            await self.delete_prefix(prefix)
        except ArtifactStoreFailed as error:
            log.warning("artifacts are left behind", extra={"path": prefix, "error": str(error)})

    def _later(self, work: Coroutine[None, None, None], path: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._ending[task] = path
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._ending[task]

    async def _timed(self, path: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        while True:
            async with self._deadline(f"reading {path}"):
                chunk = await anext(chunks, None)
            if chunk is None:
                return
            yield chunk

    @asynccontextmanager
    async def _deadline(self, what: str) -> AsyncIterator[None]:
        bound = asyncio.timeout(self._timeout_s)
        try:
            async with bound:
                yield
        except TimeoutError as error:
            if not bound.expired():
                raise
            raise ArtifactStoreFailed(f"{what}: no answer within {self._timeout_s:g} s") from error


def open_store(settings: ArtifactSettings) -> ArtifactStore | None:
    """Return the store that the settings name, or None for none; connects to nothing yet."""
    provider: ArtifactBackend
    match settings.provider:
        case ArtifactProvider.NONE:
            return None
        case ArtifactProvider.LOCAL:
            assert settings.directory is not None, "the configuration is checked"
            provider = LocalDirectory(settings.directory)
        case ArtifactProvider.S3:
            provider = S3Bucket(settings)
        case _:
            assert_never(settings.provider)
    return ArtifactStore(
        provider, timeout_s=settings.timeout_ms / 1000, uploads_max=settings.uploads_max
    )
