"""Command `schedule`: the instants are printed as a table or as JSON."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.cli.main import main


def _said(
    capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> tuple[list[str], str]:
    assert code == main(["schedule", "preview", *arguments])
    printed, noted = capsys.readouterr()
    return [line.rstrip() for line in printed.splitlines()], noted


def test_a_night_with_an_hour_twice_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """A job that follows elapsed time fires again, and the table says so."""
    night = ("--zone", "Europe/Berlin", "--from", "2026-10-25T00:00:00Z", "--utc")
    printed, noted = _said(capsys, "*/30 2 * * *", *night, "--count", "3")

    assert [
        "AT (+00:00)          IN Europe/Berlin",
        "2026-10-25 00:30:00  2026-10-25 02:30:00",
        "2026-10-25 01:00:00  2026-10-25 02:00:00, the second time",
        "2026-10-25 01:30:00  2026-10-25 02:30:00, the second time",
    ] == printed
    assert "rules of time zones: 2" in noted


def test_an_interval_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The answer is printed as the broker gave it."""
    [line], _ = _said(
        capsys, "--every=12h", "--offset=5m", "--from=2026-06-01T00:05:00Z", "--count=2", "--json"
    )

    assert ["2026-06-01T12:05:00", "2026-06-02T00:05:00"] == [
        each["local"] for each in json.loads(line)["instants"]
    ]


def test_what_cannot_be_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The line names field and position."""
    assert "cron, character 4: the hour cannot be '26'" in _said(capsys, "30 26 * * *", code=4)[1]
