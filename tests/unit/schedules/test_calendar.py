"""Calendar: the instants of cron expressions and intervals, through every kind of change."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeq_cluster.errors import InvalidSchedule, InvalidZone
from codeq_cluster.schedules.calendar import Calendar, IntervalCalendar, parse

BERLIN = "Europe/Berlin"
LORD_HOWE = "Australia/Lord_Howe"


def _ms(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def _fired(calendar: Calendar, after: str, until: str) -> list[str]:
    """Return the instants between two days as `UTC | local`, with `again` for a second time."""
    ms, fired = _ms(after), []
    while (found := calendar.after(ms)) is not None and found.ms < _ms(until):
        assert found.ms > ms
        ms = found.ms
        utc = datetime.fromtimestamp(ms / 1000, UTC).replace(tzinfo=None)
        fired.append(f"{utc:%dT%H:%M:%S} | {found.local[8:]}{' again' if found.fold else ''}")
    return fired


def _cron(text: str, zone: str = BERLIN) -> Calendar:
    return parse(cron=text, zone=zone)


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_skipped_time_fires_at_the_end_of_the_gap(cron: str) -> None:
    """Berlin, 29 March 2026: 02:00 to 03:00 does not exist."""
    assert [
        "28T01:30:00 | 28T02:30:00",
        "29T01:00:00 | 29T02:30:00",
        "30T00:30:00 | 30T02:30:00",
    ] == _fired(_cron(cron), "2026-03-28", "2026-03-31")


@pytest.mark.parametrize("cron", ["30 2 * * *", "0 30 2 * * *"])
def test_a_repeated_time_fires_the_first_time(cron: str) -> None:
    """Berlin, 25 October 2026: 02:00 to 03:00 comes twice."""
    assert [
        "24T00:30:00 | 24T02:30:00",
        "25T00:30:00 | 25T02:30:00",
        "26T01:30:00 | 26T02:30:00",
    ] == _fired(_cron(cron), "2026-10-24", "2026-10-27")


def test_a_search_that_begins_in_the_repeated_hour_fires_nothing_of_it_again() -> None:
    """Times before the end of the first pass have fired; the next one is beyond it."""
    assert ["25T02:00:00 | 25T03:00:00"] == _fired(
        _cron("0,30 2-3 * * *"), "2026-10-25T01:10", "2026-10-25T02:20"
    )


def test_skipped_times_of_one_job_are_one_instant() -> None:
    """It has the latest nominal time, which may be the one that the clock shows."""
    night = ("2026-03-29", "2026-03-29T01:50")

    assert ["29T01:00:00 | 29T02:40:00"] == _fired(_cron("0,20,40 2 * * *"), *night)
    assert ["29T01:00:00 | 29T03:00:00", "29T01:30:00 | 29T03:30:00"] == _fired(
        _cron("0,30 2,3 * * *"), *night
    )
    assert ["29T01:00:00 | 29T02:59:50"] == _fired(_cron("*/10 50-59 2 * * *"), *night)


def test_other_jobs_follow_elapsed_time() -> None:
    """Nothing is caught up after the gap, and everything in the repeated hour fires again."""
    assert ["29T01:00:00 | 29T03:00:00"] == _fired(
        _cron("0 */3 * * *"), "2026-03-29T00:00", "2026-03-29T03:00"
    )
    assert [] == _fired(_cron("* 2 * * *"), "2026-03-29", "2026-03-29T23:00")
    for cron in ("*/30 2 * * *", "0 */30 2 * * *"):
        assert [
            "25T00:00:00 | 25T02:00:00",
            "25T00:30:00 | 25T02:30:00",
            "25T01:00:00 | 25T02:00:00 again",
            "25T01:30:00 | 25T02:30:00 again",
        ] == _fired(_cron(cron), "2026-10-24T23:59", "2026-10-25T23:00")


def test_a_change_by_half_an_hour() -> None:
    """Lord Howe: 02:00 to 02:30 is skipped in October, 01:30 to 02:00 comes twice in April."""
    assert ["03T15:30:00 | 04T02:15:00"] == _fired(
        _cron("15 2 * * *", LORD_HOWE), "2026-10-03T14:00", "2026-10-04T14:00"
    )
    assert ["04T14:45:00 | 05T01:45:00"] == _fired(
        _cron("45 1 * * *", LORD_HOWE), "2026-04-04T14:00", "2026-04-05T14:00"
    )
    assert [
        "04T14:20:00 | 05T01:20:00",
        "04T14:40:00 | 05T01:40:00",
        "04T15:10:00 | 05T01:40:00 again",
        "04T15:30:00 | 05T02:00:00",
    ] == _fired(_cron("*/20 * * * *", LORD_HOWE), "2026-04-04T14:00", "2026-04-04T15:40")


def test_a_midnight_that_does_not_exist() -> None:
    """Santiago, 6 September 2026: the day begins at 01:00."""
    found = _fired(_cron("0 0 * * *", "America/Santiago"), "2026-09-05", "2026-09-08")

    assert [
        "05T04:00:00 | 05T00:00:00",
        "06T04:00:00 | 06T00:00:00",
        "07T03:00:00 | 07T00:00:00",
    ] == found
    assert ["06T04:00:00 | 06T01:00:00"] == _fired(
        _cron("*/60 * * * *", "America/Santiago"), "2026-09-06T03:00", "2026-09-06T05:00"
    )


def test_a_day_that_does_not_exist() -> None:
    """Apia had no 30 December 2011: its job runs at the end of the gap, as after any gap."""
    assert [
        "29T12:30:00 | 29T02:30:00",
        "30T10:00:00 | 30T02:30:00",
        "30T12:30:00 | 31T02:30:00",
        "31T12:30:00 | 01T02:30:00",
    ] == _fired(_cron("30 2 * * *", "Pacific/Apia"), "2011-12-29", "2012-01-01")
    assert [] == _fired(_cron("0 */6 30 12 *", "Pacific/Apia"), "2011-12-29", "2012-01-09")


def test_leap_years() -> None:
    """The 29th of February is found four years ahead, and eight over the year 2100."""
    calendar = _cron("0 0 29 2 *", "UTC")
    first = calendar.after(_ms("2026-01-01"))
    second = calendar.after(_ms("2096-03-01"))

    assert first is not None
    assert second is not None
    assert ("2028-02-29T00:00:00", "2104-02-29T00:00:00") == (first.local, second.local)


def test_ten_years_are_searched() -> None:
    """A leap day that is a Sunday comes once in 28 years."""
    calendar = _cron("0 0 29 2 */7")

    assert calendar.after(_ms("2021-01-01")) is None
    assert calendar.after(_ms("2023-01-01")) is not None
    assert calendar.after(_ms("9899-01-01")) is None
    assert _cron("* 2 25-31 3 */7").after(_ms("2026-01-01")) is None


def test_days_of_month_and_week_are_both_needed_only_beside_a_star() -> None:
    """Two that are named are alternatives, as in every cron."""
    fortnight = ("2026-06-01", "2026-06-15")

    for cron, days in {
        "0 9 1,8,15 * 0": ["01", "07", "08", "14"],
        "0 9 */7 * 0": [],
        "0 9 */7 * 1": ["01", "08"],
        "0 9 8 * */2": [],
        "0 9 9 * */2": ["09"],
    }.items():
        assert days == [each[:2] for each in _fired(_cron(cron), *fortnight)], cron


@pytest.mark.parametrize(
    ("cron", "days"),
    [
        ("0 9 * * 0", "07 14 21 28"),
        ("0 9 * * 7", "07 14 21 28"),
        ("0 9 * jun sun", "07 14 21 28"),
        ("0 9 * * FRI#2", "12"),
        ("0 9 * * 5L", "26"),
        ("0 9 L * *", "30"),
        ("0 9 LW * *", "30"),
        ("0 9 28-30 6 1-5", "01 02 03 04 05 08 09 10 11 12 15 16 17 18 19 22 23 24 25 26 28 29 30"),
        ("@monthly", "01"),
        ("@weekly", "07 14 21 28"),
        ("@yearly", ""),
    ],
)
def test_days_are_named_as_in_cron(cron: str, days: str) -> None:
    """June 2026 begins on a Monday."""
    fired = _fired(_cron(cron, "UTC"), "2026-05-31T23:59", "2026-07-01")

    assert days == " ".join(each[:2] for each in fired)


@pytest.mark.parametrize(
    ("name", "cron"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@annually", "@yearly"),
    ],
)
def test_a_name_stands_for_fields(name: str, cron: str) -> None:
    """They are the same calendar."""
    assert _cron(name) == _cron(cron)


def test_the_next_instant_is_strictly_after() -> None:
    """An instant is not after itself, and is after the millisecond before it."""
    noon = _ms("2026-06-01T12:00")
    for calendar in (_cron("0 12 * * *", "UTC"), parse(every="1h", zone="UTC")):
        before, at = calendar.after(noon - 1), calendar.after(noon)

        assert before is not None
        assert at is not None
        assert before.ms == noon < at.ms


def test_an_interval_is_aligned_to_the_epoch() -> None:
    """Its start makes no difference, and clocks make none either."""
    calendar = parse(every="6h", offset="15m", zone=BERLIN)

    assert [
        "28T18:15:00 | 28T19:15:00",
        "29T00:15:00 | 29T01:15:00",
        "29T06:15:00 | 29T08:15:00",
    ] == _fired(calendar, "2026-03-28T17:59", "2026-03-29T07:00")
    assert calendar.after(0) == calendar.after(_ms("1970-01-01T00:10"))


@pytest.mark.parametrize(
    ("every", "seconds"),
    [("1s", 1), ("90s", 90), ("15m", 900), ("1h30m", 5400), ("1d", 86_400), ("366d", 31_622_400)],
)
def test_a_duration_has_units(every: str, seconds: int) -> None:
    """Days to seconds, each at most once."""
    assert IntervalCalendar(every_s=seconds, offset_s=0, zone="UTC") == parse(
        every=every, zone="UTC"
    )


@pytest.mark.parametrize(
    ("said", "field", "position", "text"),
    [
        ({"cron": "61 2 * * *"}, "cron", 1, "the minute cannot be '61'"),
        ({"cron": "0 2,3,24 * * *"}, "cron", 7, "the hour cannot be '24'"),
        ({"cron": "0 5-1 * * *"}, "cron", 3, "the hour cannot be '5-1'"),
        ({"cron": "0 0 */0 * *"}, "cron", 5, "the day of the month cannot be '*/0'"),
        ({"cron": " 60 0 0 * * *"}, "cron", 2, "the second cannot be '60'"),
        ({"cron": "0 0 * FOO *"}, "cron", 7, "the month cannot be 'FOO'"),
        ({"cron": "0 0 * * MON#6"}, "cron", 9, "the day of the week cannot be 'MON#6'"),
        ({"cron": "0 0 1,,2 * *"}, "cron", 7, "the day of the month cannot be ''"),
        ({"cron": "0 0 31 2 *"}, "cron", 5, "no year has such a day"),
        ({"cron": "0 0 0 30-31 FEB *"}, "cron", 7, "no year has such a day"),
        ({"cron": "* * *"}, "cron", 6, "has 3 fields"),
        ({"cron": ""}, "cron", 1, "has 0 fields"),
        ({"cron": "0 0 * * * * *"}, "cron", 13, "has 7 fields"),
        ({"cron": "@reboot"}, "cron", 1, "use @hourly, @daily"),
        ({"cron": "0 ٣ * * *"}, "cron", 3, "'٣' has no meaning"),
        ({"cron": "0 " * 200}, "cron", 257, "at most 256 characters"),
        ({"every": "5x"}, "every", 1, "use days"),
        ({"every": "1h5x"}, "every", 3, "use days"),
        ({"every": "1m1h"}, "every", 3, "use days"),
        ({"every": ""}, "every", 1, "use days"),
        ({"every": "0s"}, "every", 1, "use 1s to 366d"),
        ({"every": "366d1s"}, "every", 1, "use 1s to 366d"),
        ({"every": "1h", "offset": "1h"}, "offset", 1, "must be shorter"),
        ({"every": "1h", "offset": "-1m"}, "offset", 1, "use days"),
        ({"cron": "* * * * *", "offset": "1m"}, "offset", 1, "stands without every"),
        ({"cron": "* * * * *", "every": "1m"}, "every", 1, "use one of them"),
        ({}, "cron", 1, "is missing"),
    ],
)
def test_a_refusal_names_field_and_position(
    said: dict[str, str], field: str, position: int, text: str
) -> None:
    """The text says what is allowed."""
    with pytest.raises(InvalidSchedule) as refused:
        parse(**said, zone="UTC")

    assert (field, position) == (refused.value.field, refused.value.position)
    assert f"{field}, character {position}: " in str(refused.value)
    assert text in str(refused.value)


@pytest.mark.parametrize("said", [{"cron": "* * * * *"}, {"every": "1m"}])
def test_a_zone_must_exist(said: dict[str, str]) -> None:
    """Also beside an interval, whose nominal times it gives."""
    with pytest.raises(InvalidZone, match="did you mean Europe/Berlin"):
        parse(**said, zone="Europe/Berlim")


@given(
    st.one_of(
        st.text(alphabet="0123456789*/-,#LW@MONFEBsun \t", max_size=40),
        st.lists(st.text(alphabet="0123456789*/-,#LW", max_size=7), min_size=5, max_size=6).map(
            " ".join
        ),
        st.text(max_size=300),
    )
)
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text fails otherwise, and a calendar's instants ascend."""
    for field in ("cron", "every"):
        position, fired = 1, []
        try:
            calendar = parse(**{field: text}, zone=BERLIN)
            ms = _ms("2026-03-28")
            while len(fired) < 3 and (found := calendar.after(ms)) is not None:
                ms = found.ms
                fired.append(ms)
        except InvalidSchedule as refused:
            position = refused.position

        assert 1 <= position <= len(text) + 1
        assert fired == sorted(set(fired))
