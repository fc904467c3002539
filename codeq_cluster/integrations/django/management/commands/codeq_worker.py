"""The command `manage.py codeq_worker`: runs the tasks of a backend until it is stopped."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from codeq_cluster.client import Worker
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.django.execution import handler_for
from codeq_cluster.integrations.django.management.support import backend_of, log_to_stderr


class Command(BaseCommand):
    """A worker of the public client, whose handler calls Django tasks."""

    help = "Run tasks until SIGTERM or Ctrl-C; a second one gives the running ones back at once."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--backend", default="default", help="alias in TASKS")
        add("--queue", action="append", help="one of its QUEUES, repeatable; all if absent")
        add("--concurrency", type=int, default=1, help="tasks at once, each in a thread")
        add("--name", default="", help="what people see, before the host and the process")
        add("--lease-seconds", type=int, default=60, help="after that a dead worker is noticed")
        add("--grace-seconds", type=float, default=30.0, help="for running tasks after a stop")
        add("--health-port", type=int, help="port of /healthz on 127.0.0.1")
        add("--tasks-max", type=int, help="end after so many tasks")

    def handle(self, *_: Any, **options: Any) -> None:
        """Work.

        Raises:
            CommandError: There is nothing to work on, or the broker lets this worker not go on.
        """
        log_to_stderr(options["verbosity"])
        backend = backend_of(options["backend"])
        queues = options["queue"] or sorted(backend.queues)
        if not queues:
            raise CommandError("QUEUES is empty, so any name is valid: name some by --queue")
        if unknown := set(queues) - backend.queues if backend.queues else ():
            raise CommandError(f"--queue {min(unknown)}: not in QUEUES of the backend")
        target = backend.target
        try:
            worker = Worker(
                target.urls,
                token=target.token,
                ca_file=target.ca_file,
                name=options["name"],
                concurrency=options["concurrency"],
                lease_s=options["lease_seconds"],
                grace_s=options["grace_seconds"],
                health_port=options["health_port"],
            )
            worker.task(*queues)(handler_for(backend))
            worker.run(tasks_max=options["tasks_max"])
        except (CodeqError, OSError) as error:
            raise CommandError(str(error)) from error
