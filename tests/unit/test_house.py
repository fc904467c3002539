"""House: the package stays small, and so do its files and its constructors."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "codeq_cluster"
FILES = sorted(PACKAGE.rglob("*.py"))

FILE_LINES_MAX = 500
PARAMETERS_MAX = 10
RAFT_FILES_MAX = 25
# As `python -m tests.harness.wheel` counts them, rounded up: lower it when the package shrinks.
WHEEL_LINES_MAX = 104_060

# Each takes more parameters than others may, and why.
_MAY_TAKE_MORE = {
    "Worker": "users write its options as keywords, in one short call without another name",
    "Routes.__call__": "a route is one declaration, and most have two or three of its keywords",
    "Operator.tasks": "a list has a keyword for each of its filters",
    "Batch": "a batch begins with its ordinal; what it collects is no parameter",
}


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines())


def _parameters(within: ast.AST, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield each function and each generated constructor, with its number of parameters.

    Records, which are frozen or a `Struct`, have as many fields as what they describe.
    """
    for node in ast.iter_child_nodes(within):
        inner = name
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{name}.{node.name}".removeprefix(".")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            taken = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            yield inner, sum(each.arg not in {"self", "cls"} for each in taken)
        elif isinstance(node, ast.ClassDef) and any(map(_makes_a_constructor, node.decorator_list)):
            yield inner, sum(isinstance(each, ast.AnnAssign) for each in node.body)
        yield from _parameters(node, inner)


def _makes_a_constructor(decorator: ast.expr) -> bool:
    written = ast.unparse(decorator)
    return written.startswith("dataclass") and "frozen=True" not in written


def test_no_file_of_the_product_is_long() -> None:
    """A file is one concept, which a reader takes in at once."""
    longest = {str(file.relative_to(PACKAGE)): _lines(file) for file in FILES}

    assert {} == {name: lines for name, lines in longest.items() if lines > FILE_LINES_MAX}


def test_no_function_or_constructor_takes_many_parameters() -> None:
    """What belongs together is one value; an exception that needs to be none any more fails too."""
    found = {
        name
        for file in FILES
        for name, count in _parameters(ast.parse(file.read_text()))
        if count > PARAMETERS_MAX
    }

    assert _MAY_TAKE_MORE.keys() == found


def test_the_log_is_in_few_files() -> None:
    """Who opens `raft/` for the first time finds the rule he looks for in one pass."""
    assert len([*(PACKAGE / "raft").glob("*.py")]) <= RAFT_FILES_MAX


def test_the_wheel_does_not_grow() -> None:
    """More code needs a decision: raise the bound on purpose, or take something out."""
    lines = sum(map(_lines, FILES))

    assert lines <= WHEEL_LINES_MAX
