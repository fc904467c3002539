"""Error kinds: errors that differ in numbers and names alone are one kind."""

from __future__ import annotations

import re

KIND_CHARS_MAX = 200

_NONE = "(no error)"

# In this order: an id is no number, and a quoted text may hold either.
_VARIABLE = re.compile(
    r"[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F-]{13,}"  # A UUID.
    r"|\b0x[0-9a-fA-F]+\b"
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"  # Hexadecimal, with one digit at least.
    r"|[0-9]+(?:[.,:][0-9]+)*"
)
_SPACES = re.compile(r"\s+")


def error_kind(error: str) -> str:
    """Return what an error has in common with others of its kind: `#` for what varies.

    It is never empty, and of its own kind.
    """
    # What is cut off first is cut off of all alike, and bounds the work.
    text = _SPACES.sub(" ", error[: 4 * KIND_CHARS_MAX]).strip()
    return _VARIABLE.sub("#", text)[:KIND_CHARS_MAX].strip() or _NONE
