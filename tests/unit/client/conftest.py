"""Fixtures of the client's tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test of a module; each works on commands of its own."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def closed_url() -> str:
    """Return the base URL of a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"
