"""Calendars: the product's against a walk that looks at a clock minute by minute.

The walk is the loop of the cron of Vixie and Debian, which keeps a virtual clock beside the real
one: a fixed-time job runs for each minute that the virtual clock passes, any other job for each
minute that the real one shows. It shares no code with the product, nor with its library.
"""

from __future__ import annotations

import random
from calendar import day_abbr, month_abbr, monthrange
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import tzdata

from codeq_cluster.schedules.calendar import Calendar, parse

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_NAMES = [*month_abbr][1:] + [*day_abbr][6:] + [*day_abbr][:6]

_BEGIN, _END = datetime(2010, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC)
_OTHER_DAYS = 6  # For each zone, beside the days of its changes.

# Whole hours, halves and quarters; changes at midnight, in the evening, by half an hour, by a day,
# by the moon, to the west, four in a year, and never.
# fmt: off
_ZONES = (
    "Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Nairobi", "America/Asuncion",
    "America/Caracas", "America/Havana", "America/Los_Angeles", "America/New_York",
    "America/Nuuk", "America/Sao_Paulo", "America/Santiago", "America/St_Johns",
    "America/Argentina/San_Luis", "Antarctica/Casey", "Antarctica/Macquarie", "Antarctica/Troll",
    "Asia/Amman", "Asia/Beirut", "Asia/Gaza", "Asia/Kathmandu", "Asia/Kolkata", "Asia/Pyongyang",
    "Asia/Tehran", "Asia/Tokyo", "Asia/Ulaanbaatar", "Atlantic/Azores", "Australia/Eucla",
    "Australia/Lord_Howe", "Australia/Sydney", "Europe/Berlin", "Europe/Dublin",
    "Europe/Istanbul", "Europe/London", "Europe/Moscow", "Pacific/Apia", "Pacific/Chatham",
    "Pacific/Easter", "Pacific/Fakaofo", "Pacific/Fiji",
)
# fmt: on

_FIXED = (
    "30 2 * * *",
    "0 0 * * *",
    "0,20,45 0-4 * * *",
    "15 1,2,3,23 * * MON-FRI",
    "0 0 L,28-31 * *",
    "5 0-23/2 1-7,25-31 * SUN",
    "45 2 * * SUN#1,SUN#5,0L",
    "*/20 30 1-3 * * *",
    "10,50 59 23 */2 * *",
    "0 5,35 2 LW 3-11 0-6",
)
_WILD = (
    "*/20 * * * *",
    "*/15 2 * * *",
    "7 */3 * * *",
    "*/30 0-3 1-8,22-31 * 6,7",
    "59 * L * *",
    "* 2 * * SUN",
    "*/60 1,2 * MAR,APR,SEP-NOV *",
    "30 */10 1-3 * * *",
    "*/25 0 * * * *",
    "0,59 */17 * 1-9 * 1L",
)


def _numbers(field: str, low: int, high: int, name_base: int = 0) -> Callable[[int], bool]:
    """Return the test of a number by a field of numbers and names."""
    found = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        ends = [
            _NAMES.index(each.title()) % 12 + name_base if each.title() in _NAMES else int(each)
            for each in (first, last)
            if each.isalnum()
        ]
        if span == "*":
            ends = [low, high]
        elif len(ends) == 1:
            ends = [ends[0], high if step else ends[0]]
        found.update(range(ends[0], ends[1] + 1, int(step or 1)))
    return found.__contains__


def _is_day_of_month(field: str, day: date) -> bool:
    length = monthrange(day.year, day.month)[1]
    for term in field.split(","):
        if term == "L":
            fits = day.day == length
        elif term == "LW":
            later = [day + n * _DAY for n in range(1, length - day.day + 1)]
            fits = day.weekday() < 5 and all(each.weekday() >= 5 for each in later)
        else:
            fits = _numbers(term, 1, 31)(day.day)
        if fits:
            return True
    return False


def _is_day_of_week(field: str, day: date) -> bool:
    for term in field.split(","):
        name, number, nth = term.partition("#")
        last = term.endswith("L")
        fits = _numbers(name.removesuffix("L"), 0, 7)
        if not any(fits(each) for each in {day.isoweekday(), day.isoweekday() % 7}):
            continue
        in_place = not number or (day.day - 1) // 7 + 1 == int(nth)
        if in_place and (not last or (day + 7 * _DAY).month != day.month):
            return True
    return False


class _Job:
    """A cron expression, as the walk reads it."""

    def __init__(self, cron: str) -> None:
        second, minute, hour, self._day, month, self._week = (
            cron if len(cron.split()) == 6 else f"0 {cron}"
        ).split()
        self.fixed = minute[0] != "*" and hour[0] != "*"
        self.seconds = [*filter(_numbers(second, 0, 59), range(60))]
        self._minute = _numbers(minute, 0, 59)
        self._hour = _numbers(hour, 0, 23)
        self._month = _numbers(month, 1, 12, name_base=1)
        self._days: dict[date, bool] = {}

    def runs_at(self, shown: datetime) -> bool:
        """Return whether the job runs in a minute."""
        if not self._minute(shown.minute) or not self._hour(shown.hour):
            return False
        day = shown.date()
        if day not in self._days:
            self._days[day] = self._month(day.month) and self._runs_on(day)
        return self._days[day]

    def _runs_on(self, day: date) -> bool:
        both = _is_day_of_month(self._day, day), _is_day_of_week(self._week, day)
        return all(both) if self._day[0] == "*" or self._week[0] == "*" else any(both)


def _walk(job: _Job, clock: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, str, int]]:
    """Return when a job fires and for which time, given each minute with what the clock shows."""
    fired: dict[datetime, tuple[str, int]] = {}
    virtual = clock[0][1].replace(fold=0) - _MINUTE
    for utc, real in clock:
        shown = real.replace(fold=0)
        passed = [shown]
        if job.fixed:
            passed = [virtual + n * _MINUTE for n in range(1, (shown - virtual) // _MINUTE + 1)]
        for minute in filter(job.runs_at, passed):
            for second in map(_SECOND.__mul__, job.seconds):
                # Skipped times that come to one instant are one run, of the latest.
                at = utc + second if minute == shown else utc
                fired[at] = ((minute + second).isoformat(), real.fold)
        virtual = max(virtual, shown)
    return [(at, *which) for at, which in fired.items()]


def _windows(zone: ZoneInfo, chance: random.Random) -> Iterator[tuple[datetime, datetime]]:
    """Yield some hours around each change of a zone's offset, and some of the other days."""
    days = [_BEGIN + n * _DAY for n in range((_END - _BEGIN).days)]
    for day, next_day in pairwise(days):
        if _offset(day, zone) != _offset(next_day, zone):
            hours = [day + n * _HOUR for n in range(25)]
            [changed] = [b for a, b in pairwise(hours) if _offset(a, zone) != _offset(b, zone)]
            yield changed - 4 * _HOUR, changed + 4 * _HOUR
    for day in chance.sample(days[2:], _OTHER_DAYS):
        if len({_offset(day + n * _DAY, zone) for n in (-1, 0, 1)}) == 1:
            yield day, day + _DAY


def _offset(at: datetime, zone: ZoneInfo) -> timedelta | None:
    return at.astimezone(zone).utcoffset()


def _after(calendar: Calendar, at: datetime) -> tuple[datetime, str, int] | None:
    found = calendar.after(round(at.timestamp() * 1000))
    if found is None:
        return None
    return datetime.fromtimestamp(found.ms / 1000, UTC), found.local, found.fold


@pytest.mark.parametrize("name", _ZONES)
def test_a_calendar_fires_when_the_cron_of_vixie_does(name: str) -> None:
    """Each job of the zone, in 20 years of its changes and on some of the other days."""
    chance = random.Random(name)
    with (Path(tzdata.__file__).parent / "zoneinfo" / name).open("rb") as rules:
        zone = ZoneInfo.from_file(rules)
    crons = [*chance.sample(_FIXED, 3), *chance.sample(_WILD, 3)]
    compared = 0
    for begin, end in _windows(zone, chance):
        minutes = [begin + n * _MINUTE for n in range((end - begin) // _MINUTE)]
        clock = [(utc, utc.astimezone(zone).replace(tzinfo=None)) for utc in minutes]
        for cron in chance.sample(crons, 2):
            expected = _walk(_Job(cron), clock)
            calendar = parse(cron=cron, zone=name)
            found, at = [], begin - _SECOND
            while (instant := _after(calendar, at)) is not None and instant[0] < end:
                found.append(instant)
                at = instant[0]
            compared += len(expected)

            assert expected == found, (cron, begin)
            for at in chance.sample(minutes, 4):
                later = [each for each in expected if each[0] > at]
                assert later[:1] in ([], [_after(calendar, at)]), (cron, at)

    assert compared


def test_every_job_is_compared_somewhere() -> None:
    """Each cron is drawn by some of the zones."""
    drawn = set()
    for name in _ZONES:
        chance = random.Random(name)
        drawn |= {*chance.sample(_FIXED, 3), *chance.sample(_WILD, 3)}

    assert drawn == {*_FIXED, *_WILD}
