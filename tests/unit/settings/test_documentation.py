"""Documentation: its tables agree with the code they describe."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

from codeq_cluster.config.reference import FOREIGN
from codeq_cluster.settings import KEYS
from docs.tools.configuration import COMING, row
from tests.codeq import configurations

_ROOT = Path(__file__).resolve().parents[3]
_CONFIGURATION, _COMING = (_ROOT / "docs" / "configuration.md").read_text().split(COMING)
_PACKAGE = _ROOT / "codeq_cluster"
_DESIGNS = sorted(_PACKAGE.rglob("DESIGN.md"))
_DEPENDENCIES = (_ROOT / "docs" / "dependencies.md").read_text()
_PLACE = re.compile(r"`([\w/]+(?:/|\.py))`")
# Import names of libraries, if they differ from the package's name.
_IMPORTED = {"PyJWT": "jwt", "PyYAML": "yaml", "opentelemetry-api": "opentelemetry"}
_NO_LIBRARIES = {*sys.stdlib_module_names, "codeq_cluster", "_typeshed"}


def test_the_documentation_has_every_key_as_it_is() -> None:
    """docs/configuration.md has name, variable, default, bounds and meaning of each key."""
    missing = [row for row in map(row, KEYS) if row not in _CONFIGURATION]

    assert not missing, "docs/configuration.md lacks:\n" + "\n".join(missing)


def test_the_documentation_has_no_key_that_is_not() -> None:
    """A row whose key no longer exists is a leftover."""
    rows = re.findall(r"^\| `[^|]*\| `[A-Z0-9_]+`.*$", _CONFIGURATION, re.MULTILINE)

    assert len(rows) == len(KEYS)
    assert set(rows) == set(map(row, KEYS))


def test_the_documentation_says_what_becomes_of_each_key_of_codeq() -> None:
    """One table has all of them, with the reason for each that is ignored."""
    rows = {
        name: (variable, fate)
        for name, variable, fate in re.findall(
            r"^\| `([^`]+)` \| (?:`([A-Z_]+)`)? ?\| (.+) \|$", _COMING, re.MULTILINE
        )
    }

    assert rows.keys() == configurations.KEYS.keys() | FOREIGN.keys()
    for name, variable in configurations.KEYS.items():
        assert variable == rows[name][0]
    for foreign in FOREIGN.values():
        if foreign.reason:
            assert (foreign.env, f"ignored: {foreign.reason}") == rows[foreign.name]


def test_the_documentation_accounts_for_every_dependency() -> None:
    """No library is added without a reason."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    ranges = [*project["dependencies"]]
    for name in "cli", "celery", "django", "dramatiq", "outbox", "taskiq":
        ranges += extras.pop(name)
    pins = [pin for extra in extras.values() for pin in extra if pin != "codeq-cluster[server]"]
    text = _DEPENDENCIES.lower()

    ranged = [re.fullmatch(r"([\w-]+)>=[\d.]+,<\d+", each) for each in ranges]
    pinned = [re.fullmatch(r"([\w-]+)(?:\[\w+\])?==.+", each) for each in pins]
    for found in (*ranged, *pinned):
        assert found is not None
        assert found[1].lower() in text
    assert {found[1] for found in ranged if found} <= {found[1] for found in pinned if found}


def test_the_documentation_says_where_each_dependency_is_used() -> None:
    """A library is used only in the places that its row names, and in each of them."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| ([^|]+) \|$", _DEPENDENCIES, re.MULTILINE)[1:]
    places = {
        _IMPORTED.get(library, library.lower().replace("-", "_")): set(_PLACE.findall(where))
        for library, where in ((re.split(r"[ ,]", row[0])[0], row[1]) for row in rows)
    }
    modules = [path.relative_to(_PACKAGE).as_posix() for path in sorted(_PACKAGE.rglob("*.py"))]
    used = {
        (library, module)
        for module in modules
        for library in _imports(_PACKAGE / module)
        if library not in _NO_LIBRARIES
    }
    elsewhere = {
        (library, module)
        for library, module in used
        if not any(module.startswith(place) for place in places.get(library, ()))
    }
    unneeded = {
        (library, place)
        for library, named in places.items()
        for place in named
        if not any(module.startswith(place) for used_one, module in used if used_one == library)
    }

    assert set() == elsewhere
    assert set() == unneeded


def _imports(path: Path) -> set[str]:
    """Return the top-level names that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=names):
                found |= {each.name.partition(".")[0] for each in names}
            case ast.ImportFrom(module=str(module), level=0):
                found.add(module.partition(".")[0])
    return found


def test_every_hard_package_has_its_design() -> None:
    """A package is hard if no single module shows its rules."""
    packages = [design.parent.name for design in _DESIGNS]

    assert ["broker", "membership", "raft", "snapshots", "storage", "wire"] == packages


@pytest.mark.parametrize("design", _DESIGNS, ids=lambda design: design.parent.name)
def test_a_design_names_the_modules_of_its_package(design: Path) -> None:
    """Each module appears exactly once, so that a reader can find its content."""
    package = design.parent
    table = design.read_text().partition("## Modules")[2].partition("\n## ")[0]
    named = [
        name
        for cell in re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)
        for name in re.findall(r"`([\w/]+)`", cell)
    ]

    assert sorted(named) == sorted(
        path.relative_to(package).with_suffix("").as_posix()
        for path in package.rglob("*.py")
        if path.stem != "__init__"
    )


@pytest.mark.parametrize("design", _DESIGNS, ids=lambda design: design.parent.name)
def test_a_design_names_tests_that_are_there(design: Path) -> None:
    """A rule whose test is gone would be held by nothing."""
    text = design.read_text()
    named = set(re.findall(r"`(test_\w+)`", text))
    scenarios = set(re.findall(r"`(scenarios/\w+\.txt)`", text))

    assert set() == named - _tests()
    assert not [name for name in scenarios if not (_ROOT / "tests" / "simulation" / name).is_file()]


@cache
def _tests() -> frozenset[str]:
    """Return the names of all test functions."""
    return frozenset(
        name
        for path in (_ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    )


def test_the_documentation_names_every_target_of_make() -> None:
    """`make` without a target lists all of them, one line each."""
    text = (_ROOT / "Makefile").read_text()
    phony = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)[0].split()

    for target in phony:
        assert re.search(rf"^{target}:.*  ## \S", text, re.MULTILINE), target
