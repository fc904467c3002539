"""Command `doctor`: find faults, and print how to mend each.

Running nodes are asked over HTTP. With --config, or where the environment configures a node, the
settings of a node on this machine are checked too: configuration, data directory, free disk,
certificates, artifacts and webhooks.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from codeq_cluster.cli.operate.doctor.finding import Finding, FindingLevel, fail, skipped
from codeq_cluster.cli.operate.doctor.local import local_findings
from codeq_cluster.cli.operate.doctor.nodes import cluster_findings
from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.dev_cluster import DIRECTORY, published
from codeq_cluster.cli.support.flags import runs
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import TEXT_CHARS_MAX, cell, console, document
from codeq_cluster.cli.support.sources import add_sources, loaded
from codeq_cluster.cli.support.target import (
    add_target,
    ca_of,
    names_cluster,
    say_default,
    token_of,
    urls_of,
)
from codeq_cluster.cli.support.times import add_times, times_of
from codeq_cluster.config import Loaded, load
from codeq_cluster.errors import CodeqError
from codeq_cluster.settings import environment

_STYLES = {
    FindingLevel.OK: "green",
    FindingLevel.SKIPPED: "dim",
    FindingLevel.WARN: "yellow",
    FindingLevel.FAIL: "bold red",
}

# An environment that names a data directory configures a node.
_DATA_VARIABLES = ("PERSISTENCE_PATH", "PERSISTENCE_CONFIG")


def add(commands: Verbs) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor", help="check nodes and configuration", description=__doc__
    )
    add_target(parser)
    add_sources(parser)
    add_times(parser)
    runs(parser, _run)


def _run(options: argparse.Namespace) -> Exit:
    say_default(options)
    findings = [*asyncio.run(_of_nodes(options)), *_of_this_machine(options)]
    if options.json:
        rows = [
            {
                "level": each.level.lower(),
                "check": each.check,
                "about": each.about,
                "text": each.text,
                "todo": each.todo,
            }
            for each in findings
        ]
        document({"findings": rows}, compact=True)
    elif sys.stdout.isatty():
        _show(findings)
    else:
        for each in findings:
            print(each.line)
    failed = [each.code for each in findings if each.level is FindingLevel.FAIL]
    return max(failed, default=Exit.OK)


def _show(findings: Sequence[Finding]) -> None:
    """Print findings for a reader: in columns, grouped by what they are about."""
    printed = console()
    for about, group in groupby(findings, key=lambda each: each.about):
        printed.print(Text(about, style="bold"))
        made = Table.grid(padding=(0, 2, 0, 0))
        for width in (7, 11):
            made.add_column(min_width=width, no_wrap=True)
        made.add_column()
        for each in group:
            text = Text(cell(each.text, TEXT_CHARS_MAX))
            if each.todo:
                text.append(f"\n-> {cell(each.todo, TEXT_CHARS_MAX)}", style="bold")
            made.add_row(Text(each.level, style=_STYLES[each.level]), each.check, text)
        printed.print(Padding(made, (0, 0, 0, 2)))


async def _of_nodes(options: argparse.Namespace) -> list[Finding]:
    return await cluster_findings(
        urls_of(options), token_of(options), ca_of(options), times=times_of(options)
    )


def _of_this_machine(options: argparse.Namespace) -> Iterator[Finding]:
    """Check the configuration that is named or set, or else those of a development cluster."""
    named = options.config or environment().get("CODEQ_CONFIG_PATH")
    if options.set or getattr(options, "set_persistenceConfig.path"):
        named = named or "flags"
    elif any(environment().get(name) for name in _DATA_VARIABLES):
        named = named or "environment"  # As in a container, which has no configuration file.
    if named:
        yield from _of_configuration(str(named), lambda: loaded(options))
        return
    nodes = () if names_cluster(options) else published(DIRECTORY)
    for node in nodes:
        file = Path(str(node["dataDir"])).parent / "node.yaml"
        yield from _of_configuration(str(file), partial(load, file=file))
    if not nodes:
        yield skipped(
            "config",
            "this machine",
            "neither configuration nor disk was looked at",
            "name a node's with --config",
        )


def _of_configuration(name: str, read: Callable[[], Loaded]) -> Iterator[Finding]:
    try:
        configuration = read()
    except CodeqError as error:
        yield fail("config", name, str(error), "correct it; config --keys lists what is allowed")
        return
    yield from local_findings(name, configuration)
