"""Scenario files: each story in `scenarios/` prints the output written there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .datadriven import parse, play, render
from .scenario import Scenario

_FILES = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
_REWRITE = bool(os.environ.get("CODEQ_REWRITE_SCENARIOS"))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.stem)
def test_a_scenario_ends_as_it_is_written(path: Path) -> None:
    """Commands print the output below them in the file; CODEQ_REWRITE_SCENARIOS=1 rewrites it."""
    played = render(play(parse(path.read_text()), Scenario().run))
    if _REWRITE:
        path.write_text(played)

    assert path.read_text() == played


def test_an_output_that_differs_is_shown() -> None:
    """The file as written and the file as played differ in exactly that line."""
    text = "# A story.\ncluster A B C\nleader\n----\nA leads term 1\nB leads term 9\n"

    played = render(play(parse(text), Scenario().run))

    assert played == text.replace("B leads term 9", "A leads term 1")


def test_an_unknown_command_is_refused() -> None:
    """The refusal lists the commands that exist."""
    with pytest.raises(ValueError, match=r"no command 'lead'; there are .*leader"):
        Scenario().run("lead A")


def test_commands_without_their_line_are_refused() -> None:
    """Without the line `----`, their output would be compared with nothing."""
    with pytest.raises(ValueError, match="no ---- after 'leader'"):
        parse("cluster A\nleader\n")


def test_a_comment_right_below_an_output_is_refused() -> None:
    """It would pass for output, and rewriting would delete the story that it begins."""
    with pytest.raises(ValueError, match=r"no empty line before '# The next story\.'"):
        parse("leader\n----\nA leads term 1\n# The next story.\ncluster A\n----\n")


def test_an_output_has_no_empty_line() -> None:
    """An empty line would end the block, and the rest of the output would pass for commands."""
    played = play(parse("say\n----\n"), lambda _command: "one\n\ntwo\n")

    assert played == parse(render(played))
