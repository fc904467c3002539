"""Runbooks as pages: each has a test, and none names a command that no longer exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from codeq_cluster.cli.main import main
from tests.acceptance.runbooks import DIRECTORY, PRELUDE, blocks, steps

_TESTS = Path(__file__).resolve().parents[1] / "acceptance" / "test_runbooks.py"
_PAGES = sorted(file.name for file in DIRECTORY.glob("*.md") if file.name != "README.md")


def test_every_page_is_run_by_a_test() -> None:
    """A page that no test runs could describe something that never happens."""
    text = _TESTS.read_text()
    listed = re.findall(r"\(([\w-]+\.md)\)", (DIRECTORY / "README.md").read_text())

    assert set(_PAGES) == set(listed)
    assert all(text.count(f'"{name}"') == 1 for name in _PAGES)
    assert all(steps((DIRECTORY / name).read_text()) for name in _PAGES)


def test_every_command_that_a_page_names_is_there() -> None:
    """Commands in tables and sentences exist too, although no test runs them."""
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
        assert 0 == ended.value.code, words

    assert {("cluster", "join"), ("cluster", "replace"), ("cluster", "recover")} <= named


def test_every_deployment_has_the_functions_that_runbooks_call() -> None:
    """The page's blocks are valid bash and define the same functions as the tests' prelude."""
    page = (DIRECTORY / "README.md").read_text()
    variables, *deployments = (block.body for block in blocks(page) if block.marks == "yours")
    table = set(re.findall(r"^\| `(\w+)", page, re.MULTILINE))
    text = "".join((DIRECTORY / name).read_text() for name in _PAGES)

    assert 2 == len(deployments)
    for defining in (*deployments, PRELUDE):
        ran = _bash(f"N1=; N2=; N3=\n{defining}\ndeclare -F")
        assert table == {line.split()[-1] for line in ran.splitlines()}
    assert all(name in text for name in table)
    assert 6 == len(_bash(variables + '\nprintf "%s\\n" "${NODES[@]}"').splitlines())


def test_a_machine_of_systemd_finds_the_program_where_the_page_installs_it() -> None:
    """A shell of root has no such directory in its PATH, and keeps its own."""
    page = (DIRECTORY / "README.md").read_text()
    [systemd] = [each.body for each in blocks(page) if "systemctl" in each.body]
    unit = (DIRECTORY.parents[1] / "deploy/systemd/codeq-cluster.service").read_text()
    [program] = re.findall(r"^ExecStart=(\S+)/codeq-cluster ", unit, re.MULTILINE)
    machine = 'ssh() { shift; bash -c "$*"; }\nsudo() { env "$@"; }\nexport -f sudo\n'
    said = _bash(f"{machine}{systemd}\non_node n1 'echo \"$PATH $DATA\"'")

    assert said.startswith(f"{program}:/")
    assert said.endswith(" /var/lib/codeq-cluster\n")


def _bash(script: str) -> str:
    """Run a script that must succeed, and return what it printed."""
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
