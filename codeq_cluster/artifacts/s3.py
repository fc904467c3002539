"""S3: artifacts as objects of a bucket, through obstore."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import BaseError, PreconditionError
from obstore.store import S3Store

from codeq_cluster.artifacts.names import DEFAULT_CONTENT_TYPE
from codeq_cluster.artifacts.provider import Reading, Stored
from codeq_cluster.errors import ArtifactMissing, ArtifactStoreFailed
from codeq_cluster.settings import ArtifactSettings, S3Settings

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Credential, S3CredentialProvider

# S3 takes parts of 5 MiB or more, at most 10,000 of them. In memory, an upload has one part being
# filled and `_PARTS_AT_ONCE` parts being sent.
_PART_BYTES = 8 * 2**20
_PARTS_AT_ONCE = 2
_READ_BYTES = 256 * 1024
_LIST_OBJECTS = 1000
_RETRIES_MAX = 3
# Readers set the pace of a download, so only silence ends a request.
_REQUEST_TIMEOUT = timedelta(days=1)
_CHECK_PREFIX = ".check"
_REASON_CHARS_MAX = 200
_NO_BUCKET = "<Code>NoSuchBucket</Code>"


class S3Bucket:
    """Stores artifacts in one bucket, below an optional prefix."""

    def __init__(self, settings: ArtifactSettings) -> None:
        self._where = f"the bucket {settings.s3.bucket} at {settings.s3.endpoint or 'AWS'}"
        self._store = open_bucket(settings.s3, timeout_ms=settings.timeout_ms)

    async def check(self) -> None:
        """List, write and delete a test object."""
        probe = f"{_CHECK_PREFIX}/{secrets.token_hex(8)}"
        with self._failing("cannot be used"):
            # Some stores create a bucket at the first write; listing shows whether it is missing.
            await obstore.list(self._store, _CHECK_PREFIX).collect_async()
            await obstore.put_async(self._store, probe, b"codeq", use_multipart=False)
            await obstore.delete_async(self._store, probe)

    async def put(self, path: str, chunks: AsyncIterator[bytes], *, content_type: str) -> Stored:
        """Store the chunks, in one request if they fit a part."""
        parts = _Parts(chunks)
        with self._failing(f"writing {path}"):
            first = await anext(parts, b"")
            small = len(first) < _PART_BYTES
            result = await obstore.put_async(
                self._store,
                path,
                first if small else _following(first, parts),
                attributes={"Content-Type": content_type},
                use_multipart=not small,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        return Stored(size=parts.size, etag=result["e_tag"] or "", content_type=content_type)

    async def head(self, path: str) -> Stored:
        """Return an artifact's description."""
        with self._finding(path):
            return _stored(await obstore.get_async(self._store, path, options={"head": True}))

    @asynccontextmanager
    async def get(
        self, path: str, *, start: int, end: int | None, etag: str
    ) -> AsyncIterator[Reading]:
        """Open an artifact; the request ends with the context."""
        options: obstore.GetOptions = {}
        if etag:
            options["if_match"] = etag
        if start or end is not None:
            options["range"] = {"offset": start} if end is None else (start, end)
        with self._finding(path):
            result = await obstore.get_async(self._store, path, options=options)
        first, last = result.range
        chunks = self._chunks(path, result)
        yield Reading(stored=_stored(result), start=first, end=last, chunks=chunks)

    async def delete(self, path: str) -> None:
        """Delete an artifact, if there is one."""
        await self._delete([path])

    async def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix, one page of the listing at a time."""
        deleted = 0
        with self._failing(f"deleting {prefix}"):
            async for page in obstore.list(self._store, prefix, chunk_size=_LIST_OBJECTS):
                await self._delete([found["path"] for found in page])
                deleted += len(page)
        return deleted

    async def _delete(self, paths: list[str]) -> None:
        for path in paths:
            with self._failing(f"deleting {path}"):
                try:
                    await obstore.delete_async(self._store, path)
                except FileNotFoundError as error:
                    # S3 accepts deleting a missing object; not every compatible store does.
                    if _NO_BUCKET in str(error):
                        raise

    async def _chunks(self, path: str, result: obstore.GetResult) -> AsyncIterator[bytes]:
        with self._failing(f"reading {path}"):
            async for chunk in result.stream(min_chunk_size=_READ_BYTES):
                yield bytes(chunk)

    @contextmanager
    def _finding(self, path: str) -> Iterator[None]:
        with self._failing(f"reading {path}"):
            try:
                yield
            except (FileNotFoundError, PreconditionError) as error:
                if _NO_BUCKET in str(error):
                    raise
                raise ArtifactMissing(f"there is no {path}, or no longer") from error

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, FileNotFoundError) as error:
            raise ArtifactStoreFailed(f"{self._where}: {what}: {reason(error)}") from error


class _Parts:
    """Joins chunks of any size into whole parts; the last one may be smaller."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._gathered = bytearray()
        self.size = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while len(self._gathered) < _PART_BYTES:
            chunk = await anext(self._chunks, None)
            if chunk is None:
                break
            self.size += len(chunk)
            self._gathered += chunk
        if not self._gathered:
            raise StopAsyncIteration
        part = bytes(self._gathered[:_PART_BYTES])
        del self._gathered[:_PART_BYTES]
        return part


async def _following(first: bytes, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for part in parts:
        yield part


def open_bucket(settings: S3Settings, *, timeout_ms: int) -> S3Store:
    """Return a client of the bucket, below the prefix; connects to nothing yet.

    Args:
        settings: Name a bucket.
        timeout_ms: The longest silence of the store before a request fails.
    """
    silence = timedelta(milliseconds=timeout_ms)
    config: S3Config = {
        "region": settings.region,
        "virtual_hosted_style_request": settings.virtual_hosted,
        # Not every compatible store has the bulk request, and a task has few artifacts.
        "disable_bulk_delete": True,
    }
    if settings.endpoint:
        config["endpoint"] = settings.endpoint
    return S3Store(
        settings.bucket,
        prefix=settings.prefix or None,
        config=config,
        client_options={
            "allow_http": settings.allow_http,
            "connect_timeout": silence,
            "read_timeout": silence,
            "timeout": _REQUEST_TIMEOUT,
        },
        retry_config={
            "max_retries": _RETRIES_MAX,
            "retry_timeout": silence,
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=1),
                "base": 2,
            },
        },
        credential_provider=_credentials(settings) if settings.access_key_id else None,
    )


def _credentials(settings: S3Settings) -> S3CredentialProvider:
    """Return a callback that provides the configured keys.

    This keeps them out of every representation of the client. It also keeps out a session token
    that the environment holds for other keys.
    """

    def credentials() -> S3Credential:
        return {
            "access_key_id": settings.access_key_id,
            "secret_access_key": settings.secret_access_key,
            "token": None,
            "expires_at": None,
        }

    return credentials


def _stored(result: obstore.GetResult) -> Stored:
    content_type = result.attributes.get("Content-Type", DEFAULT_CONTENT_TYPE)
    meta = result.meta
    return Stored(size=meta["size"], etag=meta["e_tag"] or "", content_type=content_type)


def reason(error: Exception) -> str:
    """Return the store's own message from the library's many lines of output."""
    text = str(error)
    code = re.search(r"<Code>([^<]*)</Code>", text)
    if code:
        message = re.search(r"<Message>([^<]*)</Message>", text)
        text = f"{code[1]}: {message[1]}" if message else code[1]
    # The request, its retries and their time, then the cause.
    cause = text.partition("\n\nDebug source")[0].rpartition(" - ")[2]
    return " ".join(cause.split())[:_REASON_CHARS_MAX]
