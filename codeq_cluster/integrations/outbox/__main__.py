"""The outbox's command: `python -m codeq_cluster.integrations.outbox relay|status|retry|create`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from msgspec.json import encode
from sqlalchemy import Engine, create_engine
from sqlalchemy.exc import SQLAlchemyError

from codeq_cluster.client import Client, SyncClient
from codeq_cluster.errors import CodeqError
from codeq_cluster.integrations.outbox.relay import Relay
from codeq_cluster.integrations.outbox.table import METADATA, retry, status
from codeq_cluster.integrations.rows import LATE_S


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status: 2 for what keeps it from its work."""
    asked = _parser().parse_args(arguments)
    if not asked.database:
        print("name the database: --database URL, or CODEQ_OUTBOX_DATABASE", file=sys.stderr)
        return 2
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    try:
        engine = create_engine(asked.database)
        try:
            return int(asked.does(engine, asked))
        finally:
            engine.dispose()
    except (CodeqError, SQLAlchemyError, ImportError) as error:  # ImportError: of a driver.
        print(error, file=sys.stderr)
        return 2


def _relay(engine: Engine, asked: argparse.Namespace) -> int:
    if not asked.token:
        print("name a producer's token: --token, or CODEQ_TOKEN", file=sys.stderr)
        return 2
    connection = Client(asked.url.split(","), token=asked.token, ca_file=asked.ca)
    with SyncClient(connection) as client:
        relay = Relay(engine, client)
        if asked.once:
            print(relay.drain())
            return 0
        for number in signal.SIGTERM, signal.SIGINT:
            signal.signal(number, lambda *_: relay.stop())
        relay.run()
    return 0


def _status(engine: Engine, asked: argparse.Namespace) -> int:
    found = status(engine)
    print(encode(found).decode() if asked.json else "\n".join(found.lines(asked.late_after)))
    return int(not found.well(asked.late_after))


def _retry(engine: Engine, _: argparse.Namespace) -> int:
    print(f"{retry(engine)} rows wait again")
    return 0


def _create(engine: Engine, _: argparse.Namespace) -> int:
    METADATA.create_all(engine)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m codeq_cluster.integrations.outbox",
        description="Rows of an application's outbox, and the tasks they become.",
    )
    commands = parser.add_subparsers(required=True)

    def command(name: str, does: Any, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(does=does)
        added.add_argument(
            "--database",
            default=os.environ.get("CODEQ_OUTBOX_DATABASE"),
            help="SQLAlchemy's URL of the database; CODEQ_OUTBOX_DATABASE",
        )
        return added

    relays = command("relay", _relay, "make committed rows tasks, until SIGTERM")
    relays.add_argument("--url", required=True, help="nodes, with commas between them")
    relays.add_argument(
        "--token", default=os.environ.get("CODEQ_TOKEN"), help="a producer's; CODEQ_TOKEN"
    )
    relays.add_argument("--ca", help="the only authorities trusted")
    relays.add_argument("--once", action="store_true", help="end when no row waits")
    shows = command("status", _status, "show what waits; 1 if rows are refused or late")
    shows.add_argument("--json", action="store_true", help="print JSON")
    shows.add_argument(
        "--late-after",
        type=float,
        default=LATE_S,
        metavar="SECONDS",
        help="a row that has waited for longer is late; default %(default)g",
    )
    command("retry", _retry, "let refused rows wait again")
    command("create", _create, "create the table if it does not exist")
    return parser


if __name__ == "__main__":
    sys.exit(main())
