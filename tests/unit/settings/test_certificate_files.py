"""Certificates in the configuration: files that belong together are given together."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.config import load
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import LinkTlsSettings, NodeSettings, TlsSettings

_LEAST = {
    "PERSISTENCE_PATH": "data",
    "AUTH_PRODUCER": '[{"kind":"static","tokens":[{"token":"t"}]}]',
    "ALLOW_PRODUCER_AS_WORKER": "true",
}


def _loaded(**environment: str) -> NodeSettings:
    return load(environment={**_LEAST, **environment}).settings


def test_without_files_everything_is_plain() -> None:
    """No certificate is generated."""
    settings = _loaded()

    assert TlsSettings() == settings.tls
    assert LinkTlsSettings() == settings.link_tls
    assert settings.peers[0].http.startswith("http://")


def test_all_files_of_a_certificate_are_taken() -> None:
    """The node's own URL becomes https."""
    settings = _loaded(
        TLS_CERT_FILE="c",
        TLS_KEY_FILE="k",
        RAFT_TLS_CERT_FILE="lc",
        RAFT_TLS_KEY_FILE="lk",
        RAFT_TLS_CA_FILE="ca",
    )

    assert TlsSettings(cert_file=Path("c"), key_file=Path("k")) == settings.tls
    assert (
        LinkTlsSettings(cert_file=Path("lc"), key_file=Path("lk"), ca_file=Path("ca"))
        == settings.link_tls
    )
    assert "https://127.0.0.1:8080" == settings.peers[0].http


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"TLS_CERT_FILE": "c"}, "tls.keyFile"),
        ({"TLS_KEY_FILE": "k"}, "tls.certFile"),
        ({"RAFT_TLS_CA_FILE": "ca"}, "raft.tls.certFile"),
        ({"RAFT_TLS_CERT_FILE": "c", "RAFT_TLS_KEY_FILE": "k"}, "raft.tls.caFile"),
    ],
)
def test_a_file_that_is_missing_is_named(given: dict[str, str], missing: str) -> None:
    """A node with half a certificate would serve without TLS."""
    with pytest.raises(ConfigInvalid, match=f"^{missing}=.*must be a file"):
        _loaded(**given)
