"""Artifacts: answers to requests for an artifact, by RFC 9110: whole, a range, or neither."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from codeq_cluster.artifacts.provider import Stored

_RANGE = re.compile(r"bytes=[ \t]*(\d*)-(\d*)[ \t]*", re.IGNORECASE | re.ASCII)
_ETAGS = re.compile(r'(?:W/)?("[\x21\x23-\x7e\x80-\xff]*")')
# A longer number is past the end of any artifact, and Python refuses to parse thousands of digits.
_DIGITS_MAX = 19


@dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactAnswer:
    """The answer to a request for an artifact.

    Attributes:
        headers: The headers that describe the content, with `Content-Length`.
        start: First byte of the body.
        end: One past its last byte; equal to `start` when the answer has no body.
    """

    status: int
    headers: Mapping[str, str]
    start: int = 0
    end: int = 0


def answer(stored: Stored, *, method: str, headers: Mapping[str, str]) -> ArtifactAnswer:
    """Return the answer to a GET or a HEAD.

    Preconditions come before the range (RFC 9110 section 13.2.2). A range is ignored when it is
    malformed, has several parts or belongs to another version; the answer is then the whole
    artifact.

    Args:
        stored: The artifact as it is now.
        method: `GET` or `HEAD`.
        headers: Of the request; names in any case.
    """
    assert method in {"GET", "HEAD"}, "no other method has a route"
    asked = {name.lower(): value for name, value in headers.items()}
    known = {"ETag": stored.etag} if stored.etag else {}
    if "if-match" in asked and not _names(asked["if-match"], stored.etag, strongly=True):
        return ArtifactAnswer(status=412, headers=known | {"Content-Length": "0"})
    if "if-none-match" in asked and _names(asked["if-none-match"], stored.etag, strongly=False):
        return ArtifactAnswer(status=304, headers=known)
    known |= {"Accept-Ranges": "bytes"}
    span = None
    if method == "GET" and "range" in asked and _is_current(asked, stored.etag):
        span = _span(asked["range"], stored.size)
    if span is None:
        whole = {"Content-Type": stored.content_type, "Content-Length": str(stored.size)}
        end = stored.size if method == "GET" else 0
        return ArtifactAnswer(status=200, headers=known | whole, end=end)
    start, end = span
    if start >= end:
        unsatisfied = {"Content-Range": f"bytes */{stored.size}", "Content-Length": "0"}
        return ArtifactAnswer(status=416, headers=known | unsatisfied)
    part = {
        "Content-Type": stored.content_type,
        "Content-Length": str(end - start),
        "Content-Range": f"bytes {start}-{end - 1}/{stored.size}",
    }
    return ArtifactAnswer(status=206, headers=known | part, start=start, end=end)


def _names(header: str, etag: str, *, strongly: bool) -> bool:
    """Return whether a list of etags has this one; a weak etag never matches."""
    if header.strip() == "*":
        return True
    if not etag or (strongly and etag.startswith("W/")):
        return False
    opaque = etag.removeprefix("W/")
    return any(
        found[1] == opaque and not (strongly and found[0].startswith("W/"))
        for found in _ETAGS.finditer(header)
    )


def _is_current(asked: Mapping[str, str], etag: str) -> bool:
    """Return whether `If-Range` allows the range; a date never does, artifacts have none."""
    condition = asked.get("if-range")
    if condition is None:
        return True
    return bool(etag) and not etag.startswith("W/") and condition.strip() == etag


def _span(header: str, size: int) -> tuple[int, int] | None:
    """Read a `Range`.

    Returns:
        First byte and one past the last, equal or crossed for an empty range; None when the header
        is ignored.
    """
    found = _RANGE.fullmatch(header.strip())
    if found is None:
        return None
    first, last = (_number(text) for text in found.groups())
    if first is None:
        if last is None or (last > 0 and size == 0):
            # A suffix range of an empty artifact is the whole artifact: Content-Range cannot
            # express it.
            return None
        return (max(0, size - last), size)
    if last is not None and last < first:
        return None
    return (first, size if last is None else min(last + 1, size))


def _number(text: str) -> int | None:
    """Return the number, or None for no digits; an overlong one exceeds any size."""
    digits = text.lstrip("0")
    if not text:
        return None
    return int(digits or "0") if len(digits) <= _DIGITS_MAX else 10**_DIGITS_MAX
