"""The page of shares: every limit names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codeq_cluster.api.http.bodies import Bodies
from codeq_cluster.api.http.strangers import _VERIFYING_MAX
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings, LimitSettings, NodeSettings

from .named_tests import ROOT, named_in

_TEXT = (ROOT / "docs" / "shares.md").read_text()
_ROWS = re.findall(r"^\| (?!what|---)(.+) \|$", _TEXT, re.MULTILINE)
_SHOWN_BY = sorted({code for row in _ROWS for code in re.findall(r"`(tests/[^`]+)`", row)})

_DEPLOYMENTS = (ROOT / "deploy" / "README.md").read_text()


def _said(pattern: str, text: str = _TEXT) -> int:
    """Return the one number that a page or a deployment says."""
    [number] = re.findall(pattern, text)
    return int(number)


def test_every_limit_is_shown_by_a_test() -> None:
    """A row says what, who, how much, what happens beyond it, and which test shows it."""
    assert _ROWS
    assert [] == [row for row in _ROWS if row.count(" | ") != 4 or "::" not in row]


def test_the_sum_of_what_strangers_take_is_that_of_its_parts() -> None:
    """Page and deployments say the figure that follows from the limits' defaults."""
    limits = LimitSettings()
    a_connection = _said(r"(\d+) KiB for each of `limits.connectionsMax`") * 2**10
    verified = _said(r"(\d+) MB for requests whose new tokens wait") * 10**6
    parts = limits.connections_max * a_connection + 2 * limits.unauthenticated_bytes_max + verified

    assert round(_VERIFYING_MAX * 0.7) == verified / 10**6
    assert round(parts / 2**20, -1) == _said(r"(\d+) MiB with the default limits")
    assert round(parts / 2**20, -1) == _said(r"(\d+) MiB before a token is verified", _DEPLOYMENTS)


def test_every_deployment_gives_a_node_room_for_all_that_others_can_take() -> None:
    """Each has the same limit: room for strangers, and for tenants' bodies while decoded."""
    limits = {
        "docker-compose.yml": r"mem_limit: (\d+)g",
        "deploy/compose/node.yml": r"mem_limit: (\d+)g",
        "deploy/systemd/codeq-cluster.service": r"MemoryMax=(\d+)G",
        "deploy/helm/codeq-cluster/values.yaml": r"limits: {memory: (\d+)Gi}",
    }
    given = {_said(limit, (ROOT / path).read_text()) for path, limit in limits.items()}
    artifacts = ArtifactSettings(provider=ArtifactProvider.LOCAL, directory=Path("artifacts"))
    settings = NodeSettings(data_dir=Path("data"), cluster_secret="", peers=(), artifacts=artifacts)
    bodies = Bodies(settings).room.free
    strangers = _said(r"(\d+) MiB with the default limits") * 2**20

    assert {_said(r"A node may use (\d+) GiB", _DEPLOYMENTS)} == given
    assert round(bodies / 10**6, -1) == _said(r"verified, (\d+) MB of bodies", _DEPLOYMENTS)
    unread = LimitSettings().unread_bytes_max

    assert unread == _said(r"(\d+) MiB of answers", _DEPLOYMENTS) * 2**20
    assert 2**30 * min(given) > strangers + 3 * bodies + unread


@pytest.mark.parametrize("shown_by", _SHOWN_BY)
def test_a_test_that_the_page_names_exists(shown_by: str) -> None:
    """A renamed test is renamed on the page too."""
    path, _, name = shown_by.partition("::")

    assert name in named_in(path), f"{path} has no test {name}"
