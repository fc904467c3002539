"""Codecs: Python values to the JSON of payloads and results, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Codec(Protocol):
    """Turns values into JSON text and back; what it raises is for its caller to see."""

    def encode(self, value: object) -> bytes:
        """Return a value as JSON text."""

    def decoder(self, wanted: type[T]) -> Callable[[bytes], T]:
        """Return what reads JSON text as a type.

        Raises:
            TypeError: The type is none that this codec can read.
        """


class MsgspecCodec:
    """JSON by msgspec: builtins, dataclasses, attrs, msgspec structs, datetimes, UUIDs, decimals.

    What is read as a type is checked against it. `msgspec.Raw` is JSON text already and is sent as
    it is. Unknown fields are ignored, and a number that is none becomes null.
    """

    def encode(self, value: object) -> bytes:
        """Return a value as JSON text.

        Raises:
            TypeError: Something in it has no form in JSON.
        """
        return msgspec.json.encode(value)

    def decoder(self, wanted: type[T]) -> Callable[[bytes], T]:
        """Return what reads JSON text as a type; it raises `msgspec.ValidationError`.

        Raises:
            TypeError: msgspec does not know the type.
        """
        return msgspec.json.Decoder(wanted).decode


JSON: Final = MsgspecCodec()
