"""Data-driven files: commands, each block followed by its expected output.

A block has one command per line, then a line `----`, then the output up to an empty line:

    propose 5
    ----
    5 of 5 acknowledged

Lines with a `#` are comments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

_LINE = "----"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some commands and their output.

    Attributes:
        before: The comments and empty lines above the commands.
        commands: At least one, each a line of words.
        output: Its lines; none is empty.
    """

    before: tuple[str, ...]
    commands: tuple[str, ...]
    output: tuple[str, ...]


def parse(text: str) -> list[Block]:
    """Return a file's blocks.

    Raises:
        ValueError: Commands without the line `----`, or output without the empty line after it.
    """
    blocks: list[Block] = []
    before: list[str] = []
    commands: list[str] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line == _LINE:
            output: list[str] = []
            for said in lines:
                if not said:
                    break
                if said.startswith("#"):
                    # A comment here would pass for output, and rewriting the file would delete it
                    # and the story below.
                    raise ValueError(f"no empty line before {said!r}")
                output.append(said)
            blocks.append(
                Block(before=tuple(before), commands=tuple(commands), output=tuple(output))
            )
            before, commands = [], []
        elif not line or line.startswith("#"):
            before.append(line)
        else:
            commands.append(line)
    if commands:
        raise ValueError(f"no {_LINE} after {commands[-1]!r}")
    return blocks


def play(blocks: list[Block], run: Callable[[str], str]) -> list[Block]:
    """Return the blocks with the output that their commands print now.

    Args:
        blocks: Of one file, in order.
        run: Takes a command, returns its output: lines, or nothing.
    """
    played = []
    for block in blocks:
        output = [line for command in block.commands for line in run(command).splitlines()]
        played.append(
            Block(before=block.before, commands=block.commands, output=tuple(filter(None, output)))
        )
    return played


def render(blocks: list[Block]) -> str:
    """Return the text of a file with these blocks."""
    return "\n".join(
        "\n".join((*block.before, *block.commands, _LINE, *block.output)) + "\n" for block in blocks
    )
