"""Apps: what `INSTALLED_APPS` finds here."""

from __future__ import annotations

from django.apps import AppConfig


class CodeqConfig(AppConfig):
    """The application `codeq_cluster.integrations.django`."""

    name = "codeq_cluster.integrations.django"
    label = "codeq_cluster"
    verbose_name = "codeq-cluster"
    default_auto_field = "django.db.models.BigAutoField"
