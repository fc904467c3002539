"""PostgreSQL: one server on loopback, which syncs each commit."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from bench.peers.one_server import OneServer
from bench.processes import wait_until
from codeq_cluster.settings import environment

# Debian's: they are not in PATH.
PROGRAMS = Path("/usr/lib/postgresql/15/bin")
_USER = "postgres"
# It refuses to be root. A new user clears the signal at the parent's end, so it is said again.
_AS_ITS_USER = (
    *("setpriv", f"--reuid={_USER}", f"--regid={_USER}", "--clear-groups"),
    *("--pdeathsig=KILL", "--"),
)


class PostgreSQL(OneServer):
    """A server with its defaults, and one superuser without a password."""

    @property
    def url(self) -> str:
        """The URL of its only database."""
        return f"postgresql://{_USER}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start it with new data, and wait until it answers."""
        data = self._emptied() / "data"
        data.mkdir()
        before: Sequence[str] = ()
        if os.geteuid() == 0:
            before = _AS_ITS_USER
            shutil.chown(data, _USER)
            self._directory.parent.chmod(0o711)  # Its user must get there.
        initdb = [*before, str(PROGRAMS / "initdb"), "-D", str(data), "-U", _USER, "-A", "trust"]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd="/")
        command = [*before, str(PROGRAMS / "postgres"), "-D", str(data), "-p", str(self._port)]
        command += ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        self._server.start(command, environment(), cwd=data)
        wait_until(self._answers, [self._server])

    def _answers(self) -> bool:
        asked = [str(PROGRAMS / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self._port)]
        return subprocess.run(asked, check=False).returncode == 0
