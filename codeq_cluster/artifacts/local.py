"""Local: artifacts as files below one directory.

A file begins with one line of JSON, its etag and content type. So one rename makes both appear with
the content, and both are deleted with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

from codeq_cluster.artifacts.provider import Reading, Stored
from codeq_cluster.durable import sync_directory
from codeq_cluster.errors import ArtifactMissing, ArtifactStoreFailed

_READ_BYTES = 256 * 1024
_BUFFER_BYTES = 2**20
_HEAD_BYTES_MAX = 4096
# No escaped segment contains this character, so a half-written file is never taken for an artifact.
_UNFINISHED = "#"
_OPEN_TRIES = 10


class _Head(msgspec.Struct, rename="camel"):
    etag: str
    content_type: str


class LocalDirectory:
    """Stores artifacts on this machine's disk."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    async def check(self) -> None:
        """Make the directory and write to it."""
        with self._failing("cannot be used"):
            await asyncio.to_thread(self._root.mkdir, parents=True, exist_ok=True)
            probe = self._root / f"{_UNFINISHED}{secrets.token_hex(8)}"
            await asyncio.to_thread(probe.write_bytes, b"codeq")
            await asyncio.to_thread(probe.unlink)

    async def put(self, path: str, chunks: AsyncIterator[bytes], *, content_type: str) -> Stored:
        """Store the chunks; durable on disk when it returns."""
        file = self._file(path)
        head = _Head(etag=f'"{secrets.token_hex(16)}"', content_type=content_type)
        size = 0
        with self._failing(f"writing {path}"):
            unfinished, out = await asyncio.to_thread(_create_beside, file)
            try:
                await asyncio.to_thread(out.write, msgspec.json.encode(head) + b"\n")
                async for chunk in chunks:
                    size += len(chunk)
                    await asyncio.to_thread(out.write, chunk)
                await asyncio.to_thread(self._publish, out, unfinished, file)
            except BaseException:
                await asyncio.to_thread(self._discard, out, unfinished)
                raise
        return Stored(size=size, etag=head.etag, content_type=content_type)

    async def head(self, path: str) -> Stored:
        """Return an artifact's description."""
        with self._finding(path):
            return await asyncio.to_thread(_describe, self._file(path))

    @asynccontextmanager
    async def get(
        self, path: str, *, start: int, end: int | None, etag: str
    ) -> AsyncIterator[Reading]:
        """Open an artifact; it can be read to its end even if it is deleted meanwhile."""
        with self._finding(path):
            opened, offset, stored = await _opened(self._file(path))
        try:
            if etag and etag != stored.etag:
                raise ArtifactMissing(f"{path} was replaced")
            end = stored.size if end is None else min(end, stored.size)
            assert 0 <= start < max(end, 1), "the range is inside the artifact"
            chunks = self._chunks(path, opened, offset + start, end - start)
            yield Reading(stored=stored, start=start, end=end, chunks=chunks)
        finally:
            opened.close()  # Opened for reading only: closing it need not write and cannot block.

    async def delete(self, path: str) -> None:
        """Delete an artifact, if there is one."""
        with self._failing(f"deleting {path}"):
            await asyncio.to_thread(self._delete, self._file(path))

    async def delete_prefix(self, prefix: str) -> int:
        """Delete everything below a prefix, including half-written files of a crash."""
        with self._failing(f"deleting {prefix}"):
            return await asyncio.to_thread(self._delete_below, self._file(prefix))

    def _file(self, path: str) -> Path:
        segments = path.split("/")
        assert not {"", ".", ".."} & set(segments), "a path has no segment that leads elsewhere"
        return self._root.joinpath(*segments)

    async def _chunks(
        self, path: str, opened: BinaryIO, offset: int, size: int
    ) -> AsyncIterator[bytes]:
        with self._failing(f"reading {path}"):
            await asyncio.to_thread(opened.seek, offset)
        while size > 0:
            with self._failing(f"reading {path}"):
                chunk = await asyncio.to_thread(opened.read, min(size, _READ_BYTES))
            if not chunk:
                raise ArtifactStoreFailed(f"{self._root}: {path} is shorter than it was")
            size -= len(chunk)
            yield chunk

    def _publish(self, out: BinaryIO, unfinished: Path, file: Path) -> None:
        out.flush()
        os.fsync(out.fileno())
        out.close()
        unfinished.replace(file)
        for directory in self._above(file):
            sync_directory(directory)
        sync_directory(self._root)

    def _discard(self, out: BinaryIO, unfinished: Path) -> None:
        with contextlib.suppress(OSError):
            out.close()  # It flushes, which a full disk refuses.
        self._delete(unfinished)

    def _delete(self, file: Path) -> None:
        file.unlink(missing_ok=True)
        self._prune(file)

    def _delete_below(self, directory: Path) -> int:
        deleted = 0
        for place, _, files in os.walk(directory, topdown=False):
            for name in files:
                with contextlib.suppress(FileNotFoundError):
                    Path(place, name).unlink()
                    deleted += _UNFINISHED not in name
            with contextlib.suppress(OSError):
                Path(place).rmdir()
        self._prune(directory)
        return deleted

    def _prune(self, file: Path) -> None:
        """Remove the parent directories that are now empty."""
        for directory in self._above(file):
            try:
                directory.rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return  # It holds another artifact.

    def _above(self, file: Path) -> list[Path]:
        """Return the directories between a file and the root, the nearest first."""
        return [parent for parent in file.parents if self._root in parent.parents]

    @contextmanager
    def _finding(self, path: str) -> Iterator[None]:
        with self._failing(f"reading {path}"):
            try:
                yield
            except FileNotFoundError as error:
                raise ArtifactMissing(f"there is no {path}") from error

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except (OSError, msgspec.MsgspecError) as error:
            raise ArtifactStoreFailed(f"the directory {self._root}: {what}: {error}") from error


def _create_beside(file: Path) -> tuple[Path, BinaryIO]:
    """Make a file in the artifact's directory, under a name that no artifact has."""
    unfinished = file.with_name(f"{_UNFINISHED}{secrets.token_hex(8)}")
    for _ in range(_OPEN_TRIES):
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        # The end of another upload may have removed the new directory.
        with contextlib.suppress(FileNotFoundError):
            return unfinished, unfinished.open("xb", buffering=_BUFFER_BYTES)
    raise FileExistsError(f"{unfinished.parent} is removed again and again")


def _describe(file: Path) -> Stored:
    opened, _, stored = _open(file)
    opened.close()
    return stored


async def _opened(file: Path) -> tuple[BinaryIO, int, Stored]:
    """Open an artifact's file in a thread; a cancelled caller leaves no file open."""
    opening = asyncio.get_running_loop().run_in_executor(None, _open, file)
    try:
        return await asyncio.shield(opening)
    except asyncio.CancelledError:
        opening.add_done_callback(_close_opened)
        raise


def _close_opened(opening: asyncio.Future[tuple[BinaryIO, int, Stored]]) -> None:
    if opening.exception() is None:
        opening.result()[0].close()


def _open(file: Path) -> tuple[BinaryIO, int, Stored]:
    """Return an artifact's open file, the offset of its content, and its description."""
    opened = file.open("rb")
    try:
        line = opened.readline(_HEAD_BYTES_MAX)
        head = msgspec.json.decode(line, type=_Head)
        size = os.fstat(opened.fileno()).st_size - len(line)
    except BaseException:
        opened.close()
        raise
    return opened, len(line), Stored(size=size, etag=head.etag, content_type=head.content_type)
