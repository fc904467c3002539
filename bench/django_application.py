"""Django application: one task that notes its run, on each backend of `bench.frameworks`.

`python -m bench.django_application worker` is the worker of the backend that `BROKER_URL` names.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connection

from bench import sends


def _project(url: str) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the settings of a project, and the command of its worker."""
    if url.startswith("redis"):
        found = {
            "INSTALLED_APPS": ["django_tasks", "django_rq"],
            "TASKS": {"default": {"BACKEND": "django_tasks_rq.RQBackend"}},
            "RQ_QUEUES": {"default": {"URL": url}},
        }
        return found, ("rqworker", "--job-class", "django_tasks_rq.Job")
    if url.startswith("postgresql"):
        server = urlsplit(url)
        database = {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": server.hostname,
            "PORT": server.port,
            "USER": server.username,
            "NAME": server.path[1:],
            # With Django's default its worker would connect again for each task.
            "CONN_MAX_AGE": None,
        }
        found = {
            "INSTALLED_APPS": ["django_tasks", "django_tasks_db"],
            "TASKS": {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
            "DATABASES": {"default": database},
        }
        return found, ("db_worker",)
    backend = "codeq_cluster.integrations.django.backend.CodeqBackend"
    found = {
        "INSTALLED_APPS": ["django_tasks", "codeq_cluster.integrations.django"],
        "TASKS": {"default": {"BACKEND": backend, "OPTIONS": {"url": url}}},
    }
    # The others run one task at a time in a process, and have no such option.
    return found, ("codeq_worker", "--concurrency", "8")


_settings, _worker = _project(os.environ["BROKER_URL"])
settings.configure(**_settings)
django.setup()

from django_tasks import task  # noqa: E402 - it reads the settings


@task
def note(journal: str, payload: str) -> None:
    """Note it."""
    sends.note(journal, payload)


if __name__ == "__main__":
    if sys.argv[1:] == ["worker"]:
        call_command(*_worker, verbosity=0)
    else:
        if connection.vendor == "postgresql" and not connection.introspection.table_names():
            call_command("migrate", verbosity=0)
        for given in sends.timed():
            note.enqueue(*given)
        connection.close()
