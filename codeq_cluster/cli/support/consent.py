"""Consent: commands that destroy or repeat many things only count them without `--yes`."""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import note


def add_consent(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a verb that needs a confirmation."""
    parser.add_argument("--dry-run", action="store_true", help="only print the count")
    parser.add_argument(
        "--yes", action="store_true", help="do it; without it, only print the count"
    )


def withheld(options: argparse.Namespace, *, what: str, done: str) -> Exit:
    """Print what was not done and the flag that does it; a dry run needs no advice.

    Args:
        options: With the flags of `add_consent`.
        what: The number and kind of things.
        done: What would be done to them.
    """
    if options.dry_run:
        note(f"{what} would be {done}")
        return Exit.OK
    note(f"codeq-cluster: {what} would be {done}; add --yes to do it")
    return Exit.USAGE
