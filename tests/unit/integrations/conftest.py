"""Fixtures of the integrations' tests."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import django
import pytest
from celery.signals import setup_logging

from codeq_cluster.testing.broker import LocalBroker

_PROGRAMS = Path("/usr/lib/postgresql/15/bin")


def _leave_logging_alone(**_: object) -> None:
    """Do nothing: Celery's own setup would take the handlers of all tests from the root logger."""


setup_logging.connect(_leave_logging_alone, weak=False)

# Once a process, and before a test imports a task or a model.
_FILES = tempfile.mkdtemp(prefix="codeq-django-")
atexit.register(shutil.rmtree, _FILES)
os.environ["PROJECT_DATABASE"] = f"{_FILES}/app.db"
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.unit.integrations.django_project.settings"
django.setup()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test of a module; each works on queues of its own."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def url(broker: LocalBroker) -> str:
    """Return the broker's URL as Celery's users write it."""
    return broker.url.replace("http://", f"codeq://{broker.token}@")


@pytest.fixture
def closed_url() -> str:
    """Return the URL of a cluster that does not run."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"codeq://token@127.0.0.1:{probe.getsockname()[1]}"


def _as_its_user(*command: str) -> None:
    """Run a program of PostgreSQL, which refuses to be root."""
    before = ("runuser", "-u", "postgres", "--") if os.geteuid() == 0 else ()
    subprocess.run((*before, *command), check=True, stdout=subprocess.DEVNULL, timeout=120, cwd="/")


@pytest.fixture(scope="package")
def postgresql_directory() -> Iterator[Path]:
    """Run a PostgreSQL, and return the directory of the socket on which it listens."""
    # Its user must get there, which it cannot below a directory of pytest.
    directory = Path(tempfile.mkdtemp(prefix="codeq-pg-"))
    files = str(directory / "data")
    if os.geteuid() == 0:
        shutil.chown(directory, "postgres")
    try:
        initdb = str(_PROGRAMS / "initdb")
        _as_its_user(initdb, "-D", files, "-U", "postgres", "-A", "trust", "--no-sync")
        control = (str(_PROGRAMS / "pg_ctl"), "-D", files, "-l", str(directory / "log"))
        options = f"-c listen_addresses='' -c fsync=off -k {directory}"
        _as_its_user(*control, "-w", "-o", options, "start")
        try:
            yield directory
        finally:
            _as_its_user(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory)
