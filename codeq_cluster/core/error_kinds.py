"""Error kinds: errors that differ only in numbers and ids are of one kind."""

from __future__ import annotations

import re

KIND_CHARS_MAX = 200

_NONE = "(no error)"

# The order matters: an id must not match as a number, and a quoted text may hold either.
_VARIABLE = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{13,}"  # A UUID.
    r"|\b0x[0-9a-fA-F]+\b"
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"  # Hexadecimal, with at least one digit.
    r"|[0-9]+(?:[.,:][0-9]+)*"
)
_SPACES = re.compile(r"\s+")


def error_kind(error: str) -> str:
    """Return the common part of an error's kind, with `#` for its variable parts.

    The result is never empty, and is the kind of itself.
    """
    # The cut bounds the work on a long error.
    text = _SPACES.sub(" ", error[: 4 * KIND_CHARS_MAX]).strip()
    return _VARIABLE.sub("#", text)[:KIND_CHARS_MAX].strip() or _NONE
