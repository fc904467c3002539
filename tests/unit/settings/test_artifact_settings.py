"""The artifact store in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from codeq_cluster.config import Loaded, load
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import ArtifactProvider, ArtifactSettings, S3Settings

SECRET = "a-secret-that-nobody-sees"
NODE = {
    "PERSISTENCE_PATH": "data",
    "ALLOW_PRODUCER_AS_WORKER": "true",
    "AUTH_PRODUCER": '[{"kind": "static", "tokens": ["a-token-of-the-tests"]}]',
}
S3 = {
    "ARTIFACTS_PROVIDER": "s3",
    "ARTIFACTS_S3_BUCKET": "tasks",
    "ARTIFACTS_S3_ENDPOINT": "https://s3.example/",
    "ARTIFACTS_S3_REGION": "eu-west-1",
    "ARTIFACTS_S3_PREFIX": "/codeq/prod/",
    "ARTIFACTS_S3_ACCESS_KEY_ID": "a-key",
    "ARTIFACTS_S3_SECRET_ACCESS_KEY": SECRET,
    "ARTIFACTS_S3_VIRTUAL_HOSTED": "true",
    "ARTIFACTS_TIMEOUT_MS": "5000",
    "ARTIFACTS_UPLOADS_MAX": "3",
}


def loaded(environment: dict[str, str]) -> Loaded:
    return load(environment=NODE | environment)


def test_artifacts_have_no_place_unless_one_is_given() -> None:
    """A node without the setting refuses artifacts."""
    assert ArtifactSettings() == loaded({}).settings.artifacts
    assert ArtifactProvider.NONE is ArtifactSettings().provider


def test_a_directory_is_given() -> None:
    """A provider and a path are enough."""
    found = loaded({"ARTIFACTS_PROVIDER": "local", "ARTIFACTS_DIRECTORY": "/srv/a"})

    assert (
        ArtifactSettings(provider=ArtifactProvider.LOCAL, directory=Path("/srv/a"))
        == found.settings.artifacts
    )


def test_a_bucket_is_given() -> None:
    """Every key reaches its field; slashes around a prefix are dropped."""
    assert (
        ArtifactSettings(
            provider=ArtifactProvider.S3,
            s3=S3Settings(
                bucket="tasks",
                endpoint="https://s3.example",
                region="eu-west-1",
                prefix="codeq/prod",
                access_key_id="a-key",
                secret_access_key=SECRET,
                virtual_hosted=True,
            ),
            timeout_ms=5000,
            uploads_max=3,
        )
        == loaded(S3).settings.artifacts
    )


def test_the_keys_of_the_bucket_are_not_shown() -> None:
    """Neither the effective configuration nor a log line shows them."""
    found = loaded(S3)

    assert SECRET not in repr(found)
    assert "********" in {
        shown.value for shown in found.effective if shown.name == "artifacts.s3.secretAccessKey"
    }


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        ({"ARTIFACTS_PROVIDER": "gcs"}, "artifacts.provider=gcs"),
        ({"ARTIFACTS_PROVIDER": "local"}, "artifacts.directory="),
        (S3 | {"ARTIFACTS_S3_BUCKET": ""}, "artifacts.s3.bucket="),
        (S3 | {"ARTIFACTS_S3_BUCKET": "a/b"}, "artifacts.s3.bucket=a/b"),
        (S3 | {"ARTIFACTS_S3_ENDPOINT": "s3.example"}, "artifacts.s3.endpoint=s3.example"),
        (S3 | {"ARTIFACTS_S3_ENDPOINT": "http://s3.example"}, "artifacts.s3.endpoint="),
        (S3 | {"ARTIFACTS_S3_ACCESS_KEY_ID": ""}, "artifacts.s3.secretAccessKey="),
        (S3 | {"ARTIFACTS_S3_SECRET_ACCESS_KEY": ""}, "artifacts.s3.secretAccessKey="),
        (S3 | {"ARTIFACTS_S3_PREFIX": "a/../b"}, "artifacts.s3.prefix=a/../b"),
        (S3 | {"ARTIFACTS_S3_PREFIX": "a//b"}, "artifacts.s3.prefix=a//b"),
        (S3 | {"ARTIFACTS_S3_PREFIX": "x" * 257}, "artifacts.s3.prefix="),
        ({"LIMITS_MAX_ARTIFACT_BYTES": "1"}, "limits.maxArtifactBytes=1"),
    ],
)
def test_a_wrong_place_stops_the_start(environment: dict[str, str], text: str) -> None:
    """One line names the key, and no secret."""
    with pytest.raises(ConfigInvalid) as caught:
        loaded(environment)

    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert SECRET not in str(caught.value)


def test_an_endpoint_without_tls_is_allowed_on_request() -> None:
    """A private network or a test may need one."""
    http = {"ARTIFACTS_S3_ENDPOINT": "http://127.0.0.1:9000", "ARTIFACTS_S3_ALLOW_HTTP": "true"}

    assert "http://127.0.0.1:9000" == loaded(S3 | http).settings.artifacts.s3.endpoint
