"""Names: which names and content types an artifact may have, and the path it is stored under.

A path has four segments, `tenant/task/upload/name`. What workers choose is escaped into one segment
that no directory and no store reads anything into, so a name cannot leave its upload's prefix.
"""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata

NAME_CHARS_MAX = 255
CONTENT_TYPE_CHARS_MAX = 255
DEFAULT_CONTENT_TYPE = "application/octet-stream"

# A file name has 255 bytes at most, an S3 key 1024: four segments and a prefix of 256 fit.
_SEGMENT_CHARS_MAX = 160
_CUT_CHARS = 80
_DEFAULT_TENANT = "!"  # Its name is empty; no escaped text is a mark alone.
_SAFE = frozenset((string.ascii_letters + string.digits + ".-_").encode())

_BAD_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}  # Controls, lone surrogates, line breaks.
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - the token of RFC 9110 section 5.6.2
_CONTENT_TYPE = re.compile(
    rf'{_TOKEN}/{_TOKEN}( *; *{_TOKEN}=({_TOKEN}|"[ !#-\[\]-~]*"))*', re.ASCII
)


def is_name(name: str) -> bool:
    """Tell whether an artifact may be called that.

    1 to 255 characters, `/` between segments that are neither empty nor `.` nor `..`, no backslash,
    no control character and no line break.
    """
    return (
        1 <= len(name) <= NAME_CHARS_MAX
        and "\\" not in name
        and all(segment not in {"", ".", ".."} for segment in name.split("/"))
        and all(unicodedata.category(char) not in _BAD_CATEGORIES for char in name)
    )


def is_content_type(text: str) -> bool:
    """Tell whether the text is a media type that may stand in a header."""
    return len(text) <= CONTENT_TYPE_CHARS_MAX and _CONTENT_TYPE.fullmatch(text) is not None


def task_prefix(tenant: str, task_id: str) -> str:
    """Return what the paths of a task's artifacts begin with, without the last slash."""
    return f"{_segment(tenant) if tenant else _DEFAULT_TENANT}/{_segment(task_id)}"


def upload_prefix(tenant: str, task_id: str, upload_id: str) -> str:
    """Return what the paths of one submit's artifacts begin with, without the last slash."""
    return f"{task_prefix(tenant, task_id)}/{_segment(upload_id)}"


def artifact_path(tenant: str, task_id: str, upload_id: str, name: str) -> str:
    """Return where an artifact is stored; different artifacts, different paths.

    Raises:
        ValueError: The name is none.
    """
    if not is_name(name):
        raise ValueError(f"no name of an artifact: {name!r}")
    return f"{upload_prefix(tenant, task_id, upload_id)}/{_segment(name)}"


def tenant_segment(path: str) -> str:
    """Return the part of an artifact's path that is the same for all of one tenant."""
    return path.partition("/")[0]


def _segment(text: str) -> str:
    """Escape a text into one segment: `!` and two hexadecimal digits for each byte but the safe."""
    assert text, "a segment is never empty"
    content = text.encode()
    escaped = "".join(chr(byte) if byte in _SAFE else f"!{byte:02X}" for byte in content)
    if escaped in {".", ".."}:
        return escaped.replace(".", "!2E")
    if len(escaped) <= _SEGMENT_CHARS_MAX:
        return escaped
    # No escaped text has two marks in a row, so a shortened one equals none that is not.
    return f"{escaped[:_CUT_CHARS]}!!{hashlib.sha256(content).hexdigest()}"
