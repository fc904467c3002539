"""Modes: no mode in a configuration or an environment relaxes a check."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from codeq_cluster.config import load
from codeq_cluster.settings import Signing

_LEAST: Mapping[str, str] = {
    "PERSISTENCE_PATH": "data",
    "AUTH_PRODUCER": '[{"kind":"static","tokens":[{"token":"t","subject":"s"}]}]',
    "AUTH_WORKER": '[{"kind":"static","tokens":[{"token":"w","subject":"s"}]}]',
    "CLUSTER_SECRET": "0123456789abcdef",
    "RAFT_SELF_ID": "n1",
    "RAFT_PEERS": "n1=127.0.0.1:18080",
}


@pytest.mark.parametrize("mode", ["dev", "development", "local", "test", "prod", "production"])
def test_a_node_is_the_same_in_every_mode_of_the_reference(tmp_path: Path, mode: str) -> None:
    """The mode may be in the file, in the environment or in neither."""
    file = tmp_path / "codeq.yaml"
    file.write_text(f"env: {mode}\n")
    plain = load(file=None, environment=_LEAST).settings

    assert plain == load(file=file, environment=_LEAST).settings
    assert plain == load(file=None, environment={**_LEAST, "ENV": mode}).settings


def test_a_node_that_is_told_nothing_relaxes_nothing() -> None:
    """A development cluster's relaxations must be set, key by key."""
    settings = load(file=None, environment=_LEAST).settings

    assert not settings.auth.allow_producer_as_worker
    assert "deny" == settings.auth.tenant_fallback
    assert not settings.auth.allow_http_jwks
    assert not settings.webhooks.allow_private
    assert settings.webhooks.signing is Signing.REFUSED
    assert "fsync" == settings.raft.durability
    assert "127.0.0.1" == settings.host
