"""Main: the command `codeq-cluster`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TextIO

from codeq_cluster import __version__
from codeq_cluster.cli.support.outcome import Exit, report
from codeq_cluster.cli.support.parser import Parser
from codeq_cluster.errors import CodeqError

# In the order of `--help`. Each is a module with `add`, imported only when its command runs: a
# node's start must not pay for twenty commands.
_COMMANDS = {
    "dev": "local.dev.command",
    "node": "local.node",
    "init": "local.init",
    "profile": "local.profile",
    "status": "operate.status",
    "top": "operate.top",
    "tail": "operate.tail",
    "task": "work.task",
    "group": "work.group",
    "bulk": "work.bulk",
    "worker": "work.worker",
    "bench": "work.bench",
    "verify": "work.verify",
    "queue": "work.queue",
    "limit": "work.limit",
    "dlq": "work.dlq",
    "topic": "work.topic",
    "schedule": "work.schedule",
    "delivery": "work.delivery",
    "webhook": "work.webhook",
    "aside": "work.aside",
    "audit": "work.audit",
    "cluster": "operate.cluster",
    "backup": "operate.backup",
    "restore": "local.restore",
    "import": "operate.importing",
    "inspect": "local.inspect",
    "repair": "local.repair",
    "config": "local.config",
    "token": "local.token",
    "doctor": "operate.doctor.command",
    "completion": "local.completion",
}
# What the extra `cli` brings; every other library that a command may miss comes with `server`.
_OF_CLI = {"rich", "shtab", "yaml"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: Without the program's name; None for the process's own.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    _have_streams()
    try:
        options = _parser(given[:1]).parse_args(given)
        code = int(options.run(options))
        # Short output is written only now; a closed pipe must fail here and not at exit.
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader of the pipe closed it, as `head` does: nothing more can be written.
        with _nowhere() as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        return Exit.NOT_READ
    except Exception as error:
        exit_code = report(_missing(error) or error)
        if exit_code is None:
            raise
        return exit_code
    return code


def _have_streams() -> None:
    """Replace streams that the caller has closed, so that the command still does its work."""
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()


def _nowhere() -> TextIO:
    """Return a stream that discards everything."""
    return Path(os.devnull).open("w")


def _parser(first: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser for these first arguments: of one command, or else of all."""
    parser = Parser(
        prog="codeq-cluster",
        description="A Raft-replicated task broker.",
        epilog="Exit codes: 0 ok, 1 error, 2 usage, 3 auth, 4 the API refused, 130 "
        "interrupted, 141 nobody reads the output, 143 terminated.",
    )
    parser.add_argument("--version", action="version", version=f"codeq-cluster {__version__}")
    parser.set_defaults(every_command=partial(_parser, ()))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = [name for name in _COMMANDS if [name] == list(first)] or list(_COMMANDS)
    for name in wanted:
        try:
            import_module(f"codeq_cluster.cli.{_COMMANDS[name]}").add(commands)
        except ModuleNotFoundError as error:
            missing = _missing(error)
            if missing is None or [name] == wanted:
                raise
            commands.add_parser(name, help=str(missing))
    return parser


def _missing(error: Exception) -> CodeqError | None:
    """Return an error that names the extra with the missing library; None for any other error."""
    if not isinstance(error, ModuleNotFoundError) or error.name is None:
        return None
    library, _, _ = error.name.partition(".")
    if library == "codeq_cluster":
        return None
    extra = "cli" if library in _OF_CLI else "server"
    # No package index has the package: under its name there, anybody could offer another one.
    return CodeqError(f"needs more than the client: pip install '/path/to/checkout[{extra}]'")


if __name__ == "__main__":
    sys.exit(main())
