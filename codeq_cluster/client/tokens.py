"""Tokens: where a bearer token was found, and what may be said of one that is refused."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from datetime import UTC, datetime
from typing import Final, Self

import msgspec

_ARGUMENT: Final = "the argument token"
_SUBJECT_CHARS_MAX: Final = 80


class Token(str):
    """A bearer token that knows where it was found; a plain one is an argument of the program."""

    __slots__ = ("origin",)

    origin: str

    def __new__(cls, text: str, origin: str) -> Self:
        """Return a token; `origin` is a place such as a variable's name, for messages."""
        token = super().__new__(cls, text)
        token.origin = origin
        return token


class _Claims(msgspec.Struct):
    sub: str = ""
    exp: float | None = None


def described(token: str) -> str:
    """Return where a token comes from and of what kind it is; nobody could use it by that."""
    origin = token.origin if isinstance(token, Token) else _ARGUMENT
    if not token:
        return f"{origin} is empty"
    claims = _claims(token)
    if claims is None:
        return f"{origin} has {len(token)} characters and is no JWT"
    text = f"{origin} is a JWT of {claims.sub[:_SUBJECT_CHARS_MAX]!r}"
    if claims.exp is None:
        return text
    try:
        ends = datetime.fromtimestamp(claims.exp, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{text}, which ends at no instant"
    verb = "ended" if ends <= datetime.now(UTC) else "ends"
    return f"{text} that {verb} at {ends:%Y-%m-%dT%H:%M:%SZ}"


def _claims(token: str) -> _Claims | None:
    """Return what a JWT says, unverified; None if the token is none."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        content = urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(content, type=_Claims)
    except (ValueError, msgspec.DecodeError):  # Before 0.21 the second is no kind of the first.
        return None
