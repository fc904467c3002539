"""Calendar: the instants that a cron expression, or a steady interval, names.

A cron expression means what it means to the cron of Vixie and Debian when clocks change:

- A fixed-time job, whose minute and hour do not begin with `*`, runs once a nominal day. A time
  that a change skips fires at the end of the gap; a time that comes twice fires the first time.
- Any other job follows elapsed time: it fires whenever the clock shows a time that matches.

That cron catches up gaps below three hours only, and with a run for each skipped minute, some
seconds apart. Here every gap is caught up, and skipped times of one schedule are one instant.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias

from cronsim import CronSim, CronSimError

from codeq_cluster.errors import InvalidSchedule
from codeq_cluster.schedules.zones import DAY_S, EPOCH, clock_s, zone_of

HORIZON_S = 3653 * DAY_S  # Ten years: a schedule without an instant in them is a mistake.
# 9900-01-01: cronsim looks 50 years ahead, and the calendar of Python ends with the year 9999.
_END_S = 250_246_627_200
_CRON_CHARS_MAX = 256
_EVERY_S_MAX = 366 * DAY_S

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIELDS = {
    "second": "0 to 59",
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day of the month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day of the week": "0 to 7 or SUN to SAT, 5L or MON#1",
}
_DAY_FIELD = 3
_DURATION = re.compile("(?:([0-9]{1,9})d)?(?:([0-9]{1,9})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9})s)?")
_UNITS_S = (DAY_S, 3600, 60, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant:
    """One instant of a calendar.

    Attributes:
        ms: When it is, Unix milliseconds.
        local: The nominal time: what the zone's clock shows then, in ISO 8601 without a zone. Of a
            skipped time, what the clock would have shown; of several, the latest.
        fold: 1 if the clock shows this time for the second time.
    """

    ms: int
    local: str
    fold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CronCalendar:
    """The instants of a cron expression in a time zone.

    Attributes:
        fields: The six fields, seconds first, one space apart.
        zone: An IANA name.
    """

    fields: str
    zone: str

    @property
    def fixed(self) -> bool:
        """Return whether this is a fixed-time job."""
        _, minute, hour, *_ = self.fields.split()
        return not minute.startswith("*") and not hour.startswith("*")

    @property
    def words(self) -> str:
        """Return what the expression says, in English."""
        return CronSim(self.fields, EPOCH).explain()

    def after(self, ms: int) -> Instant | None:
        """Return the first instant strictly after another; None for none within ten years.

        The clock is followed from one change of its offset to the next. All of `from_s`, `match_s`
        and `start_s` are seconds as the clock shows them.

        Args:
            ms: Unix milliseconds, not negative.
        """
        assert ms >= 0
        fixed, place = self.fixed, zone_of(self.zone)
        at_s = ms // 1000
        until_s = at_s + HORIZON_S
        if until_s > _END_S:
            return None
        offset_s = place.offset_s(at_s)
        from_s = at_s + offset_s + 1
        changed_s = place.change_s(at_s - DAY_S, at_s) if fixed else None
        if changed_s is not None:
            # What the clock showed before it was set back has fired.
            from_s = max(from_s, changed_s + place.offset_s(changed_s - 1))
        match_s = self.first(from_s)
        while match_s is not None:
            changed_s = place.change_s(at_s, min(match_s - offset_s, until_s))
            if changed_s is None:
                break
            offset_s = place.offset_s(changed_s)
            start_s = changed_s + offset_s
            if fixed and match_s < start_s:
                return Instant(ms=changed_s * 1000, local=self._last(start_s))
            # Nothing matches between `from_s` and `match_s`: only beyond them, look again.
            if not fixed and not from_s <= start_s <= match_s:
                from_s, match_s = start_s, self.first(start_s)
            at_s = changed_s
        if match_s is None or match_s - offset_s > until_s:
            return None
        return _shown(match_s - offset_s, self.zone)

    def first(self, shown_s: int) -> int | None:
        """Return the first match that is not earlier; None for none in 50 years."""
        found = next(CronSim(self.fields, EPOCH + timedelta(seconds=shown_s - 1)), None)
        return None if found is None else clock_s(found)

    def _last(self, shown_s: int) -> str:
        """Return the last match that is not later; there is one."""
        start = EPOCH + timedelta(seconds=shown_s + 1)
        return next(CronSim(self.fields, start, reverse=True)).isoformat()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalCalendar:
    """The instants of a steady interval, aligned to the Unix epoch, whatever clocks show.

    Attributes:
        every_s: The interval.
        offset_s: How far each instant is behind a multiple of it.
        zone: An IANA name, for the nominal times alone.
    """

    every_s: int
    offset_s: int
    zone: str

    def after(self, ms: int) -> Instant | None:
        """Return the first instant strictly after another, like `CronCalendar.after`."""
        assert ms >= 0
        next_s = (self._passed(ms) + 1) * self.every_s + self.offset_s
        return None if next_s > _END_S else _shown(next_s, self.zone)

    def count(self, after_ms: int, until_ms: int) -> int:
        """Return how many instants are after one and not after another."""
        return max(0, self._passed(until_ms) - self._passed(after_ms))

    def _passed(self, ms: int) -> int:
        """Return how many instants there were since the epoch."""
        return (ms // 1000 - self.offset_s) // self.every_s


Calendar: TypeAlias = CronCalendar | IntervalCalendar


def parse(
    *, cron: str | None = None, every: str | None = None, offset: str | None = None, zone: str
) -> Calendar:
    """Return the calendar that a user describes, by `cron` or by `every`.

    Args:
        cron: Five fields; six, with seconds first; or a name such as `@daily`.
        every: A duration such as `1h30m`, of 1 second to 366 days.
        offset: A duration shorter than `every`, which it shifts.
        zone: An IANA name.

    Raises:
        InvalidSchedule: A text cannot be read, or there is never an instant.
        InvalidZone: There is no zone of this name.
    """
    zone_of(zone)
    if cron is None and every is None:
        raise InvalidSchedule("cron", 1, "is missing, and so is every: use one of them")
    if cron is None:
        return _interval(every or "", offset, zone)
    if every is not None:
        raise InvalidSchedule("every", 1, "stands beside cron: use one of them")
    if offset is not None:
        raise InvalidSchedule("offset", 1, "stands without every")
    return _cron(cron, zone)


def instants(calendar: Calendar, after_ms: int, count: int) -> list[Instant]:
    """Return the first instants after another, in order: `count`, or fewer if the calendar ends.

    Raises:
        InvalidSchedule: There is none within ten years.
    """
    found: list[Instant] = []
    while len(found) < count and (instant := calendar.after(after_ms)) is not None:
        found.append(instant)
        after_ms = instant.ms
    if not found:
        field = "cron" if isinstance(calendar, CronCalendar) else "every"
        raise InvalidSchedule(field, 1, "there is no instant within ten years")
    return found


def _interval(every: str, offset: str | None, zone: str) -> IntervalCalendar:
    every_s = _duration_s("every", every)
    if not 1 <= every_s <= _EVERY_S_MAX:
        raise InvalidSchedule("every", 1, "use 1s to 366d")
    offset_s = 0 if offset is None else _duration_s("offset", offset)
    if offset_s >= every_s:
        raise InvalidSchedule("offset", 1, "must be shorter than every")
    return IntervalCalendar(every_s=every_s, offset_s=offset_s, zone=zone)


def _duration_s(field: str, text: str) -> int:
    read = _DURATION.match(text)
    assert read is not None
    if not text or read.end() < len(text):
        raise InvalidSchedule(
            field, read.end() + 1, "use days, hours, minutes and seconds, as in 1d, 1h30m or 90s"
        )
    return sum(
        int(number or 0) * unit_s for number, unit_s in zip(read.groups(), _UNITS_S, strict=True)
    )


def _cron(text: str, zone: str) -> CronCalendar:
    if len(text) > _CRON_CHARS_MAX:
        wrong = f"at most {_CRON_CHARS_MAX} characters"
        raise InvalidSchedule("cron", _CRON_CHARS_MAX + 1, wrong)
    named = text.strip()
    if named.startswith("@") and named not in NAMED:
        wrong = f"use {', '.join(NAMED)}, or 5 or 6 fields"
        raise InvalidSchedule("cron", text.index("@") + 1, wrong)
    words = _words(NAMED.get(named, text))
    fields = " ".join(word for _, word in words)
    made = CronCalendar(fields=fields if len(words) == len(_FIELDS) else f"0 {fields}", zone=zone)
    try:
        never = made.first(0) is None
    except CronSimError as error:
        raise _fault(words) from error
    if never:
        raise _no_such_day(words)
    return made


def _words(text: str) -> list[tuple[int, str]]:
    """Return the fields of a cron expression, each with its position from 1."""
    # Beyond ASCII there are digits and letters that only look like those of cron.
    for position, each in enumerate(text, start=1):
        if not each.isascii():
            raise InvalidSchedule("cron", position, f"{each!r} has no meaning")
    words = [(word.start() + 1, word[0]) for word in re.finditer(r"\S+", text)]
    if not 5 <= len(words) <= 6:
        position = words[6][0] if len(words) > 6 else len(text) + 1
        wrong = f"has {len(words)} fields: use 5, or 6 with seconds first"
        raise InvalidSchedule("cron", position, wrong)
    return words


def _fault(words: list[tuple[int, str]]) -> InvalidSchedule:
    """Return the refusal of an expression, with the first term that cannot be read."""
    first = len(_FIELDS) - len(words)
    for field, (name, allowed) in enumerate([*_FIELDS.items()][first:], start=first):
        position, word = words[field - first]
        for term in word.split(","):
            if not term or not _is_term(term, field):
                wrong = f"the {name} cannot be {term!r}: use {allowed}, ranges as 1-5, steps as */2"
                return InvalidSchedule("cron", position, wrong)
            position += len(term) + 1
    return _no_such_day(words)


def _is_term(term: str, field: int) -> bool:
    fields = ["*"] * len(_FIELDS)
    fields[field] = term
    try:
        CronSim(" ".join(fields), EPOCH)
    except CronSimError:
        return False
    return True


def _no_such_day(words: list[tuple[int, str]]) -> InvalidSchedule:
    position, _ = words[_DAY_FIELD - len(_FIELDS)]
    return InvalidSchedule("cron", position, "no year has such a day")


def _shown(unix_s: int, zone: str) -> Instant:
    shown = zone_of(zone).shows(unix_s)
    return Instant(ms=unix_s * 1000, local=shown.replace(fold=0).isoformat(), fold=shown.fold)
