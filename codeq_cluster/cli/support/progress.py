"""Progress: the progress of a piece of work, on a terminal's standard error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from codeq_cluster.cli.support.output import notes


class Bar:
    """How much of a piece of work is done."""

    def __init__(self, progress: Progress, words: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(words, total=total)

    def passed(self, size: int) -> None:
        """Add so much to the work done."""
        self._progress.advance(self._task, size)

    def stands_at(self, done: float, words: str) -> None:
        """Set how much is done in all, and the text beside it."""
        self._progress.update(self._task, completed=done, description=words)


@contextmanager
def waiting(words: str) -> Iterator[None]:
    """Show a text until the end of the block; nothing without a terminal."""
    console = notes()
    if not console.is_terminal:
        yield
        return
    with console.status(f"{words}; Ctrl-C ends the wait"):
        yield


@contextmanager
def bar(words: str, total: int, *, what: str = "") -> Iterator[Bar]:
    """Show a bar until the end of the block; nothing if standard error is not a terminal.

    Args:
        words: The text beside the bar.
        what: The unit; bytes if empty.
    """
    console = notes()
    counted = (MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        *(counted if what else (DownloadColumn(), TransferSpeedColumn())),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        yield Bar(progress, words, total)
