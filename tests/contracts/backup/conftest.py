"""The targets under test: a directory, and a bucket of a real S3 server."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from codeq_cluster.backup.bucket import BackupBucket
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.settings import BackupSettings
from tests.contracts.artifacts.s3_server import BUCKET, S3Server, bucket_at, running


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Yield one server for all tests; each has a prefix of its own."""
    with running(tmp_path_factory.mktemp("s3") / "data") as server:
        yield server


@pytest.fixture
def bucket(s3_server: S3Server) -> BackupBucket:
    """Return an empty prefix of the bucket."""
    return bucket_of(s3_server.endpoint)


def bucket_of(endpoint: str, *, timeout_ms: int = 60_000, name: str = BUCKET) -> BackupBucket:
    """Return an empty prefix of a bucket."""
    s3 = bucket_at(endpoint, prefix=f"tests/{secrets.token_hex(8)}", bucket=name)
    return BackupBucket(BackupSettings(s3=s3, timeout_ms=timeout_ms))


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> BackupTarget:
    """Return an empty place of each kind."""
    if request.param == "directory":
        return BackupDirectory(tmp_path / "backups")
    made: BackupBucket = request.getfixturevalue("bucket")
    return made
