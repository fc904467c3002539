"""Exchange: putting one directory in the place of another, all or nothing over a crash.

<path>            what is in use
<path>.incoming   what shall replace it, complete and on disk once the marker is there
<path>.ready      the marker: from here on the exchange goes forward
<path>.old        what was in use, until it is deleted
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from codeq_cluster.durable import sync_directory


def incoming_path(path: Path) -> Path:
    """Return where a replacement is prepared."""
    return path.with_name(path.name + ".incoming")


def exchange(path: Path) -> None:
    """Put the prepared directory in the place of `path`; nobody has either open.

    Raises:
        OSError: The disk refused; `settle` goes on from where it stopped.
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
    """Finish or undo what a crash has interrupted; before anybody opens `path`.

    Raises:
        OSError: The disk refused.
    """
    if finish(path):
        return
    shutil.rmtree(incoming_path(path), ignore_errors=True)
    shutil.rmtree(_old(path), ignore_errors=True)


def settled(path: Path) -> Path:
    """Return which directory `settle` would leave in the place of `path`; changes nothing."""
    incoming, old = incoming_path(path), _old(path)
    if _marker(path).exists():
        if incoming.exists():
            return incoming
        if not path.exists() and old.exists():
            return old
    return path


def finish(path: Path) -> bool:
    """Finish an exchange that stopped halfway; leave alone what is only being prepared.

    False when there was none.

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
        # The replacement is gone, by whatever hand: what was in use is still whole.
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
