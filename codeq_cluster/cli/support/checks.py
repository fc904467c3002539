"""Checks: promises that a command has judged, and how it prints them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

_BROKEN_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One promise, judged.

    Attributes:
        facts: How many things were looked at; of nothing, nothing is known.
        broken: What speaks against it.
    """

    promise: str
    facts: int
    broken: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Return whether it was kept."""
        return not self.broken and self.facts > 0

    def __str__(self) -> str:
        """Return it as a line, with the first things that speak against it below."""
        word = "ok" if self.holds else ("BROKEN" if self.broken else "unknown")
        line = f"{word:<7} {self.promise}: {self.facts}"
        return "\n".join((line, *(f"        {each}" for each in self.broken[:_BROKEN_SHOWN])))

    def document(self) -> dict[str, object]:
        """Return it as JSON."""
        return {**asdict(self), "holds": self.holds}
