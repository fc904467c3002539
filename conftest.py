"""All tests: their order, the tools they find, and the examples on which properties are tried."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from tests.system_tools import ToolBox, summary

# The profile of `make explore`. Without it the library's own "ci" applies: the same examples every
# time, and no deadline.
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False)

# Whoever has only the end of a log sees why tests failed, below what their nodes have logged.
_FAILURES_SHOWN, _LINES_SHOWN = 5, 40

# The slowest files first, so that the last worker to end does not end alone. A file is run by one
# worker: of minutes are those of real processes and of mutants, of seconds those not named here.
_FIRST = (
    "tests/acceptance/",
    "jepsen-lite/tests/test_mutants.py",
    "jepsen-lite/",
    "tests/properties/",
    "tests/integration/",
)

_TOOLS = pytest.StashKey[ToolBox]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slowest files first; otherwise keep the order."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    """Return how many kinds of files are slower than the test's."""
    named = (place for place, first in enumerate(_FIRST) if item.nodeid.startswith(first))
    return next(named, len(_FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[None]:
    """Hide the tools that a test does not name."""
    with TemporaryDirectory(prefix="codeq-tools-") as directory:
        box = session.config.stash[_TOOLS] = ToolBox(Path(directory))
        try:
            return (yield)
        finally:
            box.close()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Show a test its tools before its first fixture, or skip it."""
    item.config.stash[_TOOLS].open_for(item)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List what was left out, with the command that brings it, and the ends of failures."""
    reports = [
        each
        for those in terminalreporter.stats.values()
        for each in those
        if isinstance(each, pytest.TestReport)
    ]
    if lines := summary(reports):
        terminalreporter.section("left out")
        for line in lines:
            terminalreporter.line(line)
    failed = [each for each in reports if each.failed]
    for each in failed[:_FAILURES_SHOWN]:
        terminalreporter.section(f"end of {each.nodeid}")
        for line in each.longreprtext.splitlines()[-_LINES_SHOWN:]:
            terminalreporter.line(line)
