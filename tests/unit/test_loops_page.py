"""The page of the loops: each has tests that exist, and every loop that counts failures a row."""

from __future__ import annotations

import re

import pytest

from codeq_cluster.core.loops import Loop

from .named_tests import ROOT, named_in

_TEXT = (ROOT / "docs" / "loops.md").read_text()
_ROWS = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", _TEXT, re.MULTILINE)[1:]
_SHOWN_BY = sorted({code for row in _ROWS for code in re.findall(r"`([^`]+)`", row[3])})
# The row, or one of them, of each name that the metric has.
_COUNTED = {
    Loop.TIMERS: "time",
    Loop.BULK: "bulk jobs",
    Loop.OUTBOX: "outbox",
    Loop.RELAYS: "relays",
    Loop.SCHEDULES: "schedules",
    Loop.CATALOGUE: "catalogue",
    Loop.LISTENERS: "applied entries",
    Loop.CLAIMS: "claims",
    Loop.LISTS: "lists and searches",
    Loop.SCRAPE: "metrics",
    Loop.COUNTERS: "counters",
}


def test_every_loop_has_a_row_and_every_row_a_test() -> None:
    """The metric names no loop that the page leaves out."""
    assert set(Loop) == set(_COUNTED)
    assert set(_COUNTED.values()) <= {row[0] for row in _ROWS}
    assert [] == [row[0] for row in _ROWS if "::" not in row[3]]
    assert len(_ROWS) + 2 == len([line for line in _TEXT.splitlines() if line.startswith("|")])


@pytest.mark.parametrize("shown_by", _SHOWN_BY)
def test_what_a_row_names_is_there(shown_by: str) -> None:
    """A row names tests that exist in their files."""
    path, _, name = shown_by.partition("::")

    assert name in named_in(path), f"{path} has no test {name}"
