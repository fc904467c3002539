"""The page of shares: every limit names tests that exist."""

from __future__ import annotations

import re

import pytest

from .named_tests import ROOT, named_in

_ROWS = re.findall(
    r"^\| (?!what|---)(.+) \|$", (ROOT / "docs" / "shares.md").read_text(), re.MULTILINE
)
_SHOWN_BY = sorted({code for row in _ROWS for code in re.findall(r"`(tests/[^`]+)`", row)})


def test_every_limit_is_shown_by_a_test() -> None:
    """A row says what, who, how much, what happens beyond it, and which test shows it."""
    assert _ROWS
    assert [] == [row for row in _ROWS if row.count(" | ") != 4 or "::" not in row]


def test_every_deployment_gives_a_node_two_gib() -> None:
    """The page says what the figure covers."""
    limits = {
        "docker-compose.yml": "mem_limit: 2g",
        "deploy/compose/node.yml": "mem_limit: 2g",
        "deploy/systemd/codeq-cluster.service": "MemoryMax=2G",
        "deploy/helm/codeq-cluster/values.yaml": "limits: {memory: 2Gi}",
    }

    assert [] == [path for path, limit in limits.items() if limit not in (ROOT / path).read_text()]


@pytest.mark.parametrize("shown_by", _SHOWN_BY)
def test_a_test_that_the_page_names_exists(shown_by: str) -> None:
    """A renamed test is renamed on the page too."""
    path, _, name = shown_by.partition("::")

    assert name in named_in(path), f"{path} has no test {name}"
