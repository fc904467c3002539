"""Output: what lists look like, and how far they are read."""

from __future__ import annotations

import argparse
import json

import pytest

from codeq_cluster.cli.support.outcome import Usage
from codeq_cluster.cli.support.output import cell, gathered, listed
from codeq_cluster.client import Page

_COLUMNS = {"ID": "id", "ERROR": "error"}


def _options(**given: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": False, "quiet": False, "limit": 3, "cursor": ""} | given)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        ("", "-"),
        (0, "0"),
        (True, "yes"),
        ([], "-"),
        ([1, 2], "1,2"),
        ("red \x1b[31m\nline", "red  [31m line"),
        ("x" * 300, "x" * 99 + "…"),
    ],
)
def test_a_cell_is_one_harmless_line(value: object, shown: str) -> None:
    """A worker's error cannot command the operator's terminal."""
    assert cell(value) == shown


def test_a_list_is_a_table_ids_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The cursor is a note, so that ids can be piped."""
    page = Page([{"id": "a", "error": "odd"}, {"id": "b"}], "-next")
    listed(_options(), page, name="tasks", columns=_COLUMNS)
    table = capsys.readouterr()
    listed(_options(quiet=True), page, name="tasks", columns=_COLUMNS)
    ids = capsys.readouterr()
    listed(_options(json=True), page, name="tasks", columns=_COLUMNS)
    document = capsys.readouterr()

    assert [line.split() for line in table.out.splitlines()] == [
        ["ID", "ERROR"],
        ["a", "odd"],
        ["b", "-"],
    ]
    assert ids.out == "a\nb\n"
    assert table.err == ids.err == "there are more: --cursor=-next\n"
    assert json.loads(document.out) == {"tasks": list(page.rows), "cursor": "-next"}
    assert document.err == ""


async def test_pages_are_read_until_the_limit() -> None:
    """A page that is short or empty and has a cursor is no end."""
    pages = {
        "": Page([{"id": "a"}], "1"),
        "1": Page([], "2"),
        "2": Page([{"id": "b"}, {"id": "c"}], "3"),
    }
    asked: list[tuple[int, str]] = []

    async def fetch(limit: int, cursor: str) -> Page:
        asked.append((limit, cursor))
        return pages[cursor]

    page = await gathered(_options(), fetch)

    assert [row["id"] for row in page.rows] == ["a", "b", "c"]
    assert (page.cursor, asked) == ("3", [(3, ""), (2, "1"), (2, "2")])


@pytest.mark.parametrize("limit", [0, -1, 100_001])
async def test_a_limit_out_of_bounds_is_a_wrong_use(limit: int) -> None:
    """Nothing is asked."""

    async def fetch(_: int, __: str) -> Page:
        raise AssertionError

    with pytest.raises(Usage, match="allowed is 1 to 100000"):
        await gathered(_options(limit=limit), fetch)
