"""Directory: the files of a development cluster on disk, and the lock on them."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from codeq_cluster.cli.local.dev.plan import NO_EXTRAS, Extras, PlannedNode, document
from codeq_cluster.cli.support.dev_cluster import STATE
from codeq_cluster.errors import DataDirectoryRefused

_IDENTITY = "dev.json"
_LOCK = "dev.lock"
_SECRET = "cluster-secret"  # noqa: S105 - a file's name
_FORMAT = 1

# At a start, a larger log is moved aside. With restarts now and then, a node keeps at most two
# files of this size.
_LOG_BYTES_MAX = 64 * 2**20


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory for this process, creating it if it is missing.

    Raises:
        DataDirectoryRefused: Another development cluster uses it, or it holds unrelated files.
    """
    if directory.is_dir() and not _ours(directory):
        raise DataDirectoryRefused(
            f"{directory} holds files that are no development cluster's; "
            "name an empty or a new directory with --data"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataDirectoryRefused(f"{directory}: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
            raise DataDirectoryRefused(
                f"{directory} is in use by another development cluster (process {holder}); "
                "stop it, or name another directory with --data"
            ) from error
        os.ftruncate(handle, 0)
        os.pwrite(handle, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(handle)


def _ours(directory: Path) -> bool:
    """Return whether it is empty, a cluster's, or left by an unfinished start."""
    names = {entry.name for entry in directory.iterdir()}
    return _IDENTITY in names or names <= {_LOCK}


def empty(directory: Path, *, keep: Collection[str] = ()) -> None:
    """Delete the cluster in a directory that this process has locked, but for what `keep` names."""
    for entry in directory.iterdir():
        if entry.name in keep:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != _LOCK:
            entry.unlink()


def prepare(
    directory: Path,
    nodes: tuple[PlannedNode, ...],
    *,
    shards: int | None,
    extras: Extras = NO_EXTRAS,
) -> int:
    """Write every node's configuration and, in a new directory, the cluster's size.

    Args:
        directory: Locked by this process.
        nodes: The same number at every start.
        shards: None for the data's own number, 4 if it is new.
        extras: What the cluster has beside the usual, from this start on.

    Returns:
        The number of shards.

    Raises:
        DataDirectoryRefused: The data belongs to other numbers, or cannot be read or written.
    """
    try:
        shards = _identify(directory, nodes=len(nodes), shards=shards)
        secret_file = directory / _SECRET
        if not secret_file.exists():
            _write(secret_file, secrets.token_hex(32) + "\n")
        for node in nodes:
            node.directory.mkdir(exist_ok=True)
            content = document(node, nodes, shards=shards, secret_file=secret_file, extras=extras)
            text = yaml.safe_dump(content, sort_keys=False)
            _write(node.config_file, f"# Rewritten by every `codeq-cluster dev`.\n{text}")
            if node.log_file.exists() and node.log_file.stat().st_size > _LOG_BYTES_MAX:
                node.log_file.replace(node.log_file.with_suffix(".log.1"))
    except OSError as error:
        raise DataDirectoryRefused(f"{directory}: {error.strerror or error}") from error
    return shards


def _identify(directory: Path, *, nodes: int, shards: int | None) -> int:
    file = directory / _IDENTITY
    if not file.exists():
        made = {"format": _FORMAT, "nodes": nodes, "shards": shards or 4}
        _write(file, json.dumps(made) + "\n")
        return shards or 4
    try:
        made = json.loads(file.read_bytes())
        found = (int(made["format"]), int(made["nodes"]), int(made["shards"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataDirectoryRefused(f"{file} is damaged: {error!r}") from error
    if found[0] != _FORMAT:
        raise DataDirectoryRefused(
            f"{directory} has format {found[0]}; this version reads {_FORMAT}"
        )
    for what, has, wanted in (("nodes", found[1], nodes), ("shards", found[2], shards)):
        if wanted is not None and has != wanted:
            raise DataDirectoryRefused(
                f"{directory} was made for {has} {what}, not {wanted}; "
                f"start it with --{what} {has}, or name another directory with --data"
            )
    return found[2]


def publish(directory: Path, nodes: Sequence[tuple[PlannedNode, int | None]]) -> None:
    """Write cluster.json: the nodes and their process ids, None for a node that does not run."""
    rows = [
        {"id": node.id, "pid": pid, "url": node.url, "dataDir": str(node.data_directory)}
        for node, pid in nodes
    ]
    _write(directory / STATE, json.dumps({"nodes": rows}, indent=2) + "\n")


def retract(directory: Path) -> None:
    """Remove cluster.json: nothing runs any more."""
    (directory / STATE).unlink(missing_ok=True)


def _write(file: Path, text: str) -> None:
    """Replace the file atomically: a reader sees the old or the new one; readable by this user."""
    fresh = file.with_name(f".{file.name}.new")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
    fresh.replace(file)
