"""Models: the rows in the project's database that become tasks."""

from __future__ import annotations

from django.db import models

from codeq_cluster.integrations.rows import KEY_CHARS


class OutboxRow(models.Model):
    """A task that commits with the project's own rows; see `outbox.enqueue`.

    Attributes:
        id: The order of rows.
        key: Random. Rows are known by it, because a database may give a number out again.
        task: As `rows.Row` has it, and so the payload.
        refusal: Why the broker does not take it; None while it waits.
    """

    id = models.BigAutoField(primary_key=True)
    key = models.CharField(max_length=KEY_CHARS, unique=True)
    task = models.TextField()
    payload = models.BinaryField()
    enqueued_at = models.DateTimeField()
    refusal = models.TextField(null=True)  # noqa: DJ001 - an empty text would be a reason

    def __str__(self) -> str:
        return str(self.key)
