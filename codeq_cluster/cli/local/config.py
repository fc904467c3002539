"""Command `config`: the configuration a node would start with, secrets hidden."""

from __future__ import annotations

import argparse
import json

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import TEXT_CHARS_MAX, table
from codeq_cluster.cli.support.sources import add_sources, loaded
from codeq_cluster.settings import KEYS


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "config", help="check and print the effective configuration", description=__doc__
    )
    add_sources(parser)
    parser.add_argument("--keys", action="store_true", help="list every key instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    if options.keys:
        rows = [
            {"key": key.name, "env": key.env, "allowed": key.kind.allowed, "meaning": key.meaning}
            for key in KEYS
        ]
    else:
        found = loaded(options)
        rows = [
            {"key": shown.name, "value": shown.value, "source": shown.source}
            for shown in found.effective
        ]
        rows += [
            {"key": remark.name, "value": remark.says, "source": remark.source}
            for remark in found.remarks
        ]
    if options.json:
        print(json.dumps(rows, indent=2))
        return Exit.OK
    headers = [name.upper() for name in rows[0]]
    table(headers, ([*row.values()] for row in rows), chars_max=TEXT_CHARS_MAX)
    return Exit.OK
