"""Outbox: outgoing messages, stamped, and held back until the disk has what they promise."""

from __future__ import annotations

from collections import Counter

from codeq_cluster.raft.messages import Message, Stamp, render
from codeq_cluster.raft.ports import Link


class Outbox:
    """Sends to the peers of one group."""

    def __init__(
        self, *, link: Link, incarnation: int, counters: Counter[str], hold_promises: bool
    ) -> None:
        self._link = link
        self._incarnation = incarnation
        self._counters = counters
        self._hold_promises = hold_promises
        self._seq: Counter[str] = Counter()
        self._held: list[tuple[str, Message]] = []

    def sent(self, peer: str) -> int:
        """Return the number of the last message sent to the peer."""
        return self._seq[peer]

    def send(self, peer: str, message: Message) -> None:
        """Send at once: the message promises nothing about this node's disk."""
        # Stamped when sent, not when made: held messages leave later than younger ones.
        self._seq[peer] += 1
        if not self._link.send(peer, render(message, Stamp(self._incarnation, self._seq[peer]))):
            self._counters["link_full"] += 1

    def promise(self, peer: str, message: Message) -> None:
        """Send once everything the journal holds now is on disk."""
        if self._hold_promises:
            self._held.append((peer, message))
        else:
            self.send(peer, message)

    def forget(self) -> None:
        """Drop the held messages: the disk they wait for is being exchanged."""
        self._held.clear()

    def release(self) -> None:
        """Send the held messages: the journal is on disk."""
        held, self._held = self._held, []
        for peer, message in held:
            self.send(peer, message)
