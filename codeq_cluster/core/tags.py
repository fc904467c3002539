"""Tags: the texts by which a task is found, and its metadata, by which nothing is found.

A tag is a name with a value; a task has at most one value of a name. Tags are kept in the order of
their names, so that equal ones are the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct

from codeq_cluster.core.bounds import is_json, text

TAGS_MAX = 10  # Of one task: each is a row, written with the task and deleted with it.
TAG_NAME_BYTES_MAX = 64
TAG_VALUE_BYTES_MAX = 128
METADATA_BYTES_MAX = 4096  # It is written again with each change of its task.
SEPARATOR = ":"  # Between name and value where a tag is one text; so no name contains it.

_NAME = text(TAG_NAME_BYTES_MAX, empty=False)
_VALUE = text(TAG_VALUE_BYTES_MAX, empty=False)
_METADATA = text(METADATA_BYTES_MAX)
_NAMES = f"1 to {TAG_NAME_BYTES_MAX} bytes without a colon"


def tags_fault(value: object) -> str:
    """Return what tags must be; empty if they are that."""
    assert isinstance(value, tuple)
    names = [name for name, _ in value]
    if len(value) > TAGS_MAX:
        return f"must be at most {TAGS_MAX}"
    if names != sorted(set(names)):
        return "must be in the order of their names, each once"
    if not all(map(is_tag_name, names)):
        return f"names must be {_NAMES}"
    if any(_VALUE(each) for _, each in value):
        return f"values must be 1 to {TAG_VALUE_BYTES_MAX} bytes"
    return ""


def removed_fault(names: Sequence[str]) -> str:
    """Return what the names of tags to remove must be; empty if they are that."""
    if len(names) <= TAGS_MAX and all(map(is_tag_name, names)):
        return ""
    return f"remove must have at most {TAGS_MAX} names, each {_NAMES}"


def is_tag_name(name: str) -> bool:
    """Return whether a text may be the name of a tag."""
    return not _NAME(name) and SEPARATOR not in name


def metadata_fault(value: object) -> str:
    """Return what metadata must be; empty if it is that."""
    assert isinstance(value, str)
    fits = not _METADATA(value) and (not value or is_json(value))
    return "" if fits else f"must be JSON of at most {METADATA_BYTES_MAX} bytes, or empty"


Tags: TypeAlias = Annotated[tuple[tuple[str, str], ...], Meta(max_length=TAGS_MAX), tags_fault]
Metadata: TypeAlias = Annotated[str, metadata_fault]


class ChangeTags(Struct, frozen=True, array_like=True, tag="change_tags", kw_only=True):
    """Give a task other tags, in whatever state it is; its course is not touched.

    Attributes:
        put: Tags that it has afterwards.
        remove: Names of which it has none afterwards, none of them in `put`.
    """

    id: str
    tenant: str
    put: tuple[tuple[str, str], ...] = ()
    remove: tuple[str, ...] = ()


def in_order(tags: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return tags as they are kept."""
    return tuple(sorted(tags.items()))


def shown_tag(name: str, value: str) -> str:
    """Return a tag as one text."""
    return f"{name}{SEPARATOR}{value}"


def tag_bytes(tags: tuple[tuple[str, str], ...]) -> int:
    """Return the size of tags."""
    return sum(len(name.encode()) + len(value.encode()) for name, value in tags)
