"""Command `node`: run one node of a cluster, configured by a file and the environment."""

from __future__ import annotations

import argparse
import logging

import uvloop

from codeq_cluster.cli.local.serve import hold_signals, until_signal
from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.sources import add_sources, loaded

log = logging.getLogger(__name__)


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser("node", help="run one node", description=__doc__)
    add_sources(parser)
    parser.add_argument("--until-stdin-closes", action="store_true", help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    found = loaded(options)
    settings = found.settings
    hold_signals()
    # Import late: a node's imports take longer than the refusal of a wrong configuration.
    from codeq_cluster.node.compose import run  # noqa: PLC0415
    from codeq_cluster.telemetry import set_up_logs  # noqa: PLC0415

    set_up_logs(settings.log_level, node=settings.node_id)
    for remark in found.remarks:
        log.warning(
            "setting of codeQ",
            extra={"key": remark.name, "source": remark.source, "says": remark.says},
        )
    uvloop.run(until_signal(run(settings), stdin=options.until_stdin_closes))
    return Exit.OK
