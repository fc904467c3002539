"""Fixtures of the harness's own tests."""

from __future__ import annotations

import pytest

from jepsen_lite.running import Options


@pytest.fixture
def options() -> Options:
    """Return the options of a common run; `msgspec.structs.replace` varies them."""
    return Options(
        workload="lifecycle",
        nemeses=("kill",),
        nodes=3,
        shards=2,
        seconds=120,
        rate=0,
        seed=1,
        source=".",
    )
