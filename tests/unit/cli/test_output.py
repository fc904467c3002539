"""Output: the format of lists, and how much of them is read."""

from __future__ import annotations

import argparse
import json
from io import StringIO

import pytest
from rich.console import Console

from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.cli.support.output import (
    _print_stacked,
    _widths,
    cell,
    columns,
    gathered,
    listed,
    table,
)
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
    """A worker's error must not control the operator's terminal."""
    assert shown == cell(value)


def test_a_header_follows_from_its_field() -> None:
    """Words are apart, an instant drops its `At`, seconds are a unit; others are named."""
    found = columns("id inProgress createdAt oldestReadySeconds at lastStatus", lastStatus="WAS")

    assert {
        "ID": "id",
        "IN PROGRESS": "inProgress",
        "CREATED": "createdAt",
        "OLDEST READY (S)": "oldestReadySeconds",
        "AT": "at",
        "WAS": "lastStatus",
    } == found


def test_a_list_is_a_table_ids_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The cursor is a note, so that ids can be piped."""
    page = Page([{"id": "a", "error": "odd"}, {"id": "b"}], "-next")
    listed(_options(), page, name="tasks", columns=_COLUMNS)
    table = capsys.readouterr()
    listed(_options(quiet=True), page, name="tasks", columns=_COLUMNS)
    ids = capsys.readouterr()
    listed(_options(json=True), page, name="tasks", columns=_COLUMNS)
    document = capsys.readouterr()

    assert [
        ["ID", "ERROR"],
        ["a", "odd"],
        ["b", "-"],
    ] == [line.split() for line in table.out.splitlines()]
    assert "a\nb\n" == ids.out
    assert table.err == ids.err == "there are more: --cursor=-next\n"
    assert {"tasks": list(page.rows), "cursor": "-next"} == json.loads(document.out)
    assert "" == document.err


_ID = "984b572e-84db-c311-f621-63e248647fbb"
_TIME = "2026-11-22T21:15:17.336Z"


def test_a_table_that_fits_breaks_headers_before_addresses() -> None:
    """At 80 columns, the rows on single lines would be three columns too wide."""
    headers = ("NODE", "HTTP", "LINK", "CONNECTED", "VOTER", "KNOWS LEVEL", "LEADS")
    row = ("n1", "http://127.0.0.1:18080", "127.0.0.1:28080", "yes", "yes", "2", "0,3")
    widths = _widths([*zip(headers, row, strict=True)], 80)

    assert [4, 22, 15, 9, 5, 8, 5] == widths


@pytest.mark.parametrize("width", [80, 120, 250])
def test_a_table_is_as_wide_as_there_is_room(width: int) -> None:
    """Ids and times stay whole and long texts wrap, or the table does not fit at all."""
    columns = [("ID", _ID), ("EVENT", "greet"), ("UPDATED", _TIME), ("ERROR", "e" * 90)]
    widths = _widths(columns, width)

    assert (width == 80) == (widths is None)
    if widths is not None:
        assert [len(_ID), 5, len(_TIME)] == widths[:3]
        assert min(width, len(_ID) + 5 + len(_TIME) + 90 + 6) == sum(widths) + 2 * 3


def test_rows_that_do_not_fit_are_a_few_lines_each() -> None:
    """The id comes first, then the other cells; empty ones are left out."""
    output = StringIO()
    console = Console(file=output, width=40, highlight=False, markup=False)
    cells = [[_ID, "greet", "-", _TIME, "odd size"]]
    _print_stacked(console, ("ID", "EVENT", "PRIORITY", "UPDATED", "ERROR"), cells)

    assert [
        _ID,
        "    event greet",
        f"    updated {_TIME}",
        "    error odd size",
    ] == [line.rstrip() for line in output.getvalue().splitlines()]


def test_without_a_terminal_a_row_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The line may have any width."""
    table([f"COLUMN {n}" for n in range(12)], [["x" * 100] * 12, ["y"] * 12])
    table(["ID", "MEANING"], [["a", "two words " * 50]], chars_max=500)

    lines = capsys.readouterr().out.splitlines()
    assert [["x" * 100] * 12, ["y"] * 12] == [line.split() for line in lines[1:3]]
    assert [["a", *["two", "words"] * 50]] == [line.split() for line in lines[4:]]


async def test_pages_are_read_until_the_limit() -> None:
    """A short or empty page with a cursor is not the end."""
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

    assert ["a", "b", "c"] == [row["id"] for row in page.rows]
    assert ("3", [(3, ""), (2, "1"), (2, "2")]) == (page.cursor, asked)


@pytest.mark.parametrize("limit", [0, -1, 100_001])
async def test_a_limit_out_of_bounds_is_a_wrong_use(limit: int) -> None:
    """No request is sent."""

    async def fetch(_: int, __: str) -> Page:
        raise AssertionError

    with pytest.raises(UsageRefused, match="must be 1 to 100000"):
        await gathered(_options(limit=limit), fetch)
