"""Consent: commands that destroy or repeat many things only count them without `--yes`."""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Mapping

from codeq_cluster.cli.support.outcome import Exit
from codeq_cluster.cli.support.output import document, note


def add_consent(parser: argparse.ArgumentParser, *, otherwise: str = "print the count") -> None:
    """Add the flags of a verb that needs a confirmation; `otherwise` is what it does without."""
    parser.add_argument("--dry-run", action="store_true", help=f"only {otherwise}")
    parser.add_argument("--yes", action="store_true", help=f"do it; without it, only {otherwise}")


def consented(options: argparse.Namespace) -> bool:
    """Return whether a verb may act; a dry run wins over `--yes`."""
    return bool(options.yes and not options.dry_run)


def add_chosen(parser: argparse.ArgumentParser, *, every: str) -> argparse._ActionsContainer:
    """Add the flags that choose what a verb acts on, and those of `add_consent`.

    Returns:
        The group of `--all` and `--id`, of which one must be given.
    """
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("--all", action="store_true", help=every)
    chosen.add_argument(
        "--id", action="append", metavar="ID", help="this one; may be repeated, 1000 times at most"
    )
    add_consent(parser)
    return chosen


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


async def counted_or_done(
    options: argparse.Namespace,
    act: Callable[[bool], Awaitable[Mapping[str, object]]],
    *,
    field: str,
    done: str,
    counted: Callable[[object], str],
    strange: str = "",
) -> Exit:
    """Count what a verb would act on, or with `--yes` act, and print how many.

    Args:
        options: With the flags of `add_consent`, and `id` where a verb takes ids.
        act: Counts if it gets true, else acts; answers with `matched`, or with `field` alone.
        field: Of the answer: the number of things changed.
        done: What is done to them.
        counted: Returns a number with the kind of things.
        strange: What ids are that were named and not found.
    """
    doing = consented(options)
    answer = await act(not doing)
    matched = answer.get("matched", answer.get(field, 0))
    changed = answer.get(field, 0)
    if options.json:
        document(answer, compact=True)
    else:
        print(changed if doing else matched)
    if not doing and (matched or options.dry_run):
        return withheld(options, what=counted(matched), done=done)
    note(f"{counted(changed)} {done}")
    if answer.get("more"):
        note("there are more: run it again")
    missed = len(set(getattr(options, "id", None) or ())) - int(str(matched))
    if missed <= 0:
        return Exit.OK
    note(f"codeq-cluster: {missed} of the ids named are {strange}")
    return Exit.API
