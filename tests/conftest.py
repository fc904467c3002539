"""All tests: their order, and the examples on which properties are tried."""

from __future__ import annotations

import pytest
from hypothesis import settings

# The profile of `make explore`. Without it the library's own "ci" applies: the same examples every
# time, and no deadline.
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of real processes first, as they take longest; otherwise keep the order."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/acceptance/"))
