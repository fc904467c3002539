"""Settings; the environment says where the cluster and the database are."""

from __future__ import annotations

import os

SECRET_KEY = "of a project that serves nobody"
INSTALLED_APPS = ["django_tasks", "codeq_cluster.integrations.django"]
USE_TZ = True
LOGGING_CONFIG = None
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["PROJECT_DATABASE"]}
}
BACKEND = "codeq_cluster.integrations.django.backend.CodeqBackend"
URL = os.environ.get("CODEQ_URL", "codeq://token@127.0.0.1:1")
TASKS = {
    "default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": {"url": URL}},
    "outbox": {"BACKEND": BACKEND, "OPTIONS": {"url": URL, "outbox": "default"}},
}
