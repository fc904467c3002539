"""The table of the outbox."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create it."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar = [
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("key", models.CharField(max_length=32, unique=True)),
                ("task", models.TextField()),
                ("payload", models.BinaryField()),
                ("enqueued_at", models.DateTimeField()),
                ("refusal", models.TextField(null=True)),
            ],
        ),
    ]
