"""Page examples: a node accepts the configurations and certificates that pages show."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from codeq_cluster.config import load
from codeq_cluster.settings import LinkTlsSettings
from codeq_cluster.wire.certificates import link_certificates
from tests.acceptance.runbooks import Block, blocks

_DOCS = Path(__file__).resolve().parents[3] / "docs"
_WHOLE = "operations-0"
_SECRETS = "/run/secrets/"


def _of(language: str) -> dict[str, Block]:
    """Return the blocks of a language, by page and number."""
    return {
        f"{page.stem}-{number}": block
        for page in sorted(_DOCS.glob("*.md"))
        for number, block in enumerate(blocks(page.read_text()))
        if block.language == language
    }


_CONFIGURATIONS = _of("yaml")
[_MAKING] = (block.body for block in _of("sh").values() if "openssl" in block.body)


@pytest.mark.parametrize("name", _CONFIGURATIONS)
def test_a_configuration_of_a_page_loads(name: str, tmp_path: Path) -> None:
    """A fragment loads as part of the complete one of operations.md, with its secrets present."""
    whole = yaml.safe_load(_CONFIGURATIONS[_WHOLE].body)
    part = yaml.safe_load(_CONFIGURATIONS[name].body)
    for secret in ("cluster", "webhook", "producer", "jwt"):
        (tmp_path / secret).write_text(f"a secret of more than 32 bytes: {secret}")
    file = tmp_path / "node.yaml"
    merged = {**whole, **part, "raft": {**whole["raft"], **part.get("raft", {})}}
    file.write_text(yaml.safe_dump(merged).replace(_SECRETS, f"{tmp_path}/"))

    assert not load(file=file).remarks


@pytest.mark.needs("openssl")
def test_the_certificates_of_the_page_are_taken_by_the_nodes_they_are_for(tmp_path: Path) -> None:
    """The certificates are made by the same commands that a reader copies."""
    subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _MAKING],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        timeout=60,
    )
    made = {
        node: link_certificates(
            LinkTlsSettings(
                cert_file=tmp_path / f"{node}.pem",
                key_file=tmp_path / f"{node}.key",
                ca_file=tmp_path / "ca.pem",
            ),
            node_id=node,
        )
        for node in ("n1", "n2", "n3")
    }

    assert all(each is not None and each.left_s > 80 * 86_400 for each in made.values())
