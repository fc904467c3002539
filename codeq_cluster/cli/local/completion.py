"""Command `completion`: a script that completes commands, flags and file names.

It knows the commands of the release that made it.
For bash, put this into ~/.bashrc:

  eval "$(codeq-cluster completion bash)"

For zsh, fish, tcsh and powershell see docs/command-line.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import shtab

from codeq_cluster.cli.support.asking import Verbs
from codeq_cluster.cli.support.outcome import Exit

_FILES = {
    "FILE": shtab.FILE,
    "PATH": shtab.FILE,
    "DIR": shtab.DIRECTORY,
    "DATA_DIR": shtab.DIRECTORY,
    "PLACE": shtab.DIRECTORY,
}


def add(commands: Verbs) -> None:
    """Add the command; the option `every_command` must return the parser of all commands."""
    parser = commands.add_parser(
        "completion",
        help="print a script for a shell's completion",
        description=__doc__,
        # The default formatter would wrap the line that users copy.
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> Exit:
    whole: argparse.ArgumentParser = options.every_command()
    for parser in _parsers(whole):
        for action in parser._actions:  # noqa: SLF001 - argparse has no public way to list them
            named = action.metavar if isinstance(action.metavar, str) else ""
            if named in _FILES:
                action.complete = _FILES[named]  # type: ignore[attr-defined]
    print(shtab.complete(whole, shell=options.shell))
    return Exit.OK


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield a parser and all parsers of its commands."""
    yield parser
    for action in parser._actions:  # noqa: SLF001 - see above
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for deeper in action.choices.values():
                yield from _parsers(deeper)
