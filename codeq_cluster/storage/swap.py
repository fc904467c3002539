"""Swap: replaces one directory with another, all or nothing even over a crash.

<path>            the directory in use
<path>.incoming   its replacement, complete and on disk once the marker exists
<path>.ready      the marker: from here on the exchange only goes forward
<path>.old        the former directory, until it is deleted
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from codeq_cluster.durable import sync_directory


def incoming_path(path: Path) -> Path:
    """Return the path where a replacement is prepared."""
    return path.with_name(path.name + ".incoming")


def exchange(path: Path) -> None:
    """Replace `path` with the prepared directory; nobody may have either open.

    Raises:
        OSError: The disk refused; `settle` completes the exchange.
    """
    incoming = incoming_path(path)
    for file in incoming.iterdir():
        _sync_file(file)
    sync_directory(incoming)
    marker = _marker(path)
    marker.touch()
    sync_directory(path.parent)
    _forward(path)


def settle(path: Path) -> None:
    """Finish or undo what a crash has interrupted, before anybody opens `path`.

    Raises:
        OSError: The disk refused.
    """
    if finish(path):
        return
    shutil.rmtree(incoming_path(path), ignore_errors=True)
    shutil.rmtree(_old(path), ignore_errors=True)


def settled(path: Path) -> Path:
    """Return the directory that `settle` would leave in the place of `path`; changes nothing."""
    incoming, old = incoming_path(path), _old(path)
    if _marker(path).exists():
        if incoming.exists():
            return incoming
        if not path.exists() and old.exists():
            return old
    return path


def finish(path: Path) -> bool:
    """Finish an interrupted exchange, but leave a download in progress untouched.

    False when there was none to finish.

    Raises:
        OSError: The disk refused.
    """
    if not _marker(path).exists():
        return False
    _forward(path)
    return True


def _forward(path: Path) -> None:
    incoming, old = incoming_path(path), _old(path)
    if incoming.exists():
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            path.rename(old)
        incoming.rename(path)
        sync_directory(path.parent)
    elif not path.exists() and old.exists():
        # Someone removed the replacement; the former directory is still intact.
        old.rename(path)
        sync_directory(path.parent)
    _marker(path).unlink()
    sync_directory(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def _marker(path: Path) -> Path:
    return path.with_name(path.name + ".ready")


def _old(path: Path) -> Path:
    return path.with_name(path.name + ".old")


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
