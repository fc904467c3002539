"""Terminal: 80 columns and 24 lines, in which a command of this project runs."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Self

COMMAND: Final = (sys.executable, "-m", "codeq_cluster.cli.main")
WITHIN_S: Final = 60.0
ALTERNATE: Final = "\x1b[?1049h"
BACK: Final = "\x1b[?1049l"


class Terminal:
    """The output of a command, and its keyboard.

    Attributes:
        modes: The terminal's current modes.
    """

    def __init__(self, words: tuple[str, ...], environment: Mapping[str, str]) -> None:
        """Start the command."""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes_before = termios.tcgetattr(theirs)
        self._theirs = theirs
        self._seen = ""
        self._grown = threading.Condition()
        # A background job of a shell ignores Ctrl-C, and passes that on to every process it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**environment, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def modes(self) -> list[Any]:
        """The terminal's modes for input."""
        return termios.tcgetattr(self._theirs)

    def shows(self, text: str) -> str:
        """Wait until the command has printed a text; return its whole output."""
        with self._grown:
            there = self._grown.wait_for(lambda: text in self._seen, WITHIN_S)
            assert there, f"never shown: {text!r}; shown: {self._seen}"
            return self._seen

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._ours, keys.encode())

    def signal(self, number: signal.Signals) -> None:
        """Send the command a signal."""
        self._process.send_signal(number)

    def ended(self) -> tuple[int, str]:
        """Wait for the command's end; return its exit code and its whole output."""
        code = self._process.wait(WITHIN_S)
        mark = "\r\n-- the end --"
        os.write(self._theirs, mark.encode())
        return code, self.shows(mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._theirs)
        self._reader.join(WITHIN_S)
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._ours, 65536)
            except OSError:
                return  # The read fails once the other end is closed.
            with self._grown:
                self._seen += piece.decode(errors="replace")
                self._grown.notify_all()


@contextmanager
def run(*words: str, environment: Mapping[str, str]) -> Iterator[Terminal]:
    """Run a command in a terminal until the end of the block."""
    with Terminal(words, environment) as terminal:
        yield terminal
