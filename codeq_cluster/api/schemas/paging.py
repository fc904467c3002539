"""Paging: the requested page of a list, and the cursor to the next one.

A cursor is only valid for the list it came from. It carries a digest of that list and its position,
so a truncated or foreign cursor is refused instead of continuing at a wrong place.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from hashlib import blake2b

from msgspec import UNSET, UnsetType

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import bad_request
from codeq_cluster.api.http.refusals import bounded

INVALID_CURSOR = bad_request("invalid 'cursor'", "invalid-cursor")
COUNT_DEFAULT = 50
COUNT_MAX = 500  # A page of tasks is rendered on the loop: 500 take about 5 ms.

_DIGEST_BYTES = 6
_CHARS_MAX = 1024  # A position is at most a queue's name, two numbers and an id.


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPage:
    """The requested page of a list.

    Attributes:
        count: Entries at most, 1 to `COUNT_MAX`.
        after: Position after which to begin; empty for the start.
        name: Of the list, including filters that change its order.
    """

    count: int
    after: bytes
    name: bytes

    def cursor(self, edge: bytes) -> str | UnsetType:
        """Return the cursor that continues after `edge`, UNSET if that is empty: the end."""
        if not edge:
            return UNSET
        return base64.urlsafe_b64encode(self._digest(edge) + edge).rstrip(b"=").decode()

    def _digest(self, position: bytes) -> bytes:
        return blake2b(self.name + b"\0" + position, digest_size=_DIGEST_BYTES).digest()


def asked(call: Call, *, order: str = "") -> AskedPage:
    """Read `limit` and `cursor` of the query.

    Args:
        call: The request; its path names the list.
        order: Tells lists apart whose positions differ.

    Raises:
        ApiError: 400 for a limit out of bounds, or a cursor that is not of this list.
    """
    count = call.query_integer("limit") if call.query_text("limit") else COUNT_DEFAULT
    bounded("limit", count, least=1, most=COUNT_MAX)
    name = f"{call.identity.tenant}\0{call.request.path}\0{order}".encode()
    start = AskedPage(count=count, after=b"", name=name)
    cursor = call.query_text("cursor")
    if not cursor:
        return start
    after = _position(cursor)
    if start.cursor(after) != cursor:
        raise INVALID_CURSOR
    return AskedPage(count=count, after=after, name=name)


def _position(cursor: str) -> bytes:
    """Return the position in a cursor after checking its digest; empty if the digest is wrong."""
    if len(cursor) > _CHARS_MAX:
        return b""
    try:
        raw = base64.b64decode(
            cursor.encode() + b"=" * (-len(cursor) % 4), altchars=b"-_", validate=True
        )
    except (binascii.Error, UnicodeError):
        return b""
    return raw[_DIGEST_BYTES:]
