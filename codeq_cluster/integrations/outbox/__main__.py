"""Command `python -m codeq_cluster.integrations.outbox`: relay an outbox, or look at it.

`relay` creates the tasks of the rows, until Ctrl-C or SIGTERM. `status` says how much waits, and
ends with 1 if rows are refused or the oldest waits too long. `retry` lets refused rows wait again.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from sqlalchemy import Engine, create_engine

from codeq_cluster.integrations.outbox.relay import Relay
from codeq_cluster.integrations.outbox.rows import TABLE, Outbox


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m codeq_cluster.integrations.outbox")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    relay = verbs.add_parser("relay", help="create the tasks of the rows")
    relay.add_argument(
        "--url",
        action="append",
        metavar="URL",
        help="base URL of a node; may be repeated; default: CODEQ_BASE_URL",
    )
    relay.add_argument("--token", help="a producer's; default: CODEQ_TOKEN")
    relay.add_argument("--ca", type=Path, metavar="FILE", help="as of codeq-cluster")
    relay.add_argument("--until-empty", action="store_true", help="end when no row waits")
    relay.set_defaults(run=_relay)
    status = verbs.add_parser("status", help="say how much waits")
    status.add_argument(
        "--oldest",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="end with 1 if a row waits longer; default: 60",
    )
    status.add_argument("--json", action="store_true", help="print JSON, one line")
    status.set_defaults(run=_status)
    retry = verbs.add_parser("retry", help="let refused rows wait again")
    retry.set_defaults(run=_retry)
    for verb in (relay, status, retry):
        verb.add_argument(
            "--database", metavar="URL", required=True, help="as of SQLAlchemy's create_engine"
        )
        verb.add_argument("--table", default=TABLE, metavar="NAME", help=f"default: {TABLE}")
    options = parser.parse_args(arguments)
    engine = create_engine(options.database, pool_pre_ping=True)
    return int(options.run(engine, Outbox(name=options.table), options, parser))


def _relay(
    engine: Engine, outbox: Outbox, options: argparse.Namespace, parser: argparse.ArgumentParser
) -> int:
    urls = options.url or [url for url in os.environ.get("CODEQ_BASE_URL", "").split(",") if url]
    token = options.token or os.environ.get("CODEQ_TOKEN", "")
    if not urls or not token:
        parser.error("relay needs --url and --token, or CODEQ_BASE_URL and CODEQ_TOKEN")
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    relay = Relay(engine, urls, token=token, outbox=outbox, ca_file=options.ca)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: relay.stop())
    relay.run(until_empty=options.until_empty)
    print(f"{relay.created} created, {relay.refused} refused")
    return 0


def _status(
    engine: Engine, outbox: Outbox, options: argparse.Namespace, _: argparse.ArgumentParser
) -> int:
    with engine.connect() as connection:
        found = outbox.backlog(connection)
        reasons = outbox.refused(connection, limit=5)
    if options.json:
        print(json.dumps({**asdict(found), "reasons": list(reasons)}))
    else:
        print(f"{found.waiting} wait, the oldest for {found.oldest_s:.0f} s")
        if found.refused:
            print(f"{found.refused} refused; mend the cause, and run retry:", *reasons, sep="\n  ")
    return int(found.refused > 0 or found.oldest_s > options.oldest)


def _retry(
    engine: Engine, outbox: Outbox, _: argparse.Namespace, __: argparse.ArgumentParser
) -> int:
    with engine.begin() as connection:
        print(f"{outbox.retry(connection)} wait again")
    return 0


if __name__ == "__main__":
    sys.exit(main())
