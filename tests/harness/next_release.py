"""Next release: this package as its next release might be, for clusters of mixed releases.

It knows formats of one version more: entries of version 2, which also carry a text. Its tasks have
one field more, in records and in messages between nodes. It speaks one version of the link more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import codeq_cluster
from codeq_cluster.codec import levels

LEVEL = levels.LEVEL + 1
ENTRY_VERSION = 2

# A file, a text that this release has there once, and its replacement.
_EDITS = (
    ("codec/levels.py", f"LEVEL = {levels.LEVEL}\n", f"LEVEL = {LEVEL}\n"),
    (
        "codec/entries.py",
        "_FORMS = {1: _Form(1, _pack, _unpacked)}\n",
        f"""_FORMS = {{1: _Form(1, _pack, _unpacked)}}


def _next_pack(entry: Entry) -> bytes:
    return _pack([_pack(entry), "one more"])


def _next_unpacked(body: bytes) -> Entry:
    match msgspec.msgpack.decode(body):
        case [bytes(first), str()]:
            return _unpacked(first)
        case _:
            raise EntryInvalid("entry of version {ENTRY_VERSION} without its text")


_FORMS[{ENTRY_VERSION}] = _Form({LEVEL}, _next_pack, _next_unpacked)
""",
    ),
    (
        "core/task.py",
        "\n\ndef worker_shown(",
        '    one_more: Error = "one more"\n\n\ndef worker_shown(',
    ),
    ("wire/handshake.py", "VERSIONS: Final = (1, 1)\n", "VERSIONS: Final = (1, 2)\n"),
    ("__init__.py", "__version__ = ", '__version__ = "next of " + '),
)


def next_release(directory: Path) -> Path:
    """Write the next release into an empty directory; nodes can run it from there."""
    package = directory / codeq_cluster.__name__
    shutil.copytree(Path(codeq_cluster.__file__).parent, package)
    for name, now, then in _EDITS:
        file = package / name
        text = file.read_text()
        assert 1 == text.count(now), f"{name} has no {now!r} to change"
        file.write_text(text.replace(now, then))
    return directory
