"""Rows: what an outbox keeps of a task until it is one, whichever database holds the rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Protocol
from uuid import uuid4

from msgspec import Raw, Struct
from msgspec.json import decode, encode

from codeq_cluster.client import Codec, MsgspecCodec, NewTask

KEY_CHARS: Final = 32
REFUSAL_CHARS_MAX: Final = 1000

LATE_S: Final = 60.0  # Twice the longest pause of a relay: older rows say that none gets through.


class _Named(Struct):
    group: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A committed row.

    Attributes:
        key: Random, so no later row has it; the number of a deleted row may be given out again.
        task: All but the payload, as JSON; or, as `{"group": NAME}`, the group that it begins.
        payload: JSON text; with a group, that of its only task as a request has it.
    """

    key: str
    task: str
    payload: bytes

    @property
    def group(self) -> dict[str, object] | None:
        """The group that it begins, as a request has it; None for a task by itself.

        Raises:
            msgspec.DecodeError: Something else wrote the row.
        """
        name = decode(self.task, type=_Named).group
        return {"id": name, "tasks": [Raw(self.payload)], "seal": True} if name else None

    @property
    def new_task(self) -> NewTask:
        """The task that it says; the same row says the same one with the same idempotency key.

        Raises:
            msgspec.DecodeError: Something else wrote the row.
        """
        return replace(decode(self.task, type=NewTask), payload=Raw(self.payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the outbox holds.

    Attributes:
        waiting: Committed rows that are not tasks yet.
        oldest_seconds: The age of the oldest of them; 0 if there is none.
        refused: Rows that the broker refuses to make tasks, kept until they may wait again.
        refusal: Why, for the first of them; empty if there is none.
    """

    waiting: int
    oldest_seconds: float
    refused: int
    refusal: str

    def late(self, after_s: float = LATE_S) -> bool:
        """Return whether no relay gets through."""
        return self.oldest_seconds > after_s

    def well(self, after_s: float = LATE_S) -> bool:
        """Return whether nobody has to act."""
        return not self.late(after_s) and not self.refused

    def lines(self, after_s: float = LATE_S) -> Iterator[str]:
        """Yield what people read of it."""
        yield f"{self.waiting} rows wait, the oldest for {self.oldest_seconds:.0f} s"
        if self.late(after_s):
            yield "no relay gets through: run one, and read its log for the reason"
        if self.refused:
            yield f"{self.refused} rows are refused, the first because: {self.refusal}"
            yield "mend the cause, then run retry"


class Rows(Protocol):
    """The outbox of a database, for a relay; any number of relays may use it at once."""

    @property
    def passing(self) -> tuple[type[Exception], ...]:
        """What its methods raise while the database is away; the rows wait."""

    def oldest(self, *, count_max: int, but: Collection[str] = ()) -> Sequence[Row]:
        """Return the first rows that wait, but for some keys, in their order."""

    def settle(self, *, posted: Sequence[str], refused: Mapping[str, str]) -> None:
        """Delete the rows that are tasks now, by key, and set aside those that cannot be."""


def named_row(name: str, body: Mapping[str, object], *, key: str) -> Row:
    """Return a new row for a task that is found by a name: the only one of a sealed group.

    Args:
        name: Of the group; one that nobody else has.
        body: The task as a request has it, without a key of any kind.
    """
    return Row(key, encode(_Named(name)).decode(), encode(body))


def row_of(task: NewTask, *, codec: Codec | None, now: datetime) -> tuple[Row, str]:
    """Return a new row for a task, and the task's idempotency key. `delay` counts from now.

    Raises:
        ValueError: `run_at` has no time zone, or `idempotency_key` is empty.
    """
    if task.run_at is not None and task.run_at.tzinfo is None:
        raise ValueError(f"run_at={task.run_at}: must be an instant with its time zone")
    if task.idempotency_key == "":
        raise ValueError("idempotency_key: must be a text that is not empty, or None")
    row_key = uuid4().hex
    payload = (codec or MsgspecCodec()).encode(task.payload)
    run_at = task.run_at
    if run_at is None and task.delay is not None:
        # The broker may be away for longer than the delay, which must not begin only then.
        delay = task.delay
        run_at = now + (delay if isinstance(delay, timedelta) else timedelta(seconds=delay))
    key = task.idempotency_key or f"outbox-{row_key}"
    kept = replace(task, payload=None, delay=None, run_at=run_at, idempotency_key=key)
    return Row(row_key, encode(kept).decode(), payload), key
