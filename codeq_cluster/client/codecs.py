"""Codecs: Python values to the JSON of payloads and results, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Codec(Protocol):
    """Turns values into JSON text and back; its exceptions reach the caller unchanged."""

    def encode(self, value: object) -> bytes:
        """Return a value as JSON text."""

    def decoder(self, wanted: type[T]) -> Callable[[bytes], T]:
        """Return a function that reads JSON text as a type.

        Raises:
            TypeError: This codec cannot read the type.
        """


class MsgspecCodec:
    """JSON by msgspec: builtins, dataclasses, attrs, msgspec structs, datetimes, UUIDs, decimals.

    Reading as a type validates the input. `msgspec.Raw` is JSON text already and is sent unchanged.
    Unknown fields are ignored, and NaN or an infinite number becomes null.
    """

    def encode(self, value: object) -> bytes:
        """Return a value as JSON text.

        Raises:
            TypeError: A part of it cannot be written as JSON.
        """
        return msgspec.json.encode(value)

    def decoder(self, wanted: type[T]) -> Callable[[bytes], T]:
        """Return a function that reads JSON text as a type; it raises `msgspec.ValidationError`.

        Raises:
            TypeError: msgspec does not know the type.
        """
        return msgspec.json.Decoder(wanted).decode


JSON: Final = MsgspecCodec()
