"""Parser: argparse with errors that suggest a correction and name the help."""

from __future__ import annotations

import argparse
import sys
from difflib import get_close_matches
from typing import Any, NoReturn

from codeq_cluster.cli.support.outcome import fitting

# The flags that name something: empty, they would select everything, or wait for nothing.
_NAMING = frozenset({"ID", "NAME", "COMMAND", "QUEUE", "KEY"})


class Parser(argparse.ArgumentParser):
    """A parser of a command line; the parsers of its commands are of this class too."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and one line, and end with 2."""
        self.print_usage(sys.stderr)
        after = " See" if message.endswith("?") else "; see"
        self.exit(2, fitting(f"{self.prog}: {message}{after} {self.prog} --help") + "\n")

    def parse_known_args(self, *given: Any, **named: Any) -> Any:
        """Parse, and refuse unknown arguments.

        Otherwise the parser of all commands would refuse a command's unknown flag, with the usage
        of all.
        """
        found, unknown = super().parse_known_args(*given, **named)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse an unknown choice; argparse has no public way to change that text."""
        if isinstance(action.choices, dict) and value not in action.choices:
            close = get_close_matches(str(value), action.choices, n=1)
            meant = (
                f"did you mean {close[0]}?" if close else f"there are {', '.join(action.choices)}"
            )
            raise argparse.ArgumentError(action, f"no {value}: {meant}")
        super()._check_value(action, value)

    def _get_values(self, action: argparse.Action, given: list[str]) -> Any:
        """Refuse an empty id or name, as of a shell variable that is not set."""
        one = action.nargs in (None, argparse.OPTIONAL)
        names = not action.option_strings or action.metavar in _NAMING
        if one and names and any(not text.strip() for text in given):
            raise argparse.ArgumentError(action, "is empty: is a shell variable not set?")
        return super()._get_values(action, given)
