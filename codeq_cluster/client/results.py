"""Results: how a task ended, for those who waited for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import Raw

from codeq_cluster.client.codecs import Codec
from codeq_cluster.client.records import Artifact, ResultRecord, Status, TaskRecord
from codeq_cluster.client.refusals import Refused
from codeq_cluster.errors import CodeqError

T = TypeVar("T")


class NotFinished(Refused, TimeoutError):
    """The task had not ended when the wait was over; the task goes on."""

    def __init__(self, task_id: str, waited_s: float) -> None:
        super().__init__(
            f"task {task_id} has not ended after {waited_s:g} s",
            status=404,
            code="result-not-found",
            retryable=True,
        )


class TaskFailed(CodeqError):
    """The value was read of a task that failed, was cancelled or died.

    Attributes:
        result: How it ended.
    """

    def __init__(self, result: Result) -> None:
        super().__init__(f"task {result.task.id} failed: {result.error}")
        self.result = result


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """How a task ended.

    Attributes:
        task: The task after its end.
        record: The result as the broker keeps it.
    """

    task: TaskRecord
    record: ResultRecord
    _codec: Codec = field(repr=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether the task completed; otherwise it failed, was cancelled or died."""
        return self.record.status is Status.COMPLETED

    @property
    def error(self) -> str:
        """Why the task failed or died; empty when it completed."""
        return self.record.error

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """The artifacts that the worker stored with the result."""
        return self.record.artifacts

    @property
    def text(self) -> bytes:
        """The result's JSON exactly as the worker wrote it; empty if there is none."""
        return bytes(self.record.result) if isinstance(self.record.result, Raw) else b""

    @property
    def value(self) -> Any:
        """The result as plain values: dicts, lists, strings and numbers.

        Raises:
            TaskFailed: The task did not complete.
        """
        return self.read(Any)

    def read(self, wanted: type[T]) -> T:
        """Return the result as a type.

        Raises:
            TaskFailed: The task did not complete.
            msgspec.ValidationError: The result has another form; other codecs raise their own.
        """
        if not self.ok:
            raise TaskFailed(self)
        return self._codec.decoder(wanted)(self.text)
