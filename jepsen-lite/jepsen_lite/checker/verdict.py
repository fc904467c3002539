"""Verdict: a checker's finding on one guarantee."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

from msgspec import Struct

VIOLATIONS_MAX = 50  # Kept per guarantee; further ones are only counted.


class Violation(Struct, frozen=True, kw_only=True):
    """A violation of the promise.

    Attributes:
        events: Numbers of the events that show it.
        task: The task concerned, or empty.
    """

    text: str
    events: tuple[int, ...] = ()
    task: str = ""


class Verdict(Struct, frozen=True, kw_only=True):
    """The verdict on one guarantee.

    Attributes:
        valid: None if the history cannot tell.
        checked: How many facts were judged.
        found: How many violations; only the first are kept.
    """

    guarantee: str
    valid: bool | None
    checked: int
    found: int = 0
    violations: tuple[Violation, ...] = ()
    note: str = ""


def judged(
    guarantee: str, violations: Iterable[Violation], *, checked: int, note: str = ""
) -> Verdict:
    """Return the verdict of a checker that judged `checked` facts; with none it is unknown."""
    found = list(violations)
    return Verdict(
        guarantee=guarantee,
        valid=False if found else (True if checked else None),
        checked=checked,
        found=len(found),
        violations=tuple(islice(found, VIOLATIONS_MAX)),
        note=note,
    )


def unknown(guarantee: str, note: str) -> Verdict:
    """Return the verdict of a checker that found nothing to judge."""
    return Verdict(guarantee=guarantee, valid=None, checked=0, note=note)


def combined(guarantee: str, parts: Sequence[Verdict], *, note: str) -> Verdict:
    """Return the verdict on a guarantee that consists of several judged parts."""
    violations = [each for part in parts for each in part.violations]
    if violations:
        return judged(guarantee, violations, checked=len(parts), note=note)
    if any(part.valid is None for part in parts):
        missing = ", ".join(part.guarantee for part in parts if part.valid is None)
        return unknown(guarantee, f"{note}; not judged: {missing}")
    return judged(guarantee, (), checked=sum(part.checked for part in parts), note=note)
