"""Mailbox: messages that wait for a turn, and messages on their way out.

What comes in is validated, fresh and bounded. What goes out is stamped, and held back until the
disk has what it promises.
"""

from __future__ import annotations

import logging
from collections import Counter, deque

from codeq_cluster.codec.membership import data_of
from codeq_cluster.raft.messages import Append, Message, parse, render
from codeq_cluster.raft.ports import Link

_log = logging.getLogger(__name__)

# A slow flush can delay a turn. Peers resend the messages that do not fit. Messages without entries
# are bounded by their number alone: 4,096 x ~300 bytes.
_MESSAGES_MAX = 4096


class Inbox:
    """The queue of one group, over all its peers.

    Attributes:
        waiting: The messages, oldest first, with their senders and sizes.
    """

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
        self.waiting: deque[tuple[str, Message, int]] = deque()
        self._bytes = 0
        self._complained: set[str] = set()

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
        if len(self.waiting) >= _MESSAGES_MAX or (size and self._bytes + size > self._bytes_max):
            self._drop("inbox_full")
            return None
        self.waiting.append((peer, message, size))
        self._bytes += size
        return message

    def get(self) -> tuple[str, Message]:
        """Take the oldest message; the queue must not be empty."""
        peer, message, size = self.waiting.popleft()
        self._bytes -= size
        return peer, message

    def _drop(self, reason: str) -> None:
        self._counters[reason] += 1


class Outbox:
    """Sends to the peers of one group.

    Attributes:
        held: Messages that wait for the disk, with their receivers.
    """

    def __init__(
        self, *, link: Link, incarnation: int, counters: Counter[str], hold_promises: bool
    ) -> None:
        self._link = link
        self._incarnation = incarnation
        self._counters = counters
        self._hold_promises = hold_promises
        self._seq: Counter[str] = Counter()
        self.held: list[tuple[str, Message]] = []

    def sent(self, peer: str) -> int:
        """Return the number of the last message sent to the peer."""
        return self._seq[peer]

    def send(self, peer: str, message: Message) -> None:
        """Send at once: the message promises nothing about this node's disk."""
        seq = self._seq[peer] = self._seq[peer] + 1
        # Stamped when sent, not when made: held messages leave later than younger ones.
        frame = render(message, incarnation=self._incarnation, seq=seq)
        if not self._link.send(peer, frame):
            self._counters["link_full"] += 1

    def promise(self, peer: str, message: Message) -> None:
        """Send once everything the journal holds now is on disk."""
        if self._hold_promises:
            self.held.append((peer, message))
        else:
            self.send(peer, message)

    def forget(self) -> None:
        """Drop the held messages: the disk they wait for is being exchanged."""
        self.held.clear()

    def release(self) -> None:
        """Send the held messages: the journal is on disk."""
        held, self.held = self.held, []
        for peer, message in held:
            self.send(peer, message)
