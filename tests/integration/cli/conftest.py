"""A real broker for the tests of commands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from codeq_cluster.settings import environment
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for all tests of a module; each test has its own queues."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def variables(broker: LocalBroker, tmp_path: Path) -> Mapping[str, str]:
    """Return an environment that names the broker, without any profile."""
    named = {
        "CODEQ_BASE_URL": broker.url,
        "CODEQ_TOKEN": broker.token,
        "CODEQ_CONFIG_DIR": str(tmp_path),
    }
    kept = ("PATH", "HOME", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
    return {name: value for name, value in environment().items() if name in kept} | named


@pytest.fixture(autouse=True)
def meant(variables: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that run inside the test use the broker."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
