"""Message ends: where the requests end among the bytes that aiohttp is given.

aiohttp keeps a part of a head or body, and does not tell. A request may be read without it only
where a message ended: read elsewhere, it would overtake the bytes that it continues, and a client
behind a proxy could send requests in another's name.
"""

from __future__ import annotations

import re

HEAD_BYTES_MAX = 2**15  # Of a request's line and headers together.
_EMPTY_LINE = b"\r\n\r\n"
# aiohttp refuses most other heads itself.
_HEAD = re.compile(
    rb"(?!CONNECT )[A-Z-]+ [!-~\x80-\xff]+ HTTP/1\.[01]\r\n"
    rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n\0]*\r\n)*"
)
_FRAMING = re.compile(
    rb"\r\n(?:content-length:[ \t]*([0-9]{1,15})|transfer-encoding:[ \t]*(chunked))[ \t]*(?=\r\n)",
    re.IGNORECASE,
)
_FRAMED = re.compile(rb"\r\n(?:content-length|transfer-encoding):", re.IGNORECASE)
_CHUNK = re.compile(rb"0{1,15}(\r\n\r\n)|(0{0,7}[1-9A-Fa-f][0-9A-Fa-f]{0,7})\r\n")
_CHUNK_BYTES = 15 + 4  # Of a chunk without its data.
# At once before a head: one that begins with more is refused. RFC 9112 §2.2 asks for one.
_EMPTY_LINES_MAX = 8
# Each chunk costs as much as a kilobyte of a large one: this many take five milliseconds.
CHUNKS_AT_ONCE = 4096
_UNFOLLOWED_AT_ONCE = 2**14  # Bytes; they may be as many chunks.


class MessageEnds:
    """Follows the bytes of one connection that aiohttp is given.

    Attributes:
        asked: A head has ended whose answer has not been sent.
        in_chunks: Within a chunked body.
        reached: The next byte begins a message.
        refused: A head does not say plainly where its message ends.
        too_long: A head had more than `HEAD_BYTES_MAX`.
    """

    __slots__ = ("_chunks", "_due", "_held", "asked", "in_chunks", "reached", "refused", "too_long")

    def __init__(self) -> None:
        self.asked = False
        self.in_chunks = False
        self.reached = True
        self.refused = False
        self.too_long = False
        self._due: int | None = 0  # Bytes of a body yet to come; None if they are unknown.
        self._held = b""  # A part of a head, or of a chunk's size.
        self._chunks = 0  # Among the bytes that are followed at once.

    @property
    def unknown(self) -> bool:
        """Return whether no further end can be known, so that the connection must close."""
        return self._due is None

    @property
    def in_head(self) -> bool:
        """Return whether aiohttp may have a part of a head."""
        return self._due is None or (bool(self._held) and not self.in_chunks)

    @property
    def head_bytes(self) -> int:
        """Return the size of the part of a head that has come."""
        return 0 if self.in_chunks else len(self._held)

    def follow(self, data: bytes) -> int:
        """Return how many of these bytes go to aiohttp now.

        They end with the asked request, before a refused head, or after `CHUNKS_AT_ONCE` chunks,
        and other work is due before the next ones. aiohttp drops what follows a request to upgrade
        in the same call, and forgets good requests if a bad one follows them.
        """
        known = len(self._held)
        data, self._held = self._held + data, b""
        at = self._chunks = 0
        if self._due is None and not self.refused:
            at = min(len(data), _UNFOLLOWED_AT_ONCE)
        while at < len(data) and self._due is not None and self._chunks < CHUNKS_AT_ONCE:
            if self._due:
                taken = min(self._due, len(data) - at)
                self._due -= taken
                at += taken
            elif self.in_chunks:
                at = self._after_chunk_size(data, at)
            elif self.asked:
                return at - known
            else:
                at = self._after_head(data, at)
        self.reached = self._due == 0 and not self._held and not self.in_chunks
        return max(0, at - known)

    def _after_head(self, data: bytes, at: int) -> int:
        until = at + 2 * _EMPTY_LINES_MAX
        while at < until and data.startswith(b"\r\n", at):
            at += 2
        end = data.find(_EMPTY_LINE, at, at + HEAD_BYTES_MAX)
        if end < 0:
            self.too_long = len(data) - at >= HEAD_BYTES_MAX
            self._hold(data[at:], bytes_max=HEAD_BYTES_MAX)
            return len(data)
        self.asked = True
        head = data[at : end + 2]
        framing = _FRAMING.findall(head)
        self.refused = _HEAD.fullmatch(head) is None or len(framing) > 1
        self.refused |= len(_FRAMED.findall(head)) != len(framing)
        if self.refused:
            self._due = None
            return at
        if framing:
            ((length, chunked),) = framing
            self.in_chunks = bool(chunked)
            self._due = int(length or 0)
        return end + 4

    def _after_chunk_size(self, data: bytes, at: int) -> int:
        chunk = _CHUNK.match(data, at)
        if chunk is None:
            # Trailers and extensions are not followed. aiohttp would even add the last trailer to
            # the headers of the next request.
            self._hold(data[at:], bytes_max=_CHUNK_BYTES)
            return len(data) if self._held else min(len(data), at + _UNFOLLOWED_AT_ONCE)
        self._chunks += 1
        self.in_chunks = chunk[1] is None
        self._due = int(chunk[2], 16) + 2 if self.in_chunks else 0
        return chunk.end()

    def _hold(self, part: bytes, *, bytes_max: int) -> None:
        if len(part) < bytes_max:
            self._held = part
        else:
            self._due = None
