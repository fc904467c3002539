"""Reading: decodes bodies as leniently as the reference's decoder, and reads their fields.

Field names match in any case, unknown fields are ignored, null is the same as absent, and the last
of duplicated fields wins. Payloads and results keep the text that was sent.
"""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import accumulate
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from codeq_cluster.api.http.errors import ApiError, invalid_body

_INT64_MAX = 2**63 - 1

_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(sorted(set(range(256)) - set(b"[]{}")))
_STEP = {ord("["): 1, ord("]"): -1}

B = TypeVar("B", bound=Struct)


class Schema(Generic[B]):
    """Decodes one kind of body.

    A body with exact field names takes one pass. Otherwise a second pass drops unknown fields and
    folds case.
    """

    def __init__(self, body: type[B]) -> None:
        self._body = body
        self._exact = msgspec.json.Decoder(body)
        self._fields = {
            field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(body)
        }

    def decode(self, text: str | Raw, *, error: str) -> B:
        """Read a body.

        Args:
            text: The body, valid UTF-8.
            error: The text of a refusal.

        Raises:
            ApiError: 400, with that text.
        """
        try:
            return self._exact.decode(text)
        except msgspec.ValidationError:
            pass
        except (msgspec.DecodeError, RecursionError, UnicodeError) as unreadable:
            raise invalid_body(error) from unreadable
        try:
            return self._exact.decode(self._folded(text))
        except (msgspec.DecodeError, RecursionError) as unreadable:
            raise invalid_body(error) from unreadable

    def decode_any(self, text: str, *, error: str) -> B:
        """Read a body that may be missing or null, which count as empty; raises as `decode`."""
        text = text.strip()
        return self._body() if text in _EMPTY else self.decode(text, error=error)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the field names as they are sent."""
        return tuple(self._fields.values())

    def unknown(self, text: str) -> str | None:
        """Return the first field of a body that the schema does not have, or None.

        Args:
            text: The same text as for `decode_any`.
        """
        text = text.strip()
        names = {} if text in _EMPTY else _objects.decode(text)
        return next((name for name in names if name.lower() not in self._fields), None)

    def _folded(self, text: str | Raw) -> bytes:
        given = _objects.decode(text)
        known = {}
        for name, value in given.items():
            exact = self._fields.get(name.lower())
            if exact is not None:
                known[exact] = value
        return msgspec.json.encode(known)


_EMPTY = ("", "null")
_objects = msgspec.json.Decoder(dict[str, Raw])


def json_text(value: Raw, *, depth_max: int, error: str) -> str:
    """Return the JSON text of a field as it was sent, empty when it is absent or null.

    Raises:
        ApiError: 400 when it nests deeper than `depth_max`.
    """
    text = bytes(value).decode()
    if text == "null":
        return ""
    # Counting brackets is cheap; only a text with many of them is parsed.
    if text.count("[") + text.count("{") > depth_max and depth(text) > depth_max:
        raise invalid_body(error)
    return text


def whole(value: int | None, *, error: ApiError) -> int:
    """Return an integer field, 0 when absent.

    Raises:
        ApiError: The given error, for a number beyond 64 bits.
    """
    if value is None:
        return 0
    if not -_INT64_MAX <= value <= _INT64_MAX:
        raise error
    return value


def instant_ms(text: str, *, error: ApiError) -> int:
    """Return an instant of RFC 3339 as Unix milliseconds.

    Raises:
        ApiError: The given error, for anything else.
    """
    try:
        instant = msgspec.convert(text, datetime)
        if instant.tzinfo is None or text[10] not in "Tt":
            raise error
        unix_s = instant.astimezone(UTC).timestamp()  # Raises beyond the years 1 to 9999.
    except (msgspec.ValidationError, OverflowError, ValueError) as malformed:
        raise error from malformed
    return round(unix_s * 1000)


def depth(text: str) -> int:
    """Return how deep brackets nest in a JSON text, ignoring strings.

    Each step processes the whole text in C, because anybody may send a megabyte of brackets. That
    takes about 5 ms, 40 ms in the worst case.
    """
    unescaped = text.replace("\\\\", "").replace('\\"', "")
    outside = "".join(unescaped.split('"')[::2])
    brackets = outside.encode().translate(_ALIKE, _NO_BRACKETS)
    levels = 0
    # Removing the innermost pairs makes a text one level less deep; it pays while there are many.
    while 4 * len(left := brackets.replace(b"[]", b"")) < 3 * len(brackets):
        brackets = left
        levels += 1
    return levels + max(accumulate(map(_STEP.__getitem__, brackets)), default=0)
