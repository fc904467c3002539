"""The version of the tree: one in every file that names it, and never that of a stored release."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from codeq_cluster import __version__
from tests.golden import release

_ROOT = Path(__file__).parents[2]
# What Helm accepts, and what pip calls a release or the development of one.
_SEMVER = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?")
_VERSION = re.compile(r"(\d+\.\d+\.\d+)(?:\.dev(\d+))?")


def _parts(version: str) -> tuple[str, str | None]:
    """Return a version's three numbers, and which development of it this is, if it is one."""
    found = _VERSION.fullmatch(version)
    assert found is not None, f"{version} is neither a release nor the development of one"
    return found[1], found[2]


def test_every_file_names_one_version() -> None:
    """The package, its distribution and the chart, whose default image has the version as tag."""
    distribution = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((_ROOT / "deploy/helm/codeq-cluster/Chart.yaml").read_text())
    numbers, development = _parts(__version__)

    assert __version__ == distribution["version"]
    assert __version__ == chart["appVersion"]
    assert _SEMVER.fullmatch(chart["version"])
    assert numbers + (f"-dev.{development}" if development else "") == chart["version"]


def test_the_tree_is_a_stored_release_or_later_than_each() -> None:
    """A backup or a node of this tree names no release that is already out with other code."""

    def order(version: str) -> tuple[int, ...]:
        numbers, development = _parts(version)
        return *map(int, numbers.split(".")), not development

    assert order(__version__) >= max(map(order, release.stored_releases()))


def test_only_a_tree_under_development_has_changes_that_are_not_released() -> None:
    """The changelog has every stored release, and what follows the last one stands before it."""
    text = (_ROOT / "CHANGELOG.md").read_text()
    (_, _), (unreleased, changes), *released = re.findall(
        r"^(?:## \[(.+?)\].*?|# .*?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL
    )

    assert "Unreleased" == unreleased
    assert set(release.stored_releases()) <= {version for version, _ in released}
    assert "dev" in __version__ or (__version__, "") == (released[0][0], changes.strip())


def test_a_tree_under_development_stores_no_release() -> None:
    """Its files would be read for ever as those of a release that nobody has run."""
    with pytest.raises(SystemExit, match="is not a release"):
        release.place_of("0.9.0.dev1")

    assert release.STORED / "0.9.0" == release.place_of("0.9.0")
