"""System tools: which of them each test needs, and what to do about the missing ones.

`.ci/tools` lists them. A test finds only those that its marks name: `needs` skips the test if one
is missing, `uses` runs it anyway.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

LEFT_OUT = "left out"  # The property of a test's report that says why and what helps.

_TABLE = Path(__file__).resolve().parents[1] / ".ci" / "tools"
_MARKS = ("needs", "uses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A row of the table.

    Attributes:
        files: Programs by name, or paths; the first names the tool.
        packages: Debian's, separated by blanks.
    """

    files: tuple[str, ...]
    packages: str

    @property
    def programs(self) -> tuple[str, ...]:
        """Return the files that are looked for in PATH."""
        return tuple(each for each in self.files if "/" not in each)

    @property
    def lacks(self) -> str:
        """Say that it is missing, and what installs it."""
        return f"no {self.files[0]}: apt install {self.packages}"

    def missing(self, path: str) -> bool:
        """Return whether one of its files is missing; programs are looked for in `path`."""
        return not all(
            shutil.which(each, path=path) if each in self.programs else Path(each).exists()
            for each in self.files
        )


def _read() -> Iterator[Tool]:
    for line in _TABLE.read_text().splitlines():
        if not line.startswith("#"):
            files, packages, _ = line.split(" | ")
            yield Tool(files=tuple(files.split()), packages=packages)


TOOLS = {tool.files[0]: tool for tool in _read()}


class ToolBox:
    """Gives each test a PATH with the tools that it names, and without the others."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._everything = os.environ["PATH"]
        self._rest = self._without_tools()

    def open_for(self, item: pytest.Item) -> None:
        """Set the PATH of a test; skip it if it needs a tool that is missing.

        If CI is true, every tool must be there.
        """
        marks = [mark for mark in item.iter_markers() if mark.name in _MARKS]
        shown = [self._rest]
        for kind, tool in ((mark.name, TOOLS[name]) for mark in marks for name in mark.args):
            if not tool.missing(self._everything):
                shown.insert(0, str(self._place(tool)))
                continue
            if os.environ.get("CI") == "true":
                pytest.fail(tool.lacks, pytrace=False)
            if kind == "needs":
                item.user_properties.append((LEFT_OUT, tool.lacks))
                pytest.skip(tool.lacks)
        os.environ["PATH"] = os.pathsep.join(shown)

    def close(self) -> None:
        """Give PATH back."""
        os.environ["PATH"] = self._everything

    def _place(self, tool: Tool) -> Path:
        place = self._directory / tool.files[0]
        if not place.exists():
            place.mkdir()
            for name in tool.programs:
                (place / name).symlink_to(str(shutil.which(name, path=self._everything)))
        return place

    def _without_tools(self) -> str:
        """Return PATH with a directory of links in place of each one that holds a tool."""
        hidden = {name for tool in TOOLS.values() for name in tool.programs}
        kept = []
        for number, directory in enumerate(self._everything.split(os.pathsep)):
            if not any(Path(directory, name).exists() for name in hidden):
                kept.append(directory)
                continue
            links = self._directory / f"rest-{number}"
            links.mkdir()
            for program in Path(directory).iterdir():
                if program.name not in hidden:
                    (links / program.name).symlink_to(program)
            kept.append(str(links))
        return os.pathsep.join(kept)


def summary(reports: Iterable[pytest.TestReport]) -> list[str]:
    """Return a line for each reason why tests were left out, with their number."""
    tests: dict[str, set[str]] = {}
    for report in reports:
        for name, reason in report.user_properties:
            if name == LEFT_OUT:
                tests.setdefault(str(reason), set()).add(report.nodeid)
    return [f"{reason} (tests: {len(those)})" for reason, those in sorted(tests.items())]
