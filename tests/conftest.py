"""All tests: the longest begin first, so that short ones fill what is left at the end."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of real processes first; the other order stays."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/acceptance/"))
