"""Output: results on standard output, as a table or as JSON; notes on standard error."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from codeq_cluster.cli.support.flags import number
from codeq_cluster.cli.support.outcome import UsageRefused, fitting
from codeq_cluster.cli.support.times import Times, add_times, dated, times_of
from codeq_cluster.client import Page
from codeq_cluster.client.connection import whole

# The rows of a list without --limit, and the most that one table gathers in memory.
LIMIT_DEFAULT = 50
LIMIT_MAX = 100_000

_PAGE_MAX = 500
CELL_CHARS_MAX = 100
TEXT_CHARS_MAX = 2000  # For long texts, such as a reason.
_PLAIN_WIDTH = 250
_GAP = 2
_WHOLE_CHARS = 25  # A time, or an address with its port.
_BETWEEN = "   "
_INDENT = 4


def document(value: object, *, compact: bool, times: Times = Times.ISO) -> None:
    """Print a JSON document: one line, or indented for a reader, who reads instants in `times`."""

    def plain(part: object) -> object:
        """Return an instant as text, and a record of the client with the API's names."""
        match part:
            case datetime():
                return times.text(part)
            case Struct():
                return {
                    field.encode_name: value
                    for field in fields(part)
                    if (value := getattr(part, field.name)) != field.default
                }
            case _:
                return json.loads(msgspec.json.encode(part), parse_int=whole)

    indent = None if compact else 2
    print(json.dumps(value, indent=indent, ensure_ascii=False, default=plain))


def show(options: argparse.Namespace, value: object) -> None:
    """Print a document as the flags ask: with `--json` as sent, or with times for a reader."""
    shown = dated(value) if isinstance(value, dict) and not options.json else value
    document(shown, compact=options.json, times=times_of(options))


def told(options: argparse.Namespace, value: object, line: object) -> None:
    """Print a line, or with `--json` the document that it stands for."""
    if options.json:
        document(value, compact=True)
    else:
        print(line)


def note(text: str) -> None:
    """Print a note beside the result."""
    print(fitting(text), file=sys.stderr, flush=True)


def table(
    headers: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    times: Times = Times.LOCAL,
    chars_max: int = CELL_CHARS_MAX,
) -> None:
    """Print a table; if it is too wide for the terminal, print each row as a few lines.

    The first column is never wrapped, so that ids can be copied, and neither are short values:
    numbers, times, addresses.

    Args:
        rows: As many values each.
        times: How instants among the values are printed.
        chars_max: Longer values are cut.
    """
    found = [times.column(header, column) for header, *column in zip(headers, *rows, strict=True)]
    headers = [header for header, _ in found]
    columns = [(header, *(cell(value, chars_max) for value in values)) for header, values in found]
    cells = [*zip(*columns, strict=True)][1:]
    printed = console()
    if not printed.is_terminal:
        # A program reads one row per line, however long.
        whole = sum(max(map(len, column)) + _GAP for column in columns)
        printed.width = max(printed.width, whole)
    widths = _widths(columns, printed.width)
    if widths is None:
        _print_stacked(printed, headers, cells)
        return
    made = Table(box=None, pad_edge=False)
    for header, width in zip(headers, widths, strict=True):
        made.add_column(header, width=width, overflow="fold")
    for row in cells:
        made.add_row(*row)
    printed.print(made)


def _widths(columns: Sequence[tuple[str, ...]], width: int) -> list[int] | None:
    """Return the width of each column, at most `width` in all; None if they do not fit.

    Headers may be wrapped at their spaces, and long cells of all columns but the first.
    """
    fitting = []
    for position, (header, *cells) in enumerate(columns):
        longest = max(map(len, cells), default=0)
        word = max(map(len, header.split()), default=0)
        fitting.append(max(word, longest if position == 0 else min(longest, _WHOLE_CHARS)))
    spare = width - sum(fitting) - _GAP * (len(fitting) - 1)
    if spare < 0:
        return None
    for position, column in enumerate(columns):
        more = min(spare, max(map(len, column)) - fitting[position])
        fitting[position] += more
        spare -= more
    return fitting


def _print_stacked(
    printed: Console, headers: Sequence[str], cells: Sequence[Sequence[str]]
) -> None:
    """Print each row as its first cell, with the other cells below."""
    for first, *others in cells:
        printed.print(Text(first, style="bold"), soft_wrap=True)
        line = ""
        for header, value in zip(headers[1:], others, strict=True):
            said = f"{header.lower()} {value}" if value != "-" else ""
            if line and len(f"{line}{_BETWEEN}{said}") > printed.width - _INDENT:
                printed.print(Padding(Text(line), (0, 0, 0, _INDENT)))
                line = said
            else:
                line = _BETWEEN.join(filter(None, (line, said)))
        if line:
            printed.print(Padding(Text(line), (0, 0, 0, _INDENT)))


def columns(fields: str, **headers: str) -> dict[str, str]:
    """Return the columns of a table: each field of an answer, between spaces, by its header.

    The header of `inProgress` is IN PROGRESS, of `createdAt` CREATED, of `oldestReadySeconds`
    OLDEST READY (S); `headers` has others, by field.
    """
    return {headers.get(field) or _header(field): field for field in fields.split()}


def _header(field: str) -> str:
    words = re.sub("[A-Z]", r" \g<0>", field).upper().removesuffix(" AT")
    return re.sub(" SECONDS$", " (S)", words)


def rows_of(value: object) -> list[Mapping[str, object]]:
    """Return the rows of a list in an answer."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def console() -> Console:
    """Return the console for tables: as wide as the terminal, and very wide without one."""
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return _Console(highlight=False, markup=False, emoji=False, width=width)


class _Console(Console):
    """A console whose reader may close the pipe; `main` decides how the command ends then."""

    def on_broken_pipe(self) -> None:
        """Raise it for `main`: the library would end the process with its own exit code."""
        raise BrokenPipeError


def notes() -> Console:
    """Return the console for bars: standard error, as for notes."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def cell(value: object, chars_max: int = CELL_CHARS_MAX) -> str:
    """Return a value as one line of bounded length, without control characters for a terminal."""
    match value:
        case None | "":
            return "-"
        case True:
            return "yes"
        case False:
            return "no"
        case list() | tuple():
            return cell(",".join(map(str, value)), chars_max)
    line = "".join(each if each.isprintable() else " " for each in str(value))
    return line if len(line) <= chars_max else f"{line[: chars_max - 1]}…"


def add_limit(parser: argparse.ArgumentParser, default: int = LIMIT_DEFAULT) -> None:
    """Add the flag for the number of rows; the command must call `check_limit`."""
    number(
        parser,
        "--limit",
        f"at most so many entries, 1 to {LIMIT_MAX}; default: {default}",
        default=default,
    )


def check_limit(options: argparse.Namespace) -> None:
    """Raise Usage for a limit out of bounds."""
    if not 1 <= options.limit <= LIMIT_MAX:
        raise UsageRefused(f"--limit {options.limit}: must be 1 to {LIMIT_MAX}")


def add_paging(parser: argparse.ArgumentParser, default: int = LIMIT_DEFAULT) -> None:
    """Add the flags of a list."""
    add_limit(parser, default)
    parser.add_argument("--cursor", default="", help="continue where the previous list ended")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add the flag for printing only ids."""
    parser.add_argument("-q", "--quiet", action="store_true", help="print only ids, one per line")


def add_listing(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a list whose rows have ids and times."""
    add_paging(parser)
    add_quiet(parser)
    add_times(parser)


class Pages(Protocol):
    """A list of the client's, page by page."""

    def __call__(self, *, limit: int, cursor: str) -> Awaitable[Page]:
        """Return a page of at most `limit` rows, which follows on a cursor."""


async def gathered(options: argparse.Namespace, fetch: Pages) -> Page:
    """Read as many pages as `--limit` needs.

    Args:
        options: With the flags of `add_paging`.
        fetch: The list.

    Raises:
        Usage: The limit is out of bounds.
    """
    check_limit(options)
    rows: list[Mapping[str, object]] = []
    cursor = options.cursor
    while True:
        page = await fetch(limit=min(_PAGE_MAX, options.limit - len(rows)), cursor=cursor)
        rows += page.rows
        cursor = page.cursor
        if not cursor or len(rows) >= options.limit:
            return Page(rows, cursor)


async def named(fetch: Pages, ids: Sequence[str] | None) -> list[Mapping[str, object]]:
    """Return the rows of a list that have these ids, or all rows, `LIMIT_MAX` at most."""
    page = await gathered(argparse.Namespace(limit=LIMIT_MAX, cursor=""), fetch)
    return [row for row in page.rows if not ids or row.get("id") in ids]


def listed(
    options: argparse.Namespace,
    page: Page,
    *,
    name: str,
    columns: Mapping[str, str],
    none: str = "",
) -> None:
    """Print a list as the flags ask.

    Args:
        options: With `json`, and `quiet` if the command has it.
        page: The rows, with the API's names.
        name: Of the list in JSON.
        columns: Field by header; the first is the id.
        none: Said of an empty list; default: by its name.
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
        rows = ([row.get(field) for field in fields] for row in map(dated, page.rows))
        table(tuple(columns), rows, times=times_of(options))
        if name == "tasks" and len({row.get("command") for row in page.rows}) > 1:
            note("sorted by queue, not by time")
    if page.cursor:
        note(f"there are more: --cursor={page.cursor}")
    elif not page.rows:
        note(none or f"no {name}")
