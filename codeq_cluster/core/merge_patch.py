"""Merge patch: changes a JSON object by RFC 7396; unnamed members stay byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
from msgspec import Raw

_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode
_NULL = b"null"

_Members: TypeAlias = Mapping[str, "bytes | _Members"]  # A member's JSON, or what changes within.


class NoObject(Exception):
    """The text, or the patch, is no JSON object."""


class Patch:
    """A merge patch, which is read once for all texts that it changes.

    Args:
        text: A JSON object; a null member removes the member of that name.

    Raises:
        NoObject: The patch is no JSON object, or nests too deep to be read.
    """

    def __init__(self, text: str) -> None:
        try:
            self._members = _read(text.encode())
        except RecursionError as error:
            raise NoObject("nests too deep") from error

    def applied_to(self, text: str) -> str:
        """Return a JSON object with the members that the patch names replaced or removed.

        Raises:
            NoObject: The text is no JSON object.
        """
        return _patched(text.encode(), self._members).decode()


def _read(text: bytes) -> _Members:
    members: dict[str, bytes | _Members] = {}
    for name, raw in _members(text).items():
        value = bytes(raw).strip()
        members[name] = _read(value) if value.startswith(b"{") else value
    return members


def _patched(text: bytes, patch: _Members) -> bytes:
    members = _members(text)
    for name, value in patch.items():
        if isinstance(value, Mapping):
            old = bytes(members.get(name, Raw(b"{}"))).strip()
            # By the RFC, an object replaces any other value.
            members[name] = Raw(_patched(old if old.startswith(b"{") else b"{}", value))
        elif value == _NULL:
            members.pop(name, None)
        else:
            members[name] = Raw(value)
    return _encode(members)


def _members(text: bytes) -> dict[str, Raw]:
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoObject("no JSON object") from error
