"""Commands of pages: what the documentation has a reader type, and no test runs, is understood."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from codeq_cluster.cli.main import _parser

_ROOT = Path(__file__).resolve().parents[3]
_PAGES = [
    _ROOT / "README.md",
    _ROOT / "deploy" / "README.md",
    *sorted((_ROOT / "docs").glob("*.md")),
]
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"`(?:\.venv/bin/)?codeq-cluster ([a-z][^`\n]*)`")
# Blocks with a mark are run by the test of their page.
_UNMARKED = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINE = re.compile(r"^codeq-cluster (.+)$", re.MULTILINE)
_TYPED = sorted(
    {
        command
        for page in _PAGES
        for command in (
            *_COMMAND.findall(_FENCED.sub("", page.read_text())),
            *_LINE.findall("".join(_UNMARKED.findall(page.read_text()))),
        )
        if "…" not in command
    }
)


@pytest.mark.parametrize("command", _TYPED)
def test_a_command_of_a_page_is_understood(command: str) -> None:
    """Whole, or as the name of a command that takes more."""
    # The rest of the line is the shell's; an address has a form, names have none.
    words = shlex.split(re.split(r" [>|\\]", command)[0].replace("URL", "http://127.0.0.1"))
    parser = _parser(words[:1])
    try:
        parser.parse_args(words)
    except SystemExit:
        with pytest.raises(SystemExit) as ended:
            parser.parse_args([*words, "--help"])
        named_alone = not any(word.startswith("-") for word in words)

        assert named_alone, command
        assert ended.value.code == 0, command
