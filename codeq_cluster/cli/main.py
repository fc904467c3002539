"""Main: the command `codeq-cluster`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from codeq_cluster import __version__
from codeq_cluster.cli import (
    audit,
    backup,
    cluster,
    config,
    delivery,
    dlq,
    importing,
    inspect,
    node,
    queue,
    repair,
    restore,
    status,
    task,
    token,
    topic,
    worker,
)
from codeq_cluster.cli.dev import command as dev
from codeq_cluster.cli.doctor import command as doctor
from codeq_cluster.cli.outcome import report

_COMMANDS = (
    *(dev, node, status, task, worker, queue, dlq, topic, delivery, audit),
    *(cluster, backup, restore, importing, inspect, repair, config, token, doctor),
)


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
    except BrokenPipeError:
        # The reader of a pipe has had enough, as `head` does; nothing can be told it any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
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
    for module in _COMMANDS:
        module.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
