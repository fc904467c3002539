"""Shims: native libraries between a node and its machine, and the pages that control them."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
from pathlib import Path

NATIVE = Path(__file__).parent.parent / "native"
_PAGE_BYTES = 4096


class ShimFailed(RuntimeError):
    """A shim cannot be built on this machine; the text says why."""


def shim(name: str) -> Path:
    """Return a shared library, built if necessary.

    Args:
        name: Of its source, without the suffix.

    Raises:
        ShimFailed: There is no compiler, or it refused.
    """
    source = NATIVE / f"{name}.c"
    directory = Path.home() / ".cache" / "jepsen-lite"
    library = directory / f"{name}-{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.so"
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    command = ["gcc", "-O2", "-shared", "-fPIC", "-o", str(made), str(source), "-ldl", "-lpthread"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ShimFailed("no gcc") from error
    if done.returncode:
        raise ShimFailed(f"gcc: {done.stderr.strip()[:300]}")
    made.replace(library)
    return library


def control_page(path: Path) -> mmap.mmap:
    """Return a page of zeros that a shim maps as well."""
    path.write_bytes(bytes(_PAGE_BYTES))
    with path.open("r+b") as opened:
        return mmap.mmap(opened.fileno(), _PAGE_BYTES)
