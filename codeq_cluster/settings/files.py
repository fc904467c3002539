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

    bucket: str = key("{section}.bucket", "", HOST, "{subject}; it is not made")
    endpoint: str = key("{section}.endpoint", "", URL, "base URL of the store; without it, AWS")
    region: str = key("{section}.region", "us-east-1", TEXT, "that requests are signed for")
    # Without slashes at its ends.
    prefix: str = key("{section}.prefix", "", KEY_PREFIX, "of every key in the bucket")
    access_key_id: str = key(
        "{section}.accessKeyId",
        "",
        TEXT,
        "without it, the credentials that AWS's own tools would find",
        secret=True,
    )
    secret_access_key: str = key(
        "{section}.secretAccessKey", "", TEXT, "goes with `{section}.accessKeyId`", secret=True
    )
    allow_http: bool = key(
        "{section}.allowHttp", False, FLAG, "the endpoint may be one without TLS"
    )
    virtual_hosted: bool = key(
        "{section}.virtualHosted",
        False,
        FLAG,
        "the bucket is in the endpoint's host name, not in the path",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactSettings:
    """Where artifacts are stored."""

    provider: ArtifactProvider = key(
        "artifacts.provider",
        ArtifactProvider.NONE,
        member(ArtifactProvider),
        "where artifacts are kept: `none` refuses them, `local` a directory, `s3` a bucket",
    )
    public_url: str = key(
        "artifacts.publicUrl",
        "",
        URL,
        "what the URLs of stored artifacts begin with; without it they are paths",
    )
    # The same for every node, on a shared disk if need be.
    directory: Path | None = key(
        "artifacts.directory", None, PATH, "of the provider `local`, a must with it"
    )
    s3: S3Settings = section(S3Settings, "of the provider `s3`, a must with it")
    timeout_ms: int = key(
        "artifacts.timeoutMs",
        30_000,
        whole(100, 600_000),
        "of an upload, of a deletion, and of each step of a download",
    )
    uploads_max: int = key(
        "artifacts.uploadsMax",
        8,
        whole(1, 1000),
        "uploads under way on one node; each has up to 32 MiB in memory",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupSettings:
    """Where this node stores the backups it takes: a directory, a bucket, or nowhere."""

    directory: Path | None = key(
        "backup.directory",
        None,
        PATH,
        "where this node keeps the backups it takes; on another disk than the data",
    )
    s3: S3Settings = section(S3Settings, "keeps them instead of a directory")
    timeout_ms: int = key(
        "backup.timeoutMs",
        30_000,
        whole(100, 600_000),
        "silence of the store that is put up with",
    )
    # A week of daily ones.
    keep: int = key(
        "backup.keep", 7, whole(1, 10_000), "complete backups that stay when a new one is verified"
    )
    # The thread that compresses the rows takes turns with the node's own.
    bytes_per_second: int = key(
        "backup.bytesPerSecond",
        16 * MIB,
        whole(2**16, 2**34),
        "of rows that are read for a backup, at most",
    )
