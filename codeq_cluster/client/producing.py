"""Producing: tasks to be created, and the outcome of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil
from typing import Final, TypeAlias
from uuid import uuid4

from msgspec import Raw, Struct
from msgspec.json import encode

from codeq_cluster.client.codecs import Codec

Duration: TypeAlias = timedelta | float  # A number counts seconds.

BATCH_MAX: Final = 100  # Tasks per request; the broker's default bound.
_BATCH_BYTES_MAX: Final = (
    768 * 2**10
)  # The broker takes 1 MiB by default; the rest leaves room for the frame.


@dataclass(frozen=True, slots=True)
class NewTask:
    """A task to be created.

    Attributes:
        payload: Any value but None that the client's codec knows; `msgspec.Raw` is JSON as it is.
        priority: 0 to 9; tasks with a greater one go first.
        max_attempts: Deliveries before it is a dead letter; None for the queue's.
        delay: How long to wait before the first delivery; a number counts seconds.
        run_at: The earliest instant of delivery, with its time zone; overrides `delay`.
        ttl: A task not delivered within this time is a dead letter.
        webhook: The URL that is called with the result.
        idempotency_key: Creates with the same key make one task. None draws a fresh key, so that
            a repeated request makes no second task.
    """

    command: str
    payload: object
    priority: int = 0
    max_attempts: int | None = None
    delay: Duration | None = None
    run_at: datetime | None = None
    ttl: Duration | None = None
    webhook: str | None = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class NotCreated:
    """One task of several that was not created, or may not have been.

    Attributes:
        task: The task as sent, with its key: creating it again makes no second one.
        error: Why it was not created.
        code: The stable code of the error; `outcome-unknown` if it may have been created.
    """

    task: NewTask
    error: str
    code: str


class _Body(Struct, rename="camel", omit_defaults=True):
    command: str
    payload: Raw
    idempotency_key: str
    priority: int = 0
    max_attempts: int | None = None
    delay_seconds: int | None = None
    run_at: datetime | None = None
    ttl_seconds: int | None = None
    webhook: str | None = None


def body_of(task: NewTask, codec: Codec) -> bytes:
    """Return a task as the body of a request.

    Raises:
        ValueError: The task has no key yet, or `run_at` has no time zone.
    """
    if not task.idempotency_key:
        raise ValueError("idempotency_key: allowed is a text that is not empty, or None")
    if task.run_at is not None and task.run_at.tzinfo is None:
        raise ValueError(f"run_at={task.run_at}: allowed is an instant with its time zone")
    return encode(
        _Body(
            command=task.command,
            payload=Raw(codec.encode(task.payload)),
            idempotency_key=task.idempotency_key,
            priority=task.priority,
            max_attempts=task.max_attempts,
            delay_seconds=None if task.delay is None else whole_seconds(task.delay),
            run_at=task.run_at,
            ttl_seconds=None if task.ttl is None else whole_seconds(task.ttl),
            webhook=task.webhook,
        )
    )


def fresh_key() -> str:
    """Return a random, unique idempotency key."""
    return uuid4().hex


def whole_seconds(duration: Duration) -> int:
    """Return a duration in the API's whole seconds, rounded up."""
    return ceil(duration.total_seconds() if isinstance(duration, timedelta) else duration)


def in_chunks(bodies: Iterable[bytes], *, count_max: int) -> Iterator[list[bytes]]:
    """Yield bodies in order, in batches as large as one request can carry."""
    chunk: list[bytes] = []
    size = 0
    for body in bodies:
        if chunk and (len(chunk) >= count_max or size + len(body) > _BATCH_BYTES_MAX):
            yield chunk
            chunk, size = [], 0
        chunk.append(body)
        size += len(body)
    if chunk:
        yield chunk
