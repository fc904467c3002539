"""Table: the rows in the application's database that become tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

from msgspec import Raw
from msgspec.json import decode, encode
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

from codeq_cluster.client import Codec, MsgspecCodec, NewTask

METADATA: Final = MetaData()
_OUTBOX: Final = Table(
    "codeq_outbox",
    METADATA,
    # The order of rows. SQLite would give the greatest id out again once its row is deleted.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("key", String(32), nullable=False, unique=True),
    Column("task", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("enqueued_at", DateTime(timezone=True), nullable=False),
    Column("refusal", Text),
    sqlite_autoincrement=True,
)
_ROW = _OUTBOX.c
_REFUSAL_CHARS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What the outbox holds.

    Attributes:
        waiting: Committed rows that are not tasks yet.
        oldest_seconds: The age of the oldest of them; 0 if there is none.
        refused: Rows that the broker refuses to make tasks, kept until `retry`.
        refusal: Why, for the first of them; empty if there is none.
    """

    waiting: int
    oldest_seconds: float
    refused: int
    refusal: str


def enqueue(session: Session | Connection, task: NewTask, *, codec: Codec | None = None) -> str:
    """Write a task into the outbox within the caller's transaction, and return its idempotency key.

    Its commit makes exactly one task, its rollback none. `delay` counts from now.

    Raises:
        ValueError: `run_at` has no time zone, or `idempotency_key` is empty.
    """
    if task.run_at is not None and task.run_at.tzinfo is None:
        raise ValueError(f"run_at={task.run_at}: must be an instant with its time zone")
    if task.idempotency_key == "":
        raise ValueError("idempotency_key: must be a text that is not empty, or None")
    now = datetime.now(UTC)
    row_key = uuid4().hex
    payload = (codec or MsgspecCodec()).encode(task.payload)
    run_at = task.run_at
    if run_at is None and task.delay is not None:
        # The broker may be away for longer than the delay, which must not begin only then.
        delay = task.delay
        run_at = now + (delay if isinstance(delay, timedelta) else timedelta(seconds=delay))
    key = task.idempotency_key or f"outbox-{row_key}"
    kept = replace(task, payload=None, delay=None, run_at=run_at, idempotency_key=key)
    values = {"key": row_key, "task": encode(kept).decode(), "payload": payload, "enqueued_at": now}
    session.execute(insert(_OUTBOX).values(values))
    return key


def oldest(engine: Engine, *, count_max: int) -> list[Row[tuple[str, str, bytes]]]:
    """Return the first rows that wait: key, task and payload."""
    asked = select(_ROW.key, _ROW.task, _ROW.payload).where(_ROW.refusal.is_(None))
    with engine.connect() as connection:
        return list(connection.execute(asked.order_by(_ROW.id).limit(count_max)))


def task_of(row: Row[tuple[str, str, bytes]]) -> NewTask:
    """Return the task that a row says; the same row says the same one with the same key.

    Raises:
        msgspec.DecodeError: Something else wrote the row.
    """
    return replace(decode(row.task, type=NewTask), payload=Raw(row.payload))


def settle(engine: Engine, *, posted: list[str], refused: dict[str, str]) -> None:
    """Delete the rows that are tasks now, and set aside those that cannot be."""
    # By key, which is random: an id could be that of a newer row.
    mine = select(_ROW.id).where(_ROW.key.in_([*posted, *refused])).order_by(_ROW.id)
    with engine.begin() as connection:
        # Two relays that lock the same rows in two orders would wait for each other.
        connection.execute(mine.with_for_update())
        if posted:
            connection.execute(delete(_OUTBOX).where(_ROW.key.in_(posted)))
        for key, refusal in refused.items():
            changed = update(_OUTBOX).where(_ROW.key == key)
            connection.execute(changed.values(refusal=refusal[:_REFUSAL_CHARS_MAX]))


def retry(engine: Engine) -> int:
    """Let refused rows wait again, in their old places, and return how many."""
    with engine.begin() as connection:
        changed = update(_OUTBOX).where(_ROW.refusal.is_not(None)).values(refusal=None)
        return connection.execute(changed).rowcount


def status(engine: Engine) -> Status:
    """Return what the outbox holds."""
    waits = _ROW.refusal.is_(None)
    asked = select(
        func.count().filter(waits),
        func.min(_ROW.enqueued_at).filter(waits),
        func.count(_ROW.refusal),
    ).select_from(_OUTBOX)
    first = select(_ROW.refusal).where(~waits).order_by(_ROW.id).limit(1)
    with engine.connect() as connection:
        waiting, since, refused = connection.execute(asked).one()
        refusal = connection.execute(first).scalar() or ""
    age_s = 0.0
    if since is not None:
        # SQLite keeps no time zone; all instants here are UTC.
        since = since if since.tzinfo else since.replace(tzinfo=UTC)
        age_s = max(0.0, (datetime.now(UTC) - since).total_seconds())
    return Status(waiting=waiting, oldest_seconds=age_s, refused=refused, refusal=refusal)
