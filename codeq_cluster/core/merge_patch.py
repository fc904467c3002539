"""Merge patch: changes a JSON object by RFC 7396; unnamed members stay byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

_decode = msgspec.json.Decoder(dict[str, Raw]).decode
_encode = msgspec.json.Encoder().encode
_NULL = b"null"


class NoObject(Exception):
    """The text, or the patch, is no JSON object."""


def patched(text: str, patch: str) -> str:
    """Return a JSON object, with the members that the patch names replaced or removed.

    Args:
        text: A JSON object.
        patch: A JSON object; a null member removes the member of that name.

    Raises:
        NoObject: The text or the patch is no JSON object.
    """
    return _patched(text.encode(), _members(patch.encode())).decode()


def _patched(text: bytes, patch: Mapping[str, Raw]) -> bytes:
    members = _members(text)
    for name, raw in patch.items():
        value = bytes(raw).strip()
        if value == _NULL:
            members.pop(name, None)
        elif value.startswith(b"{"):
            old = bytes(members.get(name, Raw(b"{}"))).strip()
            # By the RFC, an object replaces any other value.
            inner = _patched(old if old.startswith(b"{") else b"{}", _members(value))
            members[name] = Raw(inner)
        else:
            members[name] = Raw(value)
    return _encode(members)


def _members(text: bytes) -> dict[str, Raw]:
    try:
        return _decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoObject("no JSON object") from error
