"""Names: the allowed names and content types of artifacts, and the paths they are stored under.

A path has four segments, `tenant/task/upload/name`. Texts that workers choose are escaped into one
segment without special meaning to directories or stores. So a name cannot leave its upload's
prefix.
"""

from __future__ import annotations

import hashlib
import re
import string
import unicodedata

NAME_CHARS_MAX = 255
CONTENT_TYPE_CHARS_MAX = 255
DEFAULT_CONTENT_TYPE = "application/octet-stream"

# A file name has at most 255 bytes, an S3 key 1024: four segments and a prefix of 256 fit.
_SEGMENT_CHARS_MAX = 160
_CUT_CHARS = 80
_DEFAULT_TENANT = "!"  # The tenant's name is empty; no escaped text is `!` alone.
_SAFE = frozenset((string.ascii_letters + string.digits + ".-_").encode())

_BAD_CATEGORIES = {"Cc", "Cs", "Zl", "Zp"}  # Controls, lone surrogates, line breaks.
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"  # noqa: S105 - the token of RFC 9110 section 5.6.2
_CONTENT_TYPE = re.compile(
    rf'{_TOKEN}/{_TOKEN}( *; *{_TOKEN}=({_TOKEN}|"[ !#-\[\]-~]*"))*', re.ASCII
)


def is_name(name: str) -> bool:
    """Return whether an artifact may have this name.

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
    """Return whether the text is a media type that is valid in a header."""
    return len(text) <= CONTENT_TYPE_CHARS_MAX and _CONTENT_TYPE.fullmatch(text) is not None


def task_prefix(tenant: str, task_id: str) -> str:
    """Return the common prefix of a task's artifact paths, without the last slash."""
    return f"{_segment(tenant) if tenant else _DEFAULT_TENANT}/{_segment(task_id)}"


def upload_prefix(tenant: str, task_id: str, upload_id: str) -> str:
    """Return the common prefix of one submit's artifact paths, without the last slash."""
    return f"{task_prefix(tenant, task_id)}/{_segment(upload_id)}"


def artifact_path(tenant: str, task_id: str, upload_id: str, name: str) -> str:
    """Return an artifact's path; different artifacts have different paths.

    Raises:
        ValueError: The name is not allowed.
    """
    if not is_name(name):
        raise ValueError(f"no name of an artifact: {name!r}")
    return f"{upload_prefix(tenant, task_id, upload_id)}/{_segment(name)}"


def tenant_segment(path: str) -> str:
    """Return the segment of an artifact's path that is the same for all of one tenant."""
    return path.partition("/")[0]


def _segment(text: str) -> str:
    """Return a text as one segment: each unsafe byte becomes `!` and two hexadecimal digits."""
    assert text, "a segment is never empty"
    content = text.encode()
    escaped = "".join(chr(byte) if byte in _SAFE else f"!{byte:02X}" for byte in content)
    if escaped in {".", ".."}:
        return escaped.replace(".", "!2E")
    if len(escaped) <= _SEGMENT_CHARS_MAX:
        return escaped
    # No escaped text has two `!` in a row, so a shortened text never equals an unshortened one.
    return f"{escaped[:_CUT_CHARS]}!!{hashlib.sha256(content).hexdigest()}"
