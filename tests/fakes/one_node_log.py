"""One-node log: a shard's log without replication, which a test drives step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.raft.ports import EntrySource, StateMachine


class OneNodeLog:
    """Drives one engine as its Raft group would.

    Unless `held`, a wake-up takes and applies at once. A held log lets a test look at decisions
    that are not committed, end the leadership meanwhile, or apply under another term.
    """

    def __init__(self, machine: StateMachine, source: EntrySource) -> None:
        self.machine = machine
        self.source = source
        self.held = False
        self.term = 0
        self.level = LEVEL
        self.leading = False
        self.taken: deque[tuple[int, bytes]] = deque()
        self.barriers: list[Callable[[bool], None]] = []
        self.applied: list[tuple[int, int, bytes | None]] = []
        self.oldest_index = 2
        self.read = 0  # Entries that were returned.

    def trim(self, index: int) -> None:
        """Forget the entries before an index."""
        self.oldest_index = index

    def entries(
        self, start: int, *, upto: int, bytes_max: int
    ) -> list[tuple[int, int, bytes | None]]:
        """Return applied entries, as a group does."""
        if start < self.oldest_index:
            return []
        found: list[tuple[int, int, bytes | None]] = []
        size = 0
        for entry in self.applied:
            if not start <= entry[0] <= upto:
                continue
            size += len(entry[2] or b"")
            if found and size > bytes_max:
                break
            found.append(entry)
        self.read += len(found)
        return found

    def lead(self) -> None:
        """Begin a term and apply its first entry."""
        self.term += 1
        self.leading = True
        self._apply(self.term, None)
        self.source.lead(self.term)

    def depose(self, leader: str | None = None) -> None:
        """End the leadership; entries already taken stay in the log."""
        self.leading = False
        self.source.follow(leader)
        for done in self.barriers:
            done(False)
        self.barriers.clear()

    def wake(self) -> None:
        """Take, and apply unless held."""
        if not self.held:
            self.take()
            self.commit()

    def take(self) -> None:
        """Take every entry there is; nothing is applied."""
        while self.take_one():
            pass

    def take_one(self) -> bool:
        """Take one entry, if there is one."""
        payload = self.source.take() if self.leading else None
        if payload is not None:
            self.taken.append((self.term, payload))
        return payload is not None

    def commit(self, *, term: int | None = None) -> None:
        """Apply the entries taken, under their term or another, and confirm read indexes."""
        while self.taken:
            taken_in, payload = self.taken.popleft()
            self._apply(term or taken_in, payload)
        if self.leading and not self.held:
            self.confirm()

    def barrier(self, done: Callable[[bool], None]) -> None:
        """Confirm at once, or on release if held."""
        self.barriers.append(done)
        if not self.held:
            self.confirm()

    def release(self) -> None:
        """Continue as if it had never been held."""
        self.held = False
        self.take()
        self.commit()

    def confirm(self) -> None:
        """Confirm leadership to everybody who asked for it."""
        waiting, self.barriers = self.barriers, []
        for done in waiting:
            done(self.leading)

    def _apply(self, term: int, payload: bytes | None) -> None:
        index = self.machine.applied_index + 1
        self.applied.append((index, term, payload))
        self.machine.apply(index, term, payload)
