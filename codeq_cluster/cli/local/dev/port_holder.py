"""Port holder: the process that listens on a port of this machine, as Linux tells it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_LISTENING = "0A"  # A state in /proc/net/tcp.


@dataclass(frozen=True, slots=True)
class Holder:
    """A process, with the words of its command line."""

    pid: int
    words: tuple[str, ...]

    def runs(self, config_file: Path) -> bool:
        """Return whether it is a node with this configuration file."""
        return str(config_file) in self.words or any(
            (Path(f"/proc/{self.pid}/cwd") / word).resolve() == config_file
            for word in self.words
            if word.endswith(config_file.name)
        )

    def lives(self) -> bool:
        """Return whether the process still runs, even if it listens no more."""
        try:
            return self.words == _words(Path(f"/proc/{self.pid}"))
        except OSError:
            return False


def holder_of(port: int) -> Holder | None:
    """Return the process that listens on the port; None if there is none or it cannot be seen.

    Another user's process cannot be seen, and neither can any on another system than Linux.
    """
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            if any(str(each.readlink()) in wanted for each in (process / "fd").iterdir()):
                return Holder(int(process.name), _words(process))
        except OSError:
            continue  # It has ended, or it is another user's.
    return None


def _words(process: Path) -> tuple[str, ...]:
    words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    return tuple(filter(None, words))


def _inodes(port: int) -> Iterator[str]:
    """Yield the inodes of the sockets that listen on the port."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]
