"""Times: one format of instants, in the zone that the flags choose."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from codeq_cluster.cli.support.output import document, table
from codeq_cluster.cli.support.times import Times, add_times, dated, instant, times_of

_NOON = datetime(2026, 1, 31, 12, 0, 0, 123000, tzinfo=UTC)
_SUMMER = datetime(2026, 7, 31, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in the time zone of Berlin."""
    with monkeypatch.context() as changed:
        changed.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("times", "alone", "header", "cell"),
    [
        (Times.LOCAL, "2026-01-31 13:00:00+01:00", "AT (+01:00)", "2026-01-31 13:00:00"),
        (Times.UTC, "2026-01-31 12:00:00+00:00", "AT (+00:00)", "2026-01-31 12:00:00"),
        (Times.ISO, "2026-01-31T12:00:00.123Z", "AT", "2026-01-31T12:00:00.123Z"),
    ],
)
def test_an_instant_has_its_offset_beside_it_or_in_the_header(
    times: Times, alone: str, header: str, cell: str
) -> None:
    """A column says its offset once; RFC 3339 has it in each instant."""
    assert alone == times.text(_NOON)
    assert (header, [cell, "-"]) == times.column("AT", [_NOON, "-"])


@pytest.mark.parametrize("times", Times)
def test_every_printed_form_names_its_instant(times: Times) -> None:
    """What was printed can be passed to --run-at."""
    assert _SUMMER == datetime.fromisoformat(times.text(_SUMMER))


def test_a_column_across_a_change_of_clocks_has_an_offset_for_each_instant() -> None:
    """One header could not speak for both."""
    assert ("AT", ["2026-01-31 13:00:00+01:00", "2026-07-31 14:00:00+02:00"]) == (
        Times.LOCAL.column("AT", [_NOON, _SUMMER])
    )


def test_a_column_without_instants_keeps_its_header() -> None:
    """There is no offset to speak of."""
    assert ("AT", [None, 7]) == Times.LOCAL.column("AT", [None, 7])


def test_the_end_of_the_calendar_is_printed() -> None:
    """There is no later hour for another zone."""
    found = instant("9999-12-31T23:59:59.999Z")
    assert isinstance(found, datetime)

    assert "9999-12-31 23:59:59+00:00" == Times.LOCAL.text(found)


def test_only_fields_that_hold_instants_are_read_as_such() -> None:
    """An error or a payload that looks like an instant stays as it is."""
    text = "2026-01-31T12:00:00Z"
    row = dated({"error": text, "updatedAt": text, "since": "?", "history": [{"endedAt": text}]})

    assert (text, "?") == (row["error"], row["since"])
    assert [datetime(2026, 1, 31, 12, tzinfo=UTC)] * 2 == [
        row["updatedAt"],
        row["history"][0]["endedAt"],  # type: ignore[index]
    ]


def test_json_has_times_as_sent_whatever_the_flags() -> None:
    """A program's input does not depend on the zone of the machine."""
    parser = argparse.ArgumentParser()
    add_times(parser)
    parser.add_argument("--json", action="store_true")

    assert [Times.LOCAL, Times.UTC, Times.ISO, Times.ISO, Times.ISO] == [
        times_of(parser.parse_args(flags))
        for flags in ([], ["--utc"], ["--iso"], ["--json"], ["--json", "--utc"])
    ]


def test_a_table_and_a_document_print_instants_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """Both go through the one format."""
    table(("ID", "AT"), [["a", _NOON]])
    document({"at": _NOON}, compact=True, times=Times.LOCAL)

    header, row, shown = capsys.readouterr().out.splitlines()
    assert ["ID", "AT (+01:00)"] == header.rstrip().split(maxsplit=1)
    assert "a   2026-01-31 13:00:00" == row.rstrip()
    assert '{"at": "2026-01-31 13:00:00+01:00"}' == shown
