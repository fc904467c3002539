"""Support: what the commands of `manage.py` share."""

from __future__ import annotations

import logging

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import CommandError

from codeq_cluster.integrations.django.backend import CodeqBackend
from codeq_cluster.integrations.django.framework import task_backends


def backend_of(alias: str) -> CodeqBackend:
    """Return the backend that `--backend` names.

    Raises:
        CommandError: There is none, or it is another one.
    """
    try:
        backend = task_backends[alias]
    except ImproperlyConfigured as error:
        raise CommandError(f"--backend {alias}: {error}") from error
    if not isinstance(backend, CodeqBackend):
        raise CommandError(f"TASKS[{alias!r}] is no CodeqBackend; name one by --backend")
    return backend


def log_to_stderr(verbosity: int) -> None:
    """Let people see what a command does, unless the project's settings say where it goes."""
    log = logging.getLogger("codeq_cluster")
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
        log.setLevel(logging.INFO if verbosity else logging.WARNING)
