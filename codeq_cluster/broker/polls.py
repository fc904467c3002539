"""Polls: the workers that have asked this node for work, and when they last did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

POLLS_MAX = 10_000  # About 400 bytes each; beyond it the oldest entry goes.
COMMANDS_MAX = 50  # Shown of a worker that asks for more.


class Poll(Struct, array_like=True):
    """One worker's claims on one node.

    Attributes:
        last_ms: When the last claim came, Unix milliseconds.
        waiting: Claims that wait for a task now.
        commands: Of the last claim, in lower case; empty for every command of the tenant.
    """

    worker: str
    last_ms: int
    waiting: int = 0
    commands: tuple[str, ...] = ()


class Polls:
    """The workers of every tenant that have claimed here.

    Args:
        now_ms: Returns Unix milliseconds.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._known: dict[tuple[str, str], Poll] = {}

    @contextmanager
    def polling(self, tenant: str, worker: str, commands: tuple[str, ...]) -> Iterator[None]:
        """Record a claim, which counts as waiting within the block."""
        name = (tenant, worker)
        poll = self._known.pop(name, None)
        if poll is None:
            poll = Poll(worker, 0)
            if len(self._known) >= POLLS_MAX:
                del self._known[next(iter(self._known))]
        self._known[name] = poll
        poll.last_ms = self._now_ms()
        poll.commands = tuple(command.lower() for command in commands[:COMMANDS_MAX])
        poll.waiting += 1
        try:
            yield
        finally:
            poll.waiting -= 1

    def of(self, tenant: str) -> list[Poll]:
        """Return the tenant's workers, the most recent last."""
        return [poll for (owner, _), poll in self._known.items() if owner == tenant]
