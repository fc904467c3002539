"""Table: the rows in the application's database that become tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from codeq_cluster.client import Codec, NewTask
from codeq_cluster.integrations.rows import KEY_CHARS, REFUSAL_CHARS_MAX, Row, Status, row_of

METADATA: Final = MetaData()
_OUTBOX: Final = Table(
    "codeq_outbox",
    METADATA,
    # The order of rows. SQLite would give the greatest id out again once its row is deleted.
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("key", String(KEY_CHARS), nullable=False, unique=True),
    Column("task", Text, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Column("enqueued_at", DateTime(timezone=True), nullable=False),
    Column("refusal", Text),
    sqlite_autoincrement=True,
)
_ROW = _OUTBOX.c


def enqueue(session: Session | Connection, task: NewTask, *, codec: Codec | None = None) -> str:
    """Write a task into the outbox within the caller's transaction, and return its idempotency key.

    Its commit makes exactly one task, its rollback none. `delay` counts from now.

    Raises:
        ValueError: `run_at` has no time zone, or `idempotency_key` is empty.
    """
    now = datetime.now(UTC)
    row, key = row_of(task, codec=codec, now=now)
    values = {"key": row.key, "task": row.task, "payload": row.payload, "enqueued_at": now}
    session.execute(insert(_OUTBOX).values(values))
    return key


class TableRows:
    """The rows of one database, for a relay."""

    passing = (SQLAlchemyError,)

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def oldest(self, *, count_max: int, but: Collection[str] = ()) -> list[Row]:
        """Return the first rows that wait, but for some keys."""
        asked = select(_ROW.key, _ROW.task, _ROW.payload).where(_ROW.refusal.is_(None))
        if but:
            asked = asked.where(_ROW.key.not_in(but))
        with self._engine.connect() as connection:
            found = connection.execute(asked.order_by(_ROW.id).limit(count_max))
            return [Row(*each) for each in found]

    def settle(self, *, posted: Sequence[str], refused: Mapping[str, str]) -> None:
        """Delete the rows that are tasks now, and set aside those that cannot be."""
        mine = select(_ROW.id).where(_ROW.key.in_([*posted, *refused])).order_by(_ROW.id)
        with self._engine.begin() as connection:
            # Two relays that lock the same rows in two orders would wait for each other.
            connection.execute(mine.with_for_update())
            if posted:
                connection.execute(delete(_OUTBOX).where(_ROW.key.in_(posted)))
            for key, refusal in refused.items():
                changed = update(_OUTBOX).where(_ROW.key == key)
                connection.execute(changed.values(refusal=refusal[:REFUSAL_CHARS_MAX]))


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
