"""Assert order: the expected value is on the left, in every comparison with a literal."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WITH_TESTS = ("tests", "jepsen-lite/tests")


def reversed_asserts(text: str) -> Iterator[int]:
    """Return the lines of the asserts `actual == literal`."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[right])):
                if _is_literal(right) and not _is_literal(left):
                    yield node.lineno


def _is_literal(value: ast.expr) -> bool:
    try:
        ast.literal_eval(value)
    except ValueError:
        return False
    return True


def test_every_assert_has_the_expected_value_on_the_left() -> None:
    """A failure then shows what was expected before what was found."""
    files = list(chain.from_iterable((ROOT / each).rglob("*.py") for each in WITH_TESTS))
    wrong = [
        f"{file.relative_to(ROOT)}:{line}"
        for file in files
        for line in reversed_asserts(file.read_text())
    ]

    assert Path(__file__) in files
    assert [] == wrong


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("assert 1 == found", []),
        ("assert found == expected", []),
        ("assert found is None", []),
        ("assert found == 1", [1]),
        ("pass\nassert found == [('a', -1), {'b': None}]", [2]),
    ],
)
def test_a_literal_on_the_right_is_found(text: str, lines: list[int]) -> None:
    """Nested literals count; a comparison of two names may have either order."""
    assert lines == list(reversed_asserts(text))
