"""Zones: the rules of time zones, from the pinned package `tzdata` and never from the machine.

With the rules of their machines, two nodes could disagree on an instant.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

import tzdata

from codeq_cluster.errors import InvalidZone

DAY_S = 86_400
LOOK_S = 3 * DAY_S
EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001, as any clock on a wall shows it
_SECOND = timedelta(seconds=1)


def zone_rules() -> str:
    """Return the release of the rules, such as `2026b`."""
    release: str = tzdata.IANA_VERSION
    return release


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Return the names of all zones, some 600."""
    return frozenset(resources.files("tzdata").joinpath("zones").read_text().split())


def clock_s(shown: datetime) -> int:
    """Return what a clock shows, as seconds since it showed `EPOCH`."""
    return (shown - EPOCH) // _SECOND


class Zone:
    """The clock of one zone: what it shows at each instant, in Unix seconds.

    Changes of its offset from UTC are found by looking at every third day: since 1970 no zone has
    had two changes within six.
    """

    def __init__(self, rules: ZoneInfo) -> None:
        self._rules = rules

    def shows(self, unix_s: int) -> datetime:
        """Return what the clock shows, without its zone; `fold` is 1 for the second time."""
        return datetime.fromtimestamp(unix_s, self._rules).replace(tzinfo=None)

    def offset_s(self, unix_s: int) -> int:
        """Return how far the clock is ahead of UTC."""
        ahead = datetime.fromtimestamp(unix_s, self._rules).utcoffset()
        assert ahead is not None
        return ahead // _SECOND

    def change_s(self, after_s: int, until_s: int) -> int | None:
        """Return the first instant after one and up to another that has another offset."""
        offset_s = self.offset_s(after_s)
        while after_s < until_s:
            next_s = min(after_s + LOOK_S, until_s)
            if self.offset_s(next_s) != offset_s:
                return self._first_without(offset_s, after_s, next_s)
            after_s = next_s
        return None

    def _first_without(self, offset_s: int, with_s: int, without_s: int) -> int:
        while without_s - with_s > 1:
            between_s = (with_s + without_s) // 2
            if self.offset_s(between_s) == offset_s:
                with_s = between_s
            else:
                without_s = between_s
        return without_s


@lru_cache(maxsize=1024)  # More than there are names.
def zone_of(name: str) -> Zone:
    """Return a zone by its IANA name; raises InvalidZone if there is none of this name."""
    if name not in zone_names():
        raise InvalidZone(name, nearest=_nearest(name))
    file = resources.files("tzdata.zoneinfo").joinpath(*name.split("/"))
    with file.open("rb") as rules:
        return Zone(ZoneInfo.from_file(rules, key=name))


def _nearest(name: str) -> str:
    """Return the name that may have been meant, or an empty text."""
    by_lower = {each.lower(): each for each in zone_names()}
    [*found] = get_close_matches(name[:64].lower(), by_lower, n=1, cutoff=0.8)
    return by_lower[found[0]] if found else ""
