"""Times: one format for the instants in what people read, in the time zone that the flags choose.

`2026-01-31 13:00:00` in a column whose header has the offset from UTC, and `2026-01-31
13:00:00+01:00` where an instant stands alone. The second form is also valid as input.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum

_WITHOUT_ZONE = len("2026-01-31 13:00:00")
_NAMES = frozenset(("at", "since", "until"))
_ENDINGS = ("At", "Since", "Until")


class Times(Enum):
    """How instants are printed: by the clock of this machine, in UTC, or as RFC 3339."""

    LOCAL = "local"
    UTC = "utc"
    ISO = "iso"

    def text(self, instant: datetime) -> str:
        """Return an instant with its offset from UTC; RFC 3339 has milliseconds and `Z`."""
        return self.bare(instant) + self.zone(instant)

    def bare(self, instant: datetime) -> str:
        """Return an instant without its offset, which is said beside it; RFC 3339 keeps its `Z`."""
        shown = self._placed(instant)
        if self is Times.ISO:
            return f"{shown.replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"
        return shown.isoformat(" ", "seconds")[:_WITHOUT_ZONE]

    def zone(self, instant: datetime) -> str:
        """Return the offset from UTC at an instant, as `+01:00`; empty for RFC 3339."""
        if self is Times.ISO:
            return ""
        return self._placed(instant).isoformat(" ", "seconds")[_WITHOUT_ZONE:]

    def column(self, header: str, cells: Sequence[object]) -> tuple[str, list[object]]:
        """Return a column of a table with its instants as text.

        The header gets the offset from UTC. If the instants have several, as in a night in which
        the clocks change, each instant has its own.
        """
        zones = {self.zone(cell) for cell in cells if isinstance(cell, datetime)}
        once = len(zones) == 1 and zones != {""}
        said = self.bare if once else self.text
        texts = [said(cell) if isinstance(cell, datetime) else cell for cell in cells]
        return f"{header} ({zones.pop()})" if once else header, texts

    def _placed(self, instant: datetime) -> datetime:
        try:
            return instant.astimezone(None if self is Times.LOCAL else UTC)
        except (OverflowError, OSError, ValueError):
            return instant  # At the ends of the calendar there is no other zone.


def add_times(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the format of times."""
    chosen = parser.add_mutually_exclusive_group()
    for name, words in (
        (Times.UTC, "print times in UTC; default: in the time zone of this machine, or of TZ"),
        (Times.ISO, "print times as RFC 3339, as --json does"),
    ):
        chosen.add_argument(
            f"--{name.value}", dest="times", action="store_const", const=name, help=words
        )
    parser.set_defaults(times=Times.LOCAL)


def times_of(options: argparse.Namespace) -> Times:
    """Return the format that the flags of `add_times` choose; `--json` prints times as sent."""
    if getattr(options, "json", False):
        return Times.ISO
    chosen: Times = getattr(options, "times", Times.LOCAL)
    return chosen


def given_instant(text: str) -> datetime:
    """Return the instant that a flag names; argparse reports another text."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text}: must be RFC 3339, as 2026-01-31T12:00:00Z")
    return found


def instant(text: object) -> object:
    """Return the instant that an answer gives as RFC 3339; anything else as it is."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return text
    return text if found.tzinfo is None else found


def dated(record: Mapping[str, object]) -> dict[str, object]:
    """Return a record of an answer with its instants, also those of a task's attempts.

    Fields are told by their names: a payload or an error may look like an instant.
    """
    return {name: _dated(name, value) for name, value in record.items()}


def _dated(name: str, value: object) -> object:
    if isinstance(value, list) and name == "history":
        return [dated(each) for each in value if isinstance(each, dict)]
    return instant(value) if name in _NAMES or name.endswith(_ENDINGS) else value
