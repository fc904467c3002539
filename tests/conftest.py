"""All tests: which of them may run beside one another."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent
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
_LONGEST = ("patient", "acceptance")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together, and the acceptance tests in two rows.

    What a file has set up once is not set up again by another process; and clusters of real
    processes whose times are looked at do not run beside one another.
    """
    groups = {item: _group(item.path) for item in items}
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: groups[item] not in _LONGEST)
    items.sort(key=lambda item: groups[item] != _LONGEST[0])


def _group(path: Path) -> str:
    place = path.relative_to(_HERE) if path.is_relative_to(_HERE) else path
    if place.parts[0] != "acceptance":
        return str(place)
    return "patient" if place.parts[1] in _PATIENT else "acceptance"
