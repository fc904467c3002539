"""Source: the chunks of one upload, counted, and stoppable from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from codeq_cluster.errors import ArtifactTooLarge, CodeqError


class Abandoned(CodeqError):
    """The caller of the upload has stopped waiting."""


class UploadSource:
    """Passes chunks on until they exceed the limit, or until `stop`.

    Cancelling an upload would leave its parts in the store. If its source fails, the provider
    cleans up; so an upload is ended by failing its source.

    Attributes:
        size: Bytes passed on so far.
        error: The error that ended it, or None.
    """

    def __init__(self, chunks: AsyncIterator[bytes], *, bytes_max: int) -> None:
        self._chunks = chunks
        self._bytes_max = bytes_max
        self._pull: asyncio.Task[bytes | None] | None = None
        self._stopped = False
        self.size = 0
        self.error: Exception | None = None

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        """Return the next chunk.

        Raises:
            Abandoned: `stop` was called.
            ArtifactTooLarge: More than `bytes_max` bytes came.
        """
        try:
            return await self._next()
        except StopAsyncIteration:
            raise
        except Exception as error:
            self.error = error
            raise

    def stop(self) -> None:
        """Fail the chunk in progress and every later one."""
        self._stopped = True
        if self._pull is not None:
            self._pull.cancel()

    async def _next(self) -> bytes:
        if self._stopped:
            raise Abandoned("the upload was abandoned")
        # As a task, so that `stop` can interrupt a source that does not answer.
        self._pull = asyncio.get_running_loop().create_task(_one(self._chunks))
        try:
            chunk = await self._pull
        except asyncio.CancelledError:
            if self._stopped:
                raise Abandoned("the upload was abandoned") from None
            raise
        finally:
            self._pull = None
        if chunk is None:
            raise StopAsyncIteration
        self.size += len(chunk)
        if self.size > self._bytes_max:
            raise ArtifactTooLarge(f"an artifact has at most {self._bytes_max} bytes")
        return chunk


async def _one(chunks: AsyncIterator[bytes]) -> bytes | None:
    """Return the next chunk or None; a task must not end with StopAsyncIteration."""
    return await anext(chunks, None)
