"""Polls: the workers that have asked this node for work, and when they last did."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from codeq_cluster.kept import Kept

# Of all workers, as a node keeps them: 10,000 with three commands each. A node's answer about a
# tenant fits a frame of the link so, too.
POLLS_BYTES_MAX = 4 * 2**20
COMMANDS_MAX = 50  # Known of a worker that asks for more.
_POLL_BYTES, _COMMAND_BYTES = 200, 60  # Beside the characters.


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

    Beyond `POLLS_BYTES_MAX` the tenant with the most loses its oldest.

    Args:
        now_ms: Returns Unix milliseconds.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._known: Kept[str, Poll] = Kept(POLLS_BYTES_MAX)

    def begun(self, tenant: str, worker: str, commands: tuple[str, ...]) -> Poll:
        """Record a claim; it counts as waiting until the caller takes 1 from `waiting` again.

        Args:
            worker: As people see it; its name is its own choice.
            commands: Those it asks for; empty for all.
        """
        asked = tuple(map(str.lower, commands[:COMMANDS_MAX]))
        poll = self._known.renewed(tenant, worker)
        if poll is None or poll.commands != asked:  # Most claims repeat the one before.
            poll = poll or Poll(worker, 0)
            poll.commands = asked
            commands_bytes = _COMMAND_BYTES * len(asked) + sum(map(len, asked))
            weight = _POLL_BYTES + len(worker) + commands_bytes
            self._known.put(tenant, worker, poll, weight=weight)
        poll.last_ms = self._now_ms()
        poll.waiting += 1
        return poll

    def of(self, tenant: str) -> list[Poll]:
        """Return the tenant's workers, the most recent last."""
        return self._known.of(tenant)
