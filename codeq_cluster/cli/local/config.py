"""Command `config`: the configuration a node would start with, secrets hidden."""

from __future__ import annotations

import argparse
import json
import sys

from rich.console import Console
from rich.table import Table

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.sources import add_sources, loaded
from codeq_cluster.config.keys import KEYS


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
    table = Table(*rows[0], box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row.values())
    terminal = sys.stdout.isatty()
    Console(highlight=False, markup=False, width=None if terminal else 250).print(table)
    return Exit.OK
