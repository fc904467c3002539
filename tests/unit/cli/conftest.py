"""Commands' tests run without a development cluster, a profile or settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.settings import KEYS

_VARIABLES = (
    *("CODEQ_CONFIG_PATH", "CODEQ_PORT_BASE", "CODEQ_BASE_URL", "CODEQ_PROFILE", "CODEQ_CA"),
    *("CODEQ_TOKEN", "CODEQ_PRODUCER_TOKEN", "CODEQ_WORKER_TOKEN", "CODEQ_OPERATOR_TOKEN"),
)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory without this machine's settings; return it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CODEQ_CONFIG_DIR", str(tmp_path / "codeq"))
    for name in (*_VARIABLES, *(key.env for key in KEYS)):
        monkeypatch.delenv(name, raising=False)
    return tmp_path
