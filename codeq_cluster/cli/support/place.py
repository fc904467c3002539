"""Place: the storage of backups that a command's flags name."""

from __future__ import annotations

import argparse
from pathlib import Path

from codeq_cluster.backup.bucket import BackupBucket
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.cli.support.outcome import UsageRefused
from codeq_cluster.errors import BackupFailed
from codeq_cluster.settings import BackupSettings, S3Settings

_SCHEME = "s3://"
_S3_REGION = "us-east-1"


def add_place(
    parser: argparse.ArgumentParser, flag: str, words: str, *, required: bool = True
) -> None:
    """Add the flag that names a place, `place` in the options, and those of a bucket."""
    parser.add_argument(
        flag,
        dest="place",
        required=required,
        metavar="PLACE",
        help=f"{words}: a directory, or s3://BUCKET/PREFIX",
    )
    add_place_options(parser)


def add_place_options(parser: argparse.ArgumentParser) -> None:
    """Add the flags that a bucket needs beside its name."""
    parser.add_argument(
        "--s3-endpoint",
        default="",
        metavar="URL",
        help="of a bucket that is not AWS's; credentials come from the AWS_… variables",
    )
    parser.add_argument(
        "--s3-region",
        default=_S3_REGION,
        metavar="NAME",
        help=f"of the bucket; default: {_S3_REGION}",
    )


def place_of(name: str, options: argparse.Namespace, *, new: bool = False) -> BackupTarget:
    """Return the place of that name.

    Args:
        name: A directory, or `s3://bucket/prefix`.
        options: With the flags of a bucket.
        new: It will be written to; the directory need not exist.

    Raises:
        Usage: The name is not a place.
        BackupFailed: The directory does not exist.
    """
    if not name.startswith(_SCHEME):
        if not new and not Path(name).is_dir():
            raise BackupFailed(f"{name}: there is no such directory")
        return BackupDirectory(Path(name))
    bucket, _, prefix = name.removeprefix(_SCHEME).partition("/")
    if not bucket:
        raise UsageRefused(f"{name}: must be a directory, or s3://BUCKET/PREFIX")
    return BackupBucket(
        BackupSettings(
            s3=S3Settings(
                bucket=bucket,
                prefix=prefix.strip("/"),
                endpoint=options.s3_endpoint,
                region=options.s3_region,
                # A URL typed by hand without TLS is deliberate.
                allow_http=options.s3_endpoint.startswith("http:"),
            )
        )
    )
