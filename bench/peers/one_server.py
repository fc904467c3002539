"""One server: a peer that is a single process on loopback, or the parent of all its processes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from bench.processes import stop
from codeq_cluster.testing.ports import free_ports
from tests.harness.servers import Server


class OneServer:
    """A server with a directory, a log in it and a port of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (self._port,) = free_ports(1)
        self._server = Server(directory / "log")

    @property
    def pids(self) -> Sequence[int]:
        """Its process."""
        return [self._server.pid]

    def stop(self) -> None:
        """Stop it; safe to call again."""
        stop([self._server])

    def _emptied(self) -> Path:
        """Return its directory, which is new and empty."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        return self._directory
