"""Polls: the workers that have asked this node for work, and when they last did."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

POLLS_MAX = 10_000  # About 400 bytes each; beyond it the tenant with the most loses its oldest.
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
        self._known: dict[str, dict[str, Poll]] = {}
        self._count = 0

    def begun(self, tenant: str, worker: str, commands: tuple[str, ...]) -> Poll:
        """Record a claim; it counts as waiting until the caller takes 1 from `waiting` again.

        Args:
            tenant: The worker's tenant.
            worker: As people see it; its name is its own choice.
            commands: Those it asks for; empty for all.
        """
        own = self._known.get(tenant, {})
        poll = own.pop(worker, None)
        if poll is None:
            poll = Poll(worker, 0)
            if self._count >= POLLS_MAX:
                most = max(self._known.values(), key=len)
                del most[next(iter(most))]
            else:
                self._count += 1
        own[worker] = poll
        self._known[tenant] = own
        poll.last_ms = self._now_ms()
        poll.commands = tuple(map(str.lower, commands[:COMMANDS_MAX]))
        poll.waiting += 1
        return poll

    def of(self, tenant: str) -> list[Poll]:
        """Return the tenant's workers, the most recent last."""
        return list(self._known.get(tenant, {}).values())
