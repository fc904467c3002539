"""Files: where artifacts and backups are stored."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from codeq_cluster.settings.key import key, section
from codeq_cluster.settings.kinds import FLAG, HOST, KEY_PREFIX, MIB, PATH, TEXT, URL, member, whole


class ArtifactProvider(StrEnum):
    """Where the artifacts of results are stored."""

    NONE = "none"
    LOCAL = "local"
    S3 = "s3"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """A bucket of an S3-compatible store; without a name, there is none."""

    bucket: str = key("", HOST, "{subject}; it must exist")
    endpoint: str = key("", URL, "base URL of the store; without it, AWS")
    region: str = key("us-east-1", TEXT, "region that requests are signed for")
    # Without slashes at its ends.
    prefix: str = key("", KEY_PREFIX, "prefix of every key in the bucket")
    access_key_id: str = key(
        "",
        TEXT,
        "access key; without it, the credentials that AWS's own tools would use",
        secret=True,
    )
    secret_access_key: str = key("", TEXT, "secret of `{section}.accessKeyId`", secret=True)
    allow_http: bool = key(False, FLAG, "the endpoint may use plain HTTP")
    virtual_hosted: bool = key(
        False, FLAG, "the bucket is in the endpoint's host name, not in the path"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSettings:
    """Where artifacts are stored."""

    provider: ArtifactProvider = key(
        ArtifactProvider.NONE,
        member(ArtifactProvider),
        "where artifacts are stored: `none` refuses them, `local` is a directory, `s3` a bucket",
    )
    public_url: str = key(
        "", URL, "prefix of the URLs of stored artifacts; without it they are paths"
    )
    directory: Path | None = key(
        None, PATH, "directory of the provider `local`, required with it; all nodes share it"
    )
    s3: S3Settings = section(S3Settings, "bucket of the provider `s3`, required with it")
    timeout_ms: int = key(
        30_000,
        whole(100, 600_000),
        "timeout of an upload, of a deletion, and of each step of a download",
    )
    uploads_max: int = key(
        8, whole(1, 1000), "concurrent uploads on one node; each takes up to 32 MiB of memory"
    )
    # More than one task can hold: 100 artifacts x 64 MiB by default.
    tenant_bytes_max: int = key(
        10 * 2**30,
        whole(0, 2**53 - 1),
        "uploads of a tenant without `budgets.storedBytes` end where its stored payloads, results "
        "and artifacts have this size; 0 for no bound",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    """Where this node stores the backups it takes: a directory, a bucket, or nowhere."""

    directory: Path | None = key(
        None, PATH, "directory for this node's backups; on another disk than the data"
    )
    s3: S3Settings = section(S3Settings, "bucket for backups, in place of a directory")
    timeout_ms: int = key(
        30_000, whole(100, 600_000), "an operation fails when the store is silent for this long"
    )
    # A week of daily ones.
    keep: int = key(
        7,
        whole(1, 10_000),
        "complete backups to keep; a new one that is verified replaces the oldest",
    )
    # The thread that compresses the rows takes turns with the node's own.
    bytes_per_second: int = key(
        16 * MIB, whole(2**16, 2**34), "highest rate at which rows are read for a backup"
    )
