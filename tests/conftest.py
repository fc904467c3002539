"""All tests: which of them may run beside one another."""

from __future__ import annotations

from pathlib import Path

import pytest

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep a file's tests together, and the acceptance tests in one row.

    What a file has set up once is not set up again by another process; and clusters of real
    processes, whose times are looked at, do not run beside one another.
    """
    for item in items:
        place = item.path.relative_to(_HERE) if item.path.is_relative_to(_HERE) else item.path
        group = "acceptance" if place.parts[0] == "acceptance" else str(place)
        item.add_marker(pytest.mark.xdist_group(group))
