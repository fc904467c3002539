"""Finding: the outcome of one check, as one line that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from codeq_cluster.cli.support.outcome import Exit


class FindingLevel(StrEnum):
    """How bad it is; `skipped` was not looked at."""

    OK = "ok"
    SKIPPED = "skipped"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        about: A URL, a file or a directory.
        todo: Empty when there is nothing to do.
        code: How the command ends because of it, when it failed.
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
    """Return that all is well."""
    return Finding(level=FindingLevel.OK, check=check, about=about, text=text)


def warn(check: str, about: str, text: str, todo: str) -> Finding:
    """Return what will be wrong soon, or may be."""
    return Finding(level=FindingLevel.WARN, check=check, about=about, text=text, todo=todo)


def fail(check: str, about: str, text: str, todo: str, code: Exit = Exit.ERROR) -> Finding:
    """Return what is wrong."""
    return Finding(
        level=FindingLevel.FAIL, check=check, about=about, text=text, todo=todo, code=code
    )


def certificate(about: str, left_s: float) -> Finding:
    """Judge a certificate that is good for so many seconds more."""
    days = left_s / 86400
    renew = "renew it; the node takes new files up while it runs"
    if days < 0:
        return fail("certificate", about, f"it ended {-days:.0f} days ago", renew)
    # As long as the alarm of the metrics gives.
    if days < 14:
        return warn("certificate", about, f"it ends in {days:.1f} days", renew)
    return ok("certificate", about, f"it ends in {days:.0f} days")
