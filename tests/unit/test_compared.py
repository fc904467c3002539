"""The comparison with codeQ: every weakness has its row, and every row a test that exists."""

from __future__ import annotations

import re

import pytest

from .named_tests import ROOT, named_in

_TEXT = (ROOT / "docs" / "compared.md").read_text()

# The number of weaknesses in each section, which are numbered from 1.
_WEAKNESSES = {1: 19, 2: 10, 3: 9, 4: 17, 5: 12, 6: 14, 7: 12, 8: 9, 9: 4, 10: 30, 11: 10}
_NUMBERS = [
    f"{section}.{number}"
    for section, count in _WEAKNESSES.items()
    for number in range(1, count + 1)
]

_ROW = re.compile(r"^\| (\d+\.\d+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \|$", re.MULTILINE)
_ROWS = _ROW.findall(_TEXT)
_SHOWN_BY = sorted({code for row in _ROWS for code in re.findall(r"`([^`]+)`", row[3])})
_OPEN = ("not yet", "not promised")


def test_every_weakness_has_one_row() -> None:
    """The rows follow the list's order, without a repeat or a gap."""
    assert _NUMBERS == [number for number, *_ in _ROWS]


def test_nothing_in_the_tables_is_no_row() -> None:
    """A row in another form would escape the other tests here."""
    lines = [line for line in _TEXT.splitlines() if line.startswith("|")]
    heads = [line for line in lines if line.startswith(("| no. |", "|---"))]

    assert len(heads) + len(_ROWS) == len(lines)
    assert 2 * len(_WEAKNESSES) == len(heads)


@pytest.mark.parametrize("shown_by", _SHOWN_BY)
def test_what_a_row_names_is_there(shown_by: str) -> None:
    """It names a test in a file, a target of make, or a module that can be run."""
    words = shown_by.split()
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "python":
        assert "-m" == words[1]
        assert (ROOT / (words[2].replace(".", "/") + ".py")).is_file()
    else:
        path, _, name = shown_by.partition("::")
        assert name in named_in(path), f"{path} has no test {name}"


def test_a_row_without_a_test_says_why() -> None:
    """A missing feature is called missing, with an explanation."""
    bare = [(number, here) for number, _, here, shown_by in _ROWS if "`" not in shown_by]

    for number, here in bare:
        assert any(word in here.lower() for word in _OPEN), number
        assert len(here) > len("Not promised."), number


def test_the_documents_it_refers_to_are_there() -> None:
    """Its links lead to files beside it or to its own sections."""
    sections = {
        re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        for line in _TEXT.splitlines()
        if line.startswith("## ")
    }
    for target in re.findall(r"\]\(([^)]+)\)", _TEXT):
        file, _, section = target.partition("#")

        assert not file or (ROOT / "docs" / file).is_file(), target
        assert not section or file or section in sections, target
