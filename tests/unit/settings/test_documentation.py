"""Documentation: the tables people read agree with the code they describe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from codeq_cluster.config.keys import KEYS, Key
from codeq_cluster.config.reference import FOREIGN
from codeq_cluster.config.shown import default_of
from tests.codeq import configurations

_ROOT = Path(__file__).resolve().parents[3]
_CONFIGURATION, _COMING = (
    (_ROOT / "docs" / "configuration.md").read_text().split("## Coming from codeQ's configuration")
)


def _row(key: Key) -> str:
    """Return the table row of a key."""
    default = default_of(key)
    env = f"`{key.env}`" + (", `…_FILE`" if key.secret else "")
    shown = f"`{default}`" if default else ""
    return f"| `{key.name}` | {env} | {shown} | {key.kind.allowed} | {key.meaning} |"


def test_the_documentation_has_every_key_as_it_is() -> None:
    """Name, variable, default, bounds and meaning of each key stand in docs/configuration.md."""
    missing = [row for row in map(_row, KEYS) if row not in _CONFIGURATION]

    assert not missing, "docs/configuration.md lacks:\n" + "\n".join(missing)


def test_the_documentation_has_no_key_that_is_not() -> None:
    """A row of the key tables that no key has is left over."""
    rows = re.findall(r"^\| `[^|]*\| `[A-Z0-9_]+`.*$", _CONFIGURATION, re.MULTILINE)

    assert len(rows) == len(KEYS)
    assert set(rows) == set(map(_row, KEYS))


def test_the_documentation_says_what_becomes_of_each_key_of_codeq() -> None:
    """In one table, with the reason for each that is ignored."""
    rows = {
        name: (variable, fate)
        for name, variable, fate in re.findall(
            r"^\| `([^`]+)` \| (?:`([A-Z_]+)`)? ?\| (.+) \|$", _COMING, re.MULTILINE
        )
    }

    assert rows.keys() == configurations.KEYS.keys() | FOREIGN.keys()
    for name, variable in configurations.KEYS.items():
        assert rows[name][0] == variable
    for foreign in FOREIGN.values():
        if foreign.reason:
            assert rows[foreign.name] == (foreign.env, f"ignored: {foreign.reason}")


def test_the_documentation_accounts_for_every_dependency() -> None:
    """No library comes in without a reason."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    pins = [*project["dependencies"], *(pin for extra in extras for pin in extra)]
    text = (_ROOT / "docs" / "dependencies.md").read_text().lower()

    for pin in pins:
        name, version = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[\w+\])?==(.+)", pin).groups()  # type: ignore[union-attr]
        assert name.lower() in text
        assert version


def test_the_documentation_names_every_target_of_make() -> None:
    """`make` alone lists the targets, each with its one line."""
    text = (_ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()

    for target in phony:
        assert re.search(rf"^{target}:.*  ## \S", text, re.MULTILINE), target
