"""Finding: the outcome of one check, as one line that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from codeq_cluster.cli.support.outcome import Exit


class FindingLevel(StrEnum):
    """The severity; a `skipped` check was not made."""

    OK = "ok"
    SKIPPED = "skipped"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        about: A URL, a file or a directory.
        todo: Empty if there is nothing to do.
        code: The exit code of the command if this check failed.
    """

    level: FindingLevel
    check: str
    about: str
    text: str
    todo: str = ""
    code: Exit = Exit.ERROR

    @property
    def line(self) -> str:
        """Return the finding for a reader."""
        todo = f"; {self.todo}" if self.todo else ""
        return " ".join(
            f"{self.level:<7} {self.check:<11} {self.about}: {self.text}{todo}".split("\n")
        )


def ok(check: str, about: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(level=FindingLevel.OK, check=check, about=about, text=text)


def warn(check: str, about: str, text: str, todo: str) -> Finding:
    """Return a finding that something may or will fail soon."""
    return Finding(level=FindingLevel.WARN, check=check, about=about, text=text, todo=todo)


def fail(check: str, about: str, text: str, todo: str, code: Exit = Exit.ERROR) -> Finding:
    """Return a finding of a failure."""
    return Finding(
        level=FindingLevel.FAIL, check=check, about=about, text=text, todo=todo, code=code
    )


def skipped(check: str, about: str, text: str, todo: str = "") -> Finding:
    """Return a finding that a check was not made."""
    return Finding(level=FindingLevel.SKIPPED, check=check, about=about, text=text, todo=todo)


def certificate(about: str, left_s: float) -> Finding:
    """Judge a certificate that stays valid for so many seconds."""
    days = left_s / 86400
    renew = "renew it; the node takes new files up while it runs"
    if days < 0:
        return fail("certificate", about, f"it ended {-days:.0f} days ago", renew)
    # The same margin as the metric's alert.
    if days < 14:
        return warn("certificate", about, f"it ends in {days:.1f} days", renew)
    return ok("certificate", about, f"it ends in {days:.0f} days")
