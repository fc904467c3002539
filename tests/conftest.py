"""All tests: in which order they begin, and which examples properties are tried on."""

from __future__ import annotations

import pytest
from hypothesis import settings

# `make explore`; else it is the library's own "ci": the same examples every time, and no deadline.
settings.register_profile("explore", parent=settings.get_profile("ci"), derandomize=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of real processes first, which take longest; the other order stays."""
    items.sort(key=lambda item: not item.nodeid.startswith("tests/acceptance/"))
