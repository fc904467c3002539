"""The command `manage.py codeq_relay`: makes committed rows of the outbox tasks."""

from __future__ import annotations

import signal
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from codeq_cluster.client import Client, SyncClient
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.django.management.support import backend_of, log_to_stderr
from codeq_cluster.integrations.django.outbox import ModelRows, retry, status
from codeq_cluster.integrations.relay import Relay


class Command(BaseCommand):
    """The relay of every outbox, over the rows of Django's ORM."""

    help = "Make committed rows tasks, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--backend", default="default", help="alias in TASKS of the cluster")
        parser.add_argument(
            "--database", default=DEFAULT_DB_ALIAS, choices=tuple(connections), help="its alias"
        )
        does = parser.add_mutually_exclusive_group()
        does.add_argument("--once", action="store_true", help="end when no row waits")
        does.add_argument(
            "--status", action="store_true", help="show what waits; 1 if rows are refused or late"
        )
        does.add_argument("--retry", action="store_true", help="let refused rows wait again")

    def handle(self, *_: Any, **options: Any) -> None:
        """Relay, or do what the options say instead.

        Raises:
            CommandError: The broker does not take the rows for now, or the settings are wrong.
            SystemExit: Somebody has to act on the status.
        """
        database = options["database"]
        if options["retry"]:
            self.stdout.write(f"{retry(database)} rows wait again")
        elif options["status"]:
            found = status(database)
            for line in found.lines():
                self.stdout.write(line)
            if not found.well():
                raise SystemExit(1)
        else:
            log_to_stderr(options["verbosity"])
            self._relay(database, options["backend"], once=options["once"])

    def _relay(self, database: str, alias: str, *, once: bool) -> None:
        target = backend_of(alias).target
        client = Client(
            target.urls, token=target.token, ca_file=target.ca_file, deadline_s=target.deadline_s
        )
        with SyncClient(client) as connection:
            relay = Relay(ModelRows(database), connection)
            if once:
                try:
                    self.stdout.write(f"{relay.drain()}")
                except CodeqError as error:
                    raise CommandError(str(error)) from error
                return
            for number in signal.SIGTERM, signal.SIGINT:
                signal.signal(number, lambda *_: relay.stop())
            relay.run()
