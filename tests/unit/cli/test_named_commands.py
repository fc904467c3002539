"""Named commands: the README's table has every command with its true properties."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from codeq_cluster.cli.main import _parser

_README = (Path(__file__).resolve().parents[3] / "README.md").read_text()
_TABLE = _README.partition("## Commands")[2].partition("\n## ")[0]
# The first two run servers and print for a reader; the last prints a script.
_WITHOUT_JSON = {"node", "completion"}


def _leaves(
    parser: argparse.ArgumentParser, name: str = ""
) -> Iterator[tuple[str, Mapping[str, argparse.Action]]]:
    """Yield every command that can be run, with its flags."""
    within = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    if not within:
        yield name, {flag: action for action in parser._actions for flag in action.option_strings}
    for action in within:
        # An alias comes after the name, with the same parser.
        names = {id(deeper): word for word, deeper in reversed(action.choices.items())}
        for word, deeper in action.choices.items():
            if names[id(deeper)] == word:
                yield from _leaves(deeper, f"{name} {word}".strip())


def _named() -> set[str]:
    """Return the commands of the table with their full names."""
    first_cells = re.findall(r"^\| (`.*?`) \| ", _TABLE, re.MULTILINE)
    names = [name for cell in first_cells for name in re.findall(r"`([^`]+)`", cell)]
    found = set()
    for name in names:
        stem, _, last = name.rpartition(" ")
        found |= {f"{stem} {word}".strip() for word in last.split(r"\|")}
    return found


def test_the_readme_names_every_command() -> None:
    """The table has no other command."""
    assert {name for name, _ in _leaves(_parser([]))} == _named()


def test_every_command_takes_what_the_readme_says() -> None:
    """All but those named take --json, and every command for a cluster takes the same flags."""
    leaves = dict(_leaves(_parser([])))
    asking = {name for name, flags in leaves.items() if "--url" in flags}

    assert "Every command except `dev`, `node` and `completion` takes `--json`" in _TABLE
    assert _WITHOUT_JSON == {name for name, flags in leaves.items() if "--json" not in flags}
    target = {"--token", "--ca", "--profile"}
    assert asking == {name for name, flags in leaves.items() if target <= flags.keys()}
    assert {"status", "worker start", "cluster upgrade"} <= asking


def test_every_command_that_needs_a_yes_has_a_dry_run() -> None:
    """A person can ask what a command would do without a failing exit code."""
    asking = {name: flags for name, flags in _leaves(_parser([])) if "--yes" in flags}

    assert {"backup prune", "repair", "cluster recover", "queue purge"} <= asking.keys()
    assert [] == [name for name, flags in asking.items() if "--dry-run" not in flags]


def test_every_flag_is_described() -> None:
    """A flag that help only names is found by trying."""
    flags = {(name, flag): each for name, its in _leaves(_parser([])) for flag, each in its.items()}

    assert {("task create", "--max-attempts"), ("dev", "--data")} <= flags.keys()
    assert [] == [named for named, action in flags.items() if not action.help]
