"""Uploads: artifacts stored for a task by the worker that holds it.

An upload is recorded in the log before its first byte is stored. So the task knows of it even if
this node fails, and the artifact garbage collection deletes it unless the result names it. Each
upload has a unique id, so its creator may always delete it while no result can name it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from codeq_cluster.broker import links
from codeq_cluster.broker.background import Background
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.files import Files
from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.requests.producer import over_budget
from codeq_cluster.broker.values import NewFile, NewResult, Uploaded, new_request
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.operations import Finish, Operation, Staging, Submit
from codeq_cluster.core.outcomes import Outcome, Rejected, Rejection, Submitted
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Artifact, Result
from codeq_cluster.errors import (
    ArtifactStoreFailed,
    CodeqError,
    NoLeader,
    OperationTooLarge,
    Overloaded,
)

log = logging.getLogger(__name__)

_NOT_DONE = (NoLeader, Overloaded, OperationTooLarge)


class Uploads:
    """Stores artifacts, and submits results that include files.

    Args:
        files: The artifact store; None if there is none, and then nothing here is called.
        base: Prefix of artifact URLs; empty for paths alone.
    """

    def __init__(
        self, shards: Shards, files: Files | None, background: Background, *, base: str
    ) -> None:
        self._shards = shards
        self._known_files = files
        self._background = background
        self._base = base
        self._doubted = False

    @property
    def _files(self) -> Files:
        assert self._known_files is not None, "what needs a provider is refused without one"
        return self._known_files

    async def upload(
        self,
        tenant: str,
        worker: str,
        task_id: str,
        *,
        name: str,
        content_type: str,
        chunks: AsyncIterator[bytes],
        size_max: int,
        token: int,
        timeout_s: float,
    ) -> Uploaded | Rejected:
        """Store one artifact of a leased task, for a result that names it by its URL.

        Args:
            worker: The worker that must hold the lease, before the upload and after it.
            name: By the rules for names.
            content_type: By the rules for content types.
            chunks: The content; its errors pass through.
            size_max: Counts against the tenant's budget until the size is known.
            token: The lease token; 0 if the worker sent none.
            timeout_s: Of each of the two requests to the shard; the store has its own.
        """
        upload = links.new_upload()
        stage = Staging(
            id=task_id, tenant=tenant, worker=worker, upload=upload, token=token, size=size_max
        )
        refused = await self._stage(stage, timeout_s)
        if refused is not None:
            return refused
        with self._released(stage, timeout_s), self._watched():
            kept = await self._files.store(
                tenant, task_id, upload, name=name, content_type=content_type, chunks=chunks
            )
        refused = await self._held(replace(stage, size=kept.size), timeout_s)
        if refused is not None:
            await self._discard(stage)
            return refused
        url = links.link(self._base, task_id, upload, name)
        return Uploaded(name=name, url=url, size=kept.size, etag=kept.etag)

    async def submit(
        self, tenant: str, worker: str, item: NewResult, *, timeout_s: float
    ) -> Submitted | Rejected | CodeqError:
        """End a leased task with a result that includes files; return errors as values.

        Args:
            item: The result, with files among its artifacts.
            timeout_s: Of each request to the shard; the store has its own.
        """
        try:
            return await self._submit(tenant, worker, item, timeout_s)
        except CodeqError as error:
            return error

    async def _submit(
        self, tenant: str, worker: str, item: NewResult, timeout_s: float
    ) -> Submitted | Rejected:
        files = [each for each in item.artifacts if isinstance(each, NewFile)]
        upload = links.new_upload(_digest(files))
        stage = Staging(
            id=item.task_id,
            tenant=tenant,
            worker=worker,
            upload=upload,
            token=item.token,
            size=sum(len(chunk) for each in files for chunk in each.chunks),
        )
        refused = await self._stage(stage, timeout_s)
        if refused is not None:
            return await self._said_before(stage, item, timeout_s) or refused
        with self._released(stage, timeout_s), self._watched():
            await self._files.store_all(tenant, item.task_id, upload, files)
        artifacts = self._linked(item, upload)
        operation = submit_of(tenant, worker, item, artifacts, shards=self._shards.count)
        try:
            outcome = await self._operate(item.task_id, operation, timeout_s)
        except _NOT_DONE:
            await self._discard(stage)
            raise
        if isinstance(outcome, Rejected):
            await self._discard(stage)
            return await self._said_before(stage, item, timeout_s) or outcome
        assert isinstance(outcome, Submitted)
        return outcome

    def _linked(self, item: NewResult, upload: str) -> tuple[Artifact, ...]:
        """Return the artifacts in their order, files named by their URLs."""
        return tuple(
            Artifact(each.name, links.link(self._base, item.task_id, upload, each.name))
            if isinstance(each, NewFile)
            else each
            for each in item.artifacts
        )

    async def _stage(self, stage: Staging, timeout_s: float) -> Rejected | None:
        """Record an upload in the log; return why it is refused, or None."""
        if self._doubted:
            # Every recorded upload stays with its task, so none is recorded while the store is
            # down.
            with self._watched():
                await self._files.check()
        return await self._held(stage, timeout_s)

    async def _held(self, stage: Staging, timeout_s: float) -> Rejected | None:
        """Return why the worker does not hold the lease, or None."""
        outcome = await self._operate(stage.id, stage, timeout_s)
        if not isinstance(outcome, Rejected):
            return None
        if outcome.rejection is Rejection.BUDGET_EXCEEDED:
            raise over_budget(outcome, "upload")
        return outcome

    async def _said_before(
        self, stage: Staging, item: NewResult, timeout_s: float
    ) -> Submitted | None:
        """Return the stored result if this worker has submitted the same one before."""
        shard = shard_of(stage.id, self._shards.count)
        deadline = deadline_in(timeout_s)
        keys = (keyspace.task(stage.id), keyspace.result(stage.id))
        rows = await self._shards.read(shard, keys, deadline=deadline)
        task, ended = rows.values
        if task is None or ended is None or records.decode_task(task).tenant != stage.tenant:
            return None
        result = records.decode_result(ended)
        return Submitted(result) if _says_the_same(result, stage.worker, item) else None

    async def _operate(self, task_id: str, operation: Operation, timeout_s: float) -> Outcome:
        shard = shard_of(task_id, self._shards.count)
        deadline = deadline_in(timeout_s)
        [outcome] = await self._shards.operate(shard, [operation], deadline=deadline)
        return outcome

    async def _discard(self, stage: Staging) -> None:
        """Delete an upload that no result can name; garbage collection does the rest later."""
        # Shielded: a client that goes away must not stop the deletion.
        await asyncio.shield(self._background.spawn(self._delete(stage)))

    async def _delete(self, stage: Staging) -> None:
        try:
            await self._files.discard(stage.tenant, stage.id, stage.upload)
        except ArtifactStoreFailed as error:
            log.info(
                "upload left to garbage collection", extra={"task": stage.id, "error": str(error)}
            )

    @contextmanager
    def _released(self, stage: Staging, timeout_s: float) -> Iterator[None]:
        """Give the announced size back to the tenant's budget if nothing is stored."""
        try:
            yield
        except BaseException:
            self._background.spawn(self._release(replace(stage, size=0), timeout_s))
            raise

    async def _release(self, stage: Staging, timeout_s: float) -> None:
        # If this fails, the size counts until the task ends.
        with suppress(CodeqError):
            await self._held(stage, timeout_s)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Remember whether the last use of the store failed."""
        try:
            yield
        except ArtifactStoreFailed as error:
            if not self._doubted:
                log.warning("artifacts cannot be stored", extra={"error": str(error)})
            self._doubted = True
            raise
        self._doubted = False


def submit_of(
    tenant: str, worker: str, item: NewResult, artifacts: tuple[Artifact, ...], *, shards: int
) -> Submit | Finish:
    """Return the operation for a result whose artifacts are all stored."""
    submit = Submit(
        request=new_request(),
        id=item.task_id,
        tenant=tenant,
        worker=worker,
        status=item.status,
        body=item.body,
        error=item.error,
        artifacts=artifacts,
        token=item.token,
        uploads=links.uploads(artifacts, item.task_id) if artifacts else (),
    )
    if not item.next:
        return submit
    return Finish(
        submit=submit,
        next=item.next,
        digest=item.next_digest,
        shards=shards,
        groups=item.next_groups,
    )


def _digest(files: list[NewFile]) -> str:
    facts = msgspec.json.encode([(each.name, each.content_type, each.digest) for each in files])
    return blake2b(facts, digest_size=links.DIGEST_CHARS // 2).hexdigest()


def _says_the_same(stored: Result, worker: str, item: NewResult) -> bool:
    """Return whether the stored result equals this one, with files of an earlier upload."""
    if (stored.worker, stored.status, stored.body, stored.error, stored.next_digest) != (
        worker,
        item.status,
        item.body,
        item.error,
        item.next_digest,
    ) or len(stored.artifacts) != len(item.artifacts):
        return False
    digest = _digest([each for each in item.artifacts if isinstance(each, NewFile)])
    for kept, given in zip(stored.artifacts, item.artifacts, strict=True):
        if isinstance(given, Artifact):
            if kept != given:
                return False
            continue
        upload, name = links.target(kept.url, item.task_id) or ("", "")
        if (kept.name, name) != (given.name, given.name) or not upload.startswith(digest):
            return False
    return True
