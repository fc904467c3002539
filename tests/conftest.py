"""All tests: which of them may run beside one another."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

# Clusters of real processes whose times nobody looks at: a row of their own.
_PATIENT = frozenset(
    {
        "test_artifacts.py",
        "test_backups.py",
        "test_callbacks.py",
        "test_certificates.py",
        "test_commands.py",
        "test_damage.py",
        "test_imports.py",
        "test_operator_commands.py",
        "test_runbooks.py",
        "test_stories.py",
        "test_upgrades.py",
        "docker",
    }
)


# The longest rows begin first, so that the short ones fill what is left at the end.
_FIRST = {"patient": 0, "acceptance": 1}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest rows first."""
    items.sort(key=lambda item: _FIRST.get(_row(item.nodeid), len(_FIRST)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Let processes take whole rows."""
    return _Rows(config, log)


class _Rows(LoadScopeScheduling):
    """A file's tests stay together, and the acceptance tests are two rows.

    What a file has set up once is not set up again by another process; and clusters of real
    processes whose times are looked at do not run beside one another.
    """

    def _split_scope(self, nodeid: str) -> str:
        return _row(nodeid)


def _row(nodeid: str) -> str:
    file = nodeid.partition("::")[0]
    place = file.removeprefix("tests/acceptance/")
    if place == file:
        return file
    return "patient" if place.partition("/")[0] in _PATIENT else "acceptance"
