"""Main: the command `codeq-cluster`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from codeq_cluster import __version__
from codeq_cluster.cli import config, node, status, task
from codeq_cluster.cli.dev import command as dev
from codeq_cluster.cli.outcome import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: Without the program's name; None takes the process's own.
    """
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        # The convention of shells for a process that SIGINT ended.
        return 130
    except Exception as error:
        code = report(error)
        if code is None:
            raise
        return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="codeq-cluster",
        description="A Raft-replicated task broker.",
        epilog="Exit codes: 0 ok, 1 error, 2 usage, 3 auth, 4 the API refused.",
    )
    parser.add_argument("--version", action="version", version=f"codeq-cluster {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in (dev, node, status, task, config):
        module.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
