"""Output: results on standard output, as a table or as JSON; notes on standard error."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from codeq_cluster.cli.support.outcome import Usage
from codeq_cluster.client import Page

# What a list shows without --limit, and the most that is gathered in memory for one table.
LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000

_PAGE_MAX = 500
_CELL_CHARS_MAX = 100
_PLAIN_WIDTH = 250


def document(value: object, *, compact: bool) -> None:
    """Print a JSON document: one line, or indented for a reader."""
    indent = None if compact else 2
    print(json.dumps(value, indent=indent, ensure_ascii=False, default=_plain))


def _plain(record: object) -> object:
    """Return a record of the client as the API has it."""
    return json.loads(msgspec.json.encode(record))


def note(text: str) -> None:
    """Say something beside the result."""
    print(" ".join(text.split()), file=sys.stderr, flush=True)


def table(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table; the first column is never broken, so that ids can be copied."""
    made = Table(box=None, pad_edge=False)
    for position, header in enumerate(headers):
        made.add_column(header, no_wrap=position == 0, overflow="fold")
    for row in rows:
        made.add_row(*map(cell, row))
    console().print(made)


def rows_of(value: object) -> list[Mapping[str, object]]:
    """Return the rows of a list that an answer holds."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def console() -> Console:
    """Return where tables go: as wide as the terminal, and wide where there is none."""
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return _Console(highlight=False, markup=False, emoji=False, width=width)


class _Console(Console):
    """One whose reader may have had enough; what a command then ends with is for `main` to say."""

    def on_broken_pipe(self) -> None:
        """Let the error through, which the library would make an exit code of its own."""
        raise BrokenPipeError


def notes() -> Console:
    """Return where a bar goes: beside the result, as notes do."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def cell(value: object) -> str:
    """Return a value in one line of bounded length, without what could command a terminal."""
    match value:
        case None | "":
            return "-"
        case True:
            return "yes"
        case False:
            return "no"
        case list() | tuple():
            return cell(",".join(map(str, value)))
    line = "".join(each if each.isprintable() else " " for each in str(value))
    return line if len(line) <= _CELL_CHARS_MAX else f"{line[: _CELL_CHARS_MAX - 1]}…"


def add_paging(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a list."""
    parser.add_argument(
        "--limit",
        type=int,
        default=LIMIT_DEFAULT,
        metavar="N",
        help=f"entries at most, 1 to {LIMIT_MAX}; default: {LIMIT_DEFAULT}",
    )
    parser.add_argument("--cursor", default="", help="go on where a list before this one ended")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the flag for ids alone."""
    parser.add_argument("-q", "--quiet", action="store_true", help="print ids alone, one a line")


async def gathered(
    options: argparse.Namespace, fetch: Callable[[int, str], Awaitable[Page]]
) -> Page:
    """Read as many pages as `--limit` needs.

    Args:
        options: With the flags of `add_paging`.
        fetch: One page of so many entries at most, from a cursor.

    Raises:
        Usage: The limit is out of bounds.
    """
    if not 1 <= options.limit <= LIMIT_MAX:
        raise Usage(f"--limit {options.limit}: allowed is 1 to {LIMIT_MAX}")
    rows: list[Mapping[str, object]] = []
    cursor = options.cursor
    while True:
        page = await fetch(min(_PAGE_MAX, options.limit - len(rows)), cursor)
        rows += page.rows
        cursor = page.cursor
        if not cursor or len(rows) >= options.limit:
            return Page(rows, cursor)


def listed(
    options: argparse.Namespace, page: Page, *, name: str, columns: Mapping[str, str]
) -> None:
    """Print a list as the flags say.

    Args:
        options: With `json`, and `quiet` where the command has it.
        page: Its rows, as the API has them.
        name: Of the list in JSON.
        columns: Field by header; the first is the id.
    """
    if options.json:
        shown: dict[str, object] = {name: page.rows}
        if page.cursor:
            shown["cursor"] = page.cursor
        document(shown, compact=True)
        return
    fields = tuple(columns.values())
    if getattr(options, "quiet", False):
        for row in page.rows:
            print(row.get(fields[0], ""))
    else:
        table(tuple(columns), ([row.get(field) for field in fields] for row in page.rows))
    if page.cursor:
        note(f"there are more: --cursor={page.cursor}")
