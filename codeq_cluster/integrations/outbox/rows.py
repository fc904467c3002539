"""Rows: tasks that wait in a table of the application's own database, by SQLAlchemy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Integer,
    MetaData,
    Table,
    Text,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.orm import Session

from codeq_cluster.client import NewTask, encoded, seconds_of

TABLE: Final = "codeq_outbox"
_REFUSAL_CHARS_MAX = 1000


@dataclass(frozen=True, slots=True)
class Backlog:
    """What an outbox holds.

    Attributes:
        waiting: Rows whose tasks are not created yet.
        oldest_s: The age of the oldest of them, seconds; 0 without one.
        refused: Rows that the broker does not take; they stay until a person decides.
    """

    waiting: int
    oldest_s: float
    refused: int


class Outbox:
    """A table whose rows become tasks.

    Attributes:
        table: For the application's migrations; `table.create(engine)` makes it.
    """

    def __init__(self, metadata: MetaData | None = None, *, name: str = TABLE) -> None:
        """Describe the table; nothing is sent to the database.

        Args:
            metadata: The application's, so that its migrations see the table.
            name: Of the table.
        """
        # SQLite gives numbers by itself to an INTEGER alone.
        number = BigInteger().with_variant(Integer, "sqlite")
        self.table = Table(
            name,
            metadata or MetaData(),
            Column("id", number, primary_key=True, autoincrement=True),
            Column("body", Text, nullable=False),
            Column("created_at", DateTime(timezone=True), nullable=False),
            Column("refusal", Text, nullable=True),
        )

    def enqueue(self, session: Session | Connection, task: NewTask) -> None:
        """Create a task once the transaction of this session commits; never if it rolls back.

        A delay counts from now, and not from when a relay creates the task. Of an `AsyncSession`:
        `await session.run_sync(outbox.enqueue, task)`.

        Raises:
            TypeError: The payload is not for JSON.
            ValueError: A field of the task is wrong.
        """
        now = datetime.now(UTC)
        if task.delay is not None and task.run_at is None:
            task = replace(task, delay=None, run_at=now + timedelta(seconds=seconds_of(task.delay)))
        # One with a unique key is given none by itself, and must be created once all the same.
        task = replace(task, idempotency_key=task.idempotency_key or uuid4().hex)
        row = {"body": encoded(task).decode(), "created_at": now}
        session.execute(insert(self.table).values(row))

    def backlog(self, session: Session | Connection) -> Backlog:
        """Return how much waits, for how long, and how much is refused."""
        rows, waits = self.table.c, self.table.c.refusal.is_(None)
        waiting, oldest = session.execute(
            select(func.count(), func.min(rows.created_at)).where(waits)
        ).one()
        refused = session.execute(select(func.count()).select_from(self.table).where(~waits))
        oldest_s = 0.0 if oldest is None else (datetime.now(UTC) - _utc(oldest)).total_seconds()
        return Backlog(waiting, max(0.0, oldest_s), refused.scalar_one())

    def refused(self, session: Session | Connection, *, limit: int = 100) -> Sequence[str]:
        """Return the broker's reasons, of the oldest rows that it refuses."""
        rows = self.table.c
        asked = select(rows.refusal).where(rows.refusal.is_not(None)).order_by(rows.id).limit(limit)
        return session.execute(asked).scalars().all()

    def retry(self, session: Session | Connection) -> int:
        """Let refused rows wait again, and return how many there are."""
        count = self.backlog(session).refused
        again = update(self.table).where(self.table.c.refusal.is_not(None)).values(refusal=None)
        session.execute(again)
        return count

    def first(self, session: Session | Connection, count: int) -> list[tuple[int, str]]:
        """Return the oldest rows that wait, as (number, request's body)."""
        rows = self.table.c
        asked = select(rows.id, rows.body).where(rows.refusal.is_(None)).order_by(rows.id)
        return [(row.id, row.body) for row in session.execute(asked.limit(count))]

    def settle(
        self,
        session: Session | Connection,
        created: Sequence[int],
        refusals: Sequence[tuple[int, str]],
    ) -> None:
        """Delete rows whose tasks are created, and note why others are refused."""
        if created:
            session.execute(delete(self.table).where(self.table.c.id.in_(created)))
        for number, refusal in refusals:
            of_row = update(self.table).where(self.table.c.id == number)
            session.execute(of_row.values(refusal=refusal[:_REFUSAL_CHARS_MAX]))


def _utc(instant: datetime) -> datetime:
    """Return an instant of the database; SQLite keeps no zone."""
    return instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
