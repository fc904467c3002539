"""Consent: what destroys or repeats many things is counted first, and done with `--yes`."""

from __future__ import annotations

import argparse

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import note


def add_consent(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a verb that needs a second thought."""
    parser.add_argument("--dry-run", action="store_true", help="only print the count")
    parser.add_argument("--yes", action="store_true", help="do it; without, only print the count")


def withheld(options: argparse.Namespace, *, what: str, done: str) -> Exit:
    """Say what was not done, and how to have it done; a dry run is what was asked for.

    Args:
        options: With the flags of `add_consent`.
        what: How many of what.
        done: What would be done to them.
    """
    if options.dry_run:
        note(f"{what} would be {done}")
        return Exit.OK
    note(f"codeq-cluster: {what} would be {done}; add --yes to do it")
    return Exit.USAGE
