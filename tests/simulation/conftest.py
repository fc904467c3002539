"""Fixtures of the stories about tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulator.brokers import SimBrokers
from tests.simulator.scenes import settled_brokers

from .moves import SHARDS


@pytest.fixture
def brokers() -> Iterator[SimBrokers]:
    """Yield three nodes."""
    brokers = settled_brokers(shards=SHARDS)
    yield brokers
    brokers.close()
