"""Inbox: the messages that wait for a turn; validated, fresh, bounded."""

from __future__ import annotations

import logging
from collections import Counter, deque

from codeq_cluster.codec.membership import data_of
from codeq_cluster.raft.messages import Append, Message, parse

_log = logging.getLogger(__name__)

# A slow flush can delay a turn. Peers resend the messages that do not fit. Messages without entries
# are bounded by their number alone: 4,096 x ~300 bytes.
_MESSAGES_MAX = 4096


class Inbox:
    """The queue of one group, over all its peers."""

    def __init__(
        self,
        *,
        bytes_max: int,
        counters: Counter[str],
        fresh_only: bool,
    ) -> None:
        self._bytes_max = bytes_max
        self._counters = counters
        self._fresh_only = fresh_only
        self._seen: dict[tuple[str, int], tuple[int, int]] = {}
        self._queue: deque[tuple[str, Message, int]] = deque()
        self._bytes = 0
        self._complained: set[str] = set()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, peer: str, raw: bytes) -> Message | None:
        """Queue one message and return it; None when it was dropped, and counted by reason."""
        try:
            message = parse(raw)
        except ValueError as error:
            if peer not in self._complained:
                # Logged once per peer: a peer of another protocol would fill the log.
                self._complained.add(peer)
                _log.warning("malformed message", extra={"peer": peer, "error": str(error)[:200]})
            self._drop("malformed")
            return None
        stamp = (message.incarnation, message.seq)
        # This makes any network one that keeps order and may lose messages. It drops frames of a
        # dead connection or an earlier life, duplicates, and overtaken frames.
        # A peer on other data is another sender.
        sender = (peer, data_of(message.incarnation))
        if self._fresh_only and stamp <= self._seen.get(sender, (0, 0)):
            self._drop("late")
            return None
        self._seen[sender] = max(stamp, self._seen.get(sender, stamp))
        size = sum(map(len, message.commands)) if isinstance(message, Append) else 0
        if len(self._queue) >= _MESSAGES_MAX or (size and self._bytes + size > self._bytes_max):
            self._drop("inbox_full")
            return None
        self._queue.append((peer, message, size))
        self._bytes += size
        return message

    def get(self) -> tuple[str, Message]:
        """Take the oldest message; the queue must not be empty."""
        peer, message, size = self._queue.popleft()
        self._bytes -= size
        return peer, message

    def _drop(self, reason: str) -> None:
        self._counters[reason] += 1
