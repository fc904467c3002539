"""Fixtures of the integrations' tests."""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator

import django
import pytest
from celery.signals import setup_logging

from codeq_cluster.testing.broker import LocalBroker


def _leave_logging_alone(**_: object) -> None:
    """Do nothing: Celery's own setup would take the handlers of all tests from the root logger."""


setup_logging.connect(_leave_logging_alone, weak=False)

# Once a process, and before a test imports a task or a model.
_FILES = tempfile.mkdtemp(prefix="codeq-django-")
atexit.register(shutil.rmtree, _FILES)
os.environ["PROJECT_DATABASE"] = f"{_FILES}/app.db"
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.unit.integrations.django_project.settings"
django.setup()


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test here; each works on queues of its own."""
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
