"""Results: what taskiq's functions return and how far they are, kept by the broker."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultBackendError
from taskiq.serializers import JSONSerializer

from codeq_cluster.client import Refused
from codeq_cluster.integrations.link import Link, is_unfit, lasting
from codeq_cluster.integrations.target import DEADLINE_S, target_of
from codeq_cluster.integrations.taskiq.messages import DELIVERY
from codeq_cluster.integrations.values import Values

QUEUE: Final = "taskiq:results"

_TTL_S: Final = 86_400

T = TypeVar("T")


class ResultMissing(ResultBackendError):
    """There is no result of this message."""

    __template__ = "message {task_id} has no result: not yet, or its retention is over"
    task_id: str


class CodeqResultBackend(AsyncResultBackend[T]):
    """A store of results, for `with_result_backend`."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        deadline_seconds: float = DEADLINE_S,
        prefix: str = "taskiq",
        keep_results: bool = True,
        serializer: TaskiqSerializer | None = None,
    ) -> None:
        """Prepare it; nothing is sent yet.

        Args:
            url: As a broker's.
            token: In place of the one in the URL.
            deadline_seconds: How long one request is repeated.
            prefix: Applications with different ones do not see each other's results.
            keep_results: False to forget a result once it is read.
            serializer: In place of taskiq's for JSON.

        Raises:
            ConfigInvalid: It is no such URL.
        """
        self._target = target_of(url, token=token, deadline_s=deadline_seconds)
        self._prefix = prefix
        self._keeps = keep_results
        self._serializer = serializer or JSONSerializer()

    async def set_result(self, task_id: str, result: TaskiqResult[T]) -> None:
        """Write a result; one that cannot be kept is an exception to those who ask for it."""
        labels = {name: each for name, each in result.labels.items() if name != DELIVERY}
        result = result.model_copy(update={"labels": labels})
        try:
            encoded = self._serializer.dumpb(result.model_dump(mode="json"))
        except (ValueError, TypeError, RecursionError) as error:
            await self._cannot(task_id, result, f"the result cannot be serialized: {error}")
            return
        try:
            await self._set(self._name(task_id), encoded)
        except Refused as error:
            if not is_unfit(error):
                raise
            await self._cannot(task_id, result, f"the result has {len(encoded)} bytes: {error}")

    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether there is a result."""
        return await self._get(self._name(task_id)) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[T]:
        """Return a result.

        Raises:
            ResultMissing: There is none.
        """
        name = self._name(task_id)
        found = await self._get(name)
        if found is None:
            raise ResultMissing(task_id=task_id)
        if not self._keeps:
            link = self._link
            await link.answer(Values(link.client, queue=QUEUE).delete(name))
        result: TaskiqResult[T] = TaskiqResult[Any].model_validate(found)
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Write how far a function is; each write is kept as long as a result."""
        encoded = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._set(self._name(task_id, "progress"), encoded)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return how far a function is, or None if it has not said."""
        found = await self._get(self._name(task_id, "progress"))
        return None if found is None else TaskProgress[Any].model_validate(found)

    async def _cannot(self, task_id: str, result: TaskiqResult[T], why: str) -> None:
        """Write an exception in place of a result."""
        error = ValueError(why)
        instead = TaskiqResult[Any](
            is_err=True, return_value=None, execution_time=result.execution_time, error=error
        )
        encoded = self._serializer.dumpb(instead.model_dump(mode="json"))
        await self._set(self._name(task_id), encoded)

    def _name(self, task_id: str, kind: str = "result") -> str:
        return f"{self._prefix}-{kind}-{task_id}"

    @property
    def _link(self) -> Link:
        return lasting(self._target)

    async def _set(self, name: str, encoded: bytes) -> None:
        link = self._link
        try:
            text: str | bytes = encoded.decode()
        except UnicodeDecodeError:
            text = encoded
        await link.answer(Values(link.client, queue=QUEUE).set(name, text, ttl_s=_TTL_S))

    async def _get(self, name: str) -> Any:
        link = self._link
        found = await link.answer(Values(link.client, queue=QUEUE).get(name))
        if found is None:
            return None
        return self._serializer.loadb(found.encode() if isinstance(found, str) else found)
