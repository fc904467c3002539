"""The runbooks as pages: none is without a test, and none says what is no longer so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codeq_cluster.cli.main import main
from tests.acceptance.runbooks import DIRECTORY, steps

_TESTS = Path(__file__).resolve().parents[1] / "acceptance" / "test_runbooks.py"
_PAGES = sorted(file.name for file in DIRECTORY.glob("*.md") if file.name != "README.md")


def test_every_page_is_run_by_a_test() -> None:
    """Or it would say what nobody has seen happen."""
    text = _TESTS.read_text()
    listed = re.findall(r"\(([\w-]+\.md)\)", (DIRECTORY / "README.md").read_text())

    assert set(listed) == set(_PAGES)
    assert all(text.count(f'"{name}"') == 1 for name in _PAGES)
    assert all(steps((DIRECTORY / name).read_text()) for name in _PAGES)


def test_what_is_said_to_be_missing_is_missing() -> None:
    """A page that says `not in this version` is rewritten when that is no longer so."""
    said = [
        command
        for name in _PAGES
        for line in (DIRECTORY / name).read_text().splitlines()
        if line.startswith("**Not in this version:**")
        for command in re.findall(r"`codeq-cluster ([^`]+)`", line)
    ]
    for command in said:
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--help"])
        assert ended.value.code == 2, command

    assert {"cluster join", "cluster remove"} <= set(said)
