"""Next release: this package as the one after it might be, for nodes of both in one cluster.

It knows formats of one level more: entries of version 2, which carry a text besides. Its tasks have
a field more, in records and in what nodes ask each other. It speaks one version of the link more.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import codeq_cluster

LEVEL = 2
ENTRY_VERSION = 2

# File, what this release has there once, and what the next one has.
_EDITS = (
    ("codec/levels.py", "LEVEL = 1\n", f"LEVEL = {LEVEL}\n"),
    (
        "codec/entries.py",
        "_FORMS = {1: _Form(1, _fields, _entry)}\n",
        f"""
def _next_fields(entry: Entry) -> list[object]:
    return [*_fields(entry), "one more"]


def _next_entry(fields: object) -> Entry:
    match fields:
        case [*first, str()]:
            return _entry(first)
        case _:
            raise EntryInvalid("entry of version {ENTRY_VERSION} without its text")


_FORMS = {{
    1: _Form(1, _fields, _entry),
    {ENTRY_VERSION}: _Form({LEVEL}, _next_fields, _next_entry),
}}
""",
    ),
    (
        "core/task.py",
        '    dead_queue: str = ""\n',
        '    dead_queue: str = ""\n    one_more: str = "one more"\n',
    ),
    ("wire/handshake.py", "VERSIONS: Final = (1, 1)\n", "VERSIONS: Final = (1, 2)\n"),
    ("__init__.py", "__version__ = ", '__version__ = "next of " + '),
)


def next_release(directory: Path) -> Path:
    """Make the next release in an empty directory, and return that: nodes run it from there."""
    package = directory / codeq_cluster.__name__
    shutil.copytree(Path(codeq_cluster.__file__).parent, package)
    for name, now, then in _EDITS:
        file = package / name
        text = file.read_text()
        assert text.count(now) == 1, f"{name} has no {now!r} to change"
        file.write_text(text.replace(now, then))
    return directory
