"""Routes: the page that says where things are names every file that such a change touches."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "codeq_cluster"
_ROW = re.compile(r"^\| ([A-Z][^|]*) \| ([^|]*`[^|]*) \| `(\w+)` \|$", re.MULTILINE)


def _mentioning(word: str) -> set[str]:
    """Return the modules that mention a public name, as spelt in Python, JSON or a flag."""
    parts = word.split("_")
    camel = parts[0] + "".join(map(str.capitalize, parts[1:]))
    spelt = re.compile(rf"(?<![A-Za-z_])({word}|{camel}|{'-'.join(parts)})")
    return {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        # An integration uses what the client has; such a change does not touch it.
        if "integrations" not in file.parts and spelt.search(file.read_text())
    }


def test_a_route_names_the_files_that_its_example_goes_through() -> None:
    """A row that names too few files, or too many, would lead a reader astray."""
    _, routes = (ROOT / "docs/where.md").read_text().split("## Routes through the house")
    rows = _ROW.findall(routes)
    named = {like: set(re.findall(r"`([\w/]+\.py)`", files)) for _, files, like in rows}

    assert rows
    assert {like: _mentioning(like) for like in named} == named


def test_an_operation_of_a_timer_is_declared_in_as_few_files_as_the_page_says() -> None:
    """The page has no example of it: it names each file, and a new one of its own in two places."""
    page = (ROOT / "docs/where.md").read_text()
    [(files, said)] = re.findall(
        r"^\| Add an operation .* timer [^|]*\| (.*) \| (\d+) files \|$", page, re.MULTILINE
    )
    [tests] = re.findall(r"^An operation of the log also goes into (.*)$", page, re.MULTILINE)
    product = [PACKAGE / name for name in re.findall(r"`([\w/]+\.py)`", files)]
    named = [*product, *(ROOT / name for name in re.findall(r"`([\w/]+\.py)`", tests))]
    new = f"{files} {tests}".count("of its own")

    assert all(file.is_file() for file in named)
    assert int(said) == len(named) + new <= 12


def test_a_field_of_a_task_is_declared_in_few_files() -> None:
    """What may be said, what is kept, what is shown, the SDK and its command: no more than nine."""
    assert len(_mentioning("run_at")) <= 9


def test_an_admin_route_with_its_command_is_declared_in_few_files() -> None:
    """The route with its bodies and description, the SDK's two faces, and the command."""
    assert len(_mentioning("webhook_keys")) <= 5
