"""The place of backups in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.backup.bucket import BackupBucket
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.open_target import open_place
from codeq_cluster.config import Loaded, load
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import BackupSettings

SECRET = "a-secret-that-nobody-sees"
NODE = {
    "PERSISTENCE_PATH": "/srv/data",
    "ALLOW_PRODUCER_AS_WORKER": "true",
    "AUTH_PRODUCER": '[{"kind": "static", "tokens": ["a-token-of-the-tests"]}]',
}
S3 = {
    "BACKUP_S3_BUCKET": "backups",
    "BACKUP_S3_ENDPOINT": "https://s3.example/",
    "BACKUP_S3_PREFIX": "codeq/prod",
    "BACKUP_S3_ACCESS_KEY_ID": "a-key",
    "BACKUP_S3_SECRET_ACCESS_KEY": SECRET,
}


def loaded(environment: dict[str, str]) -> Loaded:
    return load(environment=NODE | environment)


def test_backups_have_no_place_unless_one_is_given() -> None:
    """A node without the setting takes none."""
    settings = loaded({}).settings.backup

    assert BackupSettings() == settings
    assert open_place(settings) is None


def test_a_directory_or_a_bucket_is_given() -> None:
    """Either is enough, and the secret is never shown."""
    directory = open_place(loaded({"BACKUP_DIRECTORY": "/srv/backups"}).settings.backup)
    found = loaded(S3)
    bucket = open_place(found.settings.backup)

    assert isinstance(directory, BackupDirectory)
    assert "/srv/backups" == directory.where
    assert isinstance(bucket, BackupBucket)
    assert "s3://backups/codeq/prod" == bucket.where
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (S3 | {"BACKUP_DIRECTORY": "/srv/b"}, "backup.directory=/srv/b .*: must be empty"),
        ({"BACKUP_DIRECTORY": "/srv/data/b"}, "must be a path outside persistenceConfig.path"),
        ({"BACKUP_DIRECTORY": "/srv/data"}, "must be a path outside persistenceConfig.path"),
        (S3 | {"BACKUP_S3_ENDPOINT": "http://s3.example"}, "unless backup.s3.allowHttp is true"),
        (S3 | {"BACKUP_S3_ACCESS_KEY_ID": ""}, "one together with backup.s3.accessKeyId"),
        ({"BACKUP_KEEP": "0"}, "must be a whole number, 1 to 10000"),
    ],
)
def test_an_unsuitable_place_stops_the_start(environment: dict[str, str], line: str) -> None:
    """One line names the key."""
    with pytest.raises(ConfigInvalid, match=line):
        loaded({name: value for name, value in environment.items() if value})


def test_a_directory_beside_the_data_may_begin_alike() -> None:
    """Only a place below the data directory is refused."""
    found = loaded({"BACKUP_DIRECTORY": "/srv/data-backups"})

    assert Path("/srv/data-backups") == found.settings.backup.directory
