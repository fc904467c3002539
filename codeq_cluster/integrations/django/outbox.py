"""Outbox: tasks that are created if, and only if, a transaction of Django's ORM commits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from django.db import DEFAULT_DB_ALIAS, Error, connections, transaction
from django.db.models import Count, Min
from django.utils import timezone
from msgspec import Raw, Struct
from msgspec.json import decode

from codeq_cluster.client import Codec, NewTask, TaskRecord
from codeq_cluster.client import Status as TaskStatus
from codeq_cluster.integrations.django.messages import aware
from codeq_cluster.integrations.django.models import OutboxRow
from codeq_cluster.integrations.rows import REFUSAL_CHARS_MAX, Row, Status, row_of


def enqueue(task: NewTask, *, using: str = DEFAULT_DB_ALIAS, codec: Codec | None = None) -> str:
    """Write a task into the outbox within the transaction, and return its idempotency key.

    Its commit makes exactly one task, its rollback none. `delay` counts from now.

    Args:
        task: With a payload that the codec can write.
        using: The database, by its alias.
        codec: JSON by msgspec if None.

    Raises:
        ValueError: `run_at` has no time zone, or `idempotency_key` is empty.
    """
    row, key = row_of(task, codec=codec, now=datetime.now(UTC))
    write(row, using=using)
    return key


def write(row: Row, *, using: str) -> None:
    """Write a row within the transaction."""
    OutboxRow.objects.using(using).create(
        key=row.key, task=row.task, payload=row.payload, enqueued_at=timezone.now()
    )


def waiting(key: str, *, using: str) -> TaskRecord | None:
    """Return the task that a row of `CodeqBackend` is to become; None if there is no such row."""
    row = OutboxRow.objects.using(using).filter(key=key).first()
    if row is None:
        return None
    body = decode(bytes(row.payload), type=_Body)
    since = aware(row.enqueued_at)
    assert since is not None
    return TaskRecord(
        id=key,
        command=body.command,
        payload=bytes(body.payload).decode(),
        status=TaskStatus.PENDING,
        last_known_location="PENDING_LIST",
        created_at=since,
        updated_at=since,
        run_at=body.run_at,
    )


class _Body(Struct, rename="camel"):
    command: str
    payload: Raw
    run_at: datetime | None = None


class ModelRows:
    """The rows of one database, for a relay."""

    passing: Final = (Error,)

    def __init__(self, using: str) -> None:
        """Take a database by its alias; each thread that relays has its own connection."""
        self._using = using

    def oldest(self, *, count_max: int, but: Collection[str] = ()) -> list[Row]:
        """Return the first rows that wait, but for some keys."""
        # As before a request: a connection that broke is opened again.
        connections[self._using].close_if_unusable_or_obsolete()
        rows = OutboxRow.objects.using(self._using).filter(refusal=None).order_by("id")
        if but:
            rows = rows.exclude(key__in=but)
        found = rows.values_list("key", "task", "payload")[:count_max]
        return [Row(key, task, bytes(payload)) for key, task, payload in found]

    def settle(self, *, posted: Sequence[str], refused: Mapping[str, str]) -> None:
        """Delete the rows that are tasks now, and set aside those that cannot be."""
        rows = OutboxRow.objects.using(self._using)
        with transaction.atomic(using=self._using):
            if connections[self._using].features.has_select_for_update:
                # Two relays that lock the same rows in two orders would wait for each other.
                mine = rows.filter(key__in=[*posted, *refused]).order_by("id")
                list(mine.select_for_update().values_list("id"))
            if posted:
                rows.filter(key__in=posted).delete()
            for key, refusal in refused.items():
                rows.filter(key=key).update(refusal=refusal[:REFUSAL_CHARS_MAX])


def retry(using: str = DEFAULT_DB_ALIAS) -> int:
    """Let refused rows wait again, in their old places, and return how many."""
    changed: int = OutboxRow.objects.using(using).exclude(refusal=None).update(refusal=None)
    return changed


def status(using: str = DEFAULT_DB_ALIAS) -> Status:
    """Return what the outbox holds."""
    rows = OutboxRow.objects.using(using)
    counted = rows.filter(refusal=None).aggregate(count=Count("id"), since=Min("enqueued_at"))
    refusals = rows.exclude(refusal=None).order_by("id").values_list("refusal", flat=True)
    since = counted["since"]
    age_s = (timezone.now() - since).total_seconds() if since else 0.0
    return Status(
        waiting=counted["count"],
        oldest_seconds=max(0.0, age_s),
        refused=refusals.count(),
        refusal=refusals.first() or "",
    )
