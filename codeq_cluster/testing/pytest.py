"""Pytest: a real broker for the tests of programs that use codeq-cluster.

`pytest_plugins = ["codeq_cluster.testing.pytest"]` in `conftest.py` enables the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from codeq_cluster.testing.broker import LocalBroker

__all__ = ["LocalBroker", "codeq_broker", "codeq_settings"]


@pytest.fixture
def codeq_settings() -> Mapping[str, object]:
    """Return keys of a configuration file for `codeq_broker`; override it to set some."""
    return {}


@pytest.fixture
def codeq_broker(tmp_path: Path, codeq_settings: Mapping[str, object]) -> Iterator[LocalBroker]:
    """Run a broker of one node for a test; its files are in the test's `tmp_path`."""
    with LocalBroker(tmp_path / "codeq", settings=codeq_settings) as broker:
        yield broker
