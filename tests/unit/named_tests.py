"""Named tests: whether a test that a page names exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def named_in(path: str) -> frozenset[str]:
    """Return the names of the tests of a file, state machines included.

    A scenario file has stories instead: the name of one is its comment's first sentence.
    """
    file = ROOT / path
    if not file.is_file():
        return frozenset()
    if file.suffix == ".txt":
        return frozenset(_stories(file.read_text()))
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.ClassDef():
                names |= {
                    f"{node.name}::{each.name}"
                    for each in node.body
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
                }
            case ast.Assign(targets=[ast.Name(id=name)]):
                names.add(name)
    return frozenset(name for name in names if name.startswith(("test_", "Test")))


def _stories(text: str) -> list[str]:
    told = re.findall(r"((?:^# .*\n)+)cluster ", text, re.MULTILINE)
    lines = [" ".join(line.removeprefix("# ") for line in each.splitlines()) for each in told]
    return [re.split(r"[.:]( |$)", line)[0] for line in lines]
