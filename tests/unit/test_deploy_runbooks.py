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


def test_every_command_that_a_page_names_is_there() -> None:
    """Also one that no test runs, in a table or a sentence."""
    named = {
        tuple(words.split())
        for name in _PAGES
        for words in re.findall(
            r"codeq-cluster((?: [a-z]+){1,2})(?=[ `])", (DIRECTORY / name).read_text()
        )
    }
    for words in named:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--help"])
        assert ended.value.code == 0, words

    assert {("cluster", "join"), ("cluster", "replace"), ("cluster", "recover")} <= named
