"""The page of the library's hazards: each has its row, and every row tests that exist."""

from __future__ import annotations

import re

import pytest

from .named_tests import ROOT, named_in

_TEXT = (ROOT / "docs" / "hazards.md").read_text()
_ROW = re.compile(
    r"^\| ([HD]\d+b?) \| ([^|]+) \| ([^|]+) \| ([^|]+) \| (met|checked|gone) \|$", re.MULTILINE
)
_ROWS = _ROW.findall(_TEXT)
_SHOWN_BY = sorted({code for row in _ROWS for code in re.findall(r"`([^`]+)`", row[3])})


def test_every_hazard_has_one_row() -> None:
    """The rows are in order, without a repeat or a gap."""
    hazards = [f"H{number}" for number in range(1, 33)]
    hazards.insert(6, "H6b")
    rules = [f"D{number}" for number in range(6, 11)]

    assert [*hazards, *rules] == [row[0] for row in _ROWS]
    assert len(_ROWS) + 2 == len([line for line in _TEXT.splitlines() if line.startswith("|")])


@pytest.mark.parametrize("shown_by", _SHOWN_BY)
def test_what_a_row_names_is_there(shown_by: str) -> None:
    """A row names tests that exist in their files."""
    path, _, name = shown_by.partition("::")

    assert name in named_in(path), f"{path} has no test {name}"


def test_no_row_is_without_a_test() -> None:
    """Without a test, nothing shows that the hazard is averted."""
    assert [] == [row[0] for row in _ROWS if "::" not in row[3]]
