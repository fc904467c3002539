"""Postgres: a server of Debian's package, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

from sqlalchemy import create_engine, text

_INSTALLED = Path("/usr/lib/postgresql")
_USER = "postgres"
_WITHIN_S = 60


class Postgres:
    """A running server, which trusts everybody who reaches its socket."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def database(self) -> str:
        """Make a database, and return its URL for SQLAlchemy."""
        name = f"of_{uuid4().hex}"
        engine = create_engine(self._url(_USER), isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
        engine.dispose()
        return self._url(name)

    def _url(self, name: str) -> str:
        return f"postgresql+psycopg://{_USER}@/{name}?host={self._directory}"


@contextmanager
def running() -> Iterator[Postgres]:
    """Run a server; one that root starts runs as the package's user, since it refuses root."""
    [*_, programs] = sorted(_INSTALLED.glob("*/bin"))
    directory = Path(mkdtemp(prefix="codeq-postgres-"))
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:
        shutil.chown(directory, _USER)
        as_user = ("runuser", "-u", _USER, "--")

    def run(program: str, *arguments: str) -> None:
        command = [*as_user, str(programs / program), "-D", str(directory / "data"), *arguments]
        subprocess.run(command, check=True, timeout=_WITHIN_S, capture_output=True, cwd=directory)

    try:
        run("initdb", "-A", "trust", "-U", _USER, "--no-sync")
        started = f"-k {directory} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "-w", "-o", started, "-l", str(directory / "log"), "start")
        try:
            yield Postgres(directory)
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)
