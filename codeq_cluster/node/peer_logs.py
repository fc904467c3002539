"""Peer logs: entries that this node's log has no more, from the logs of other nodes.

A node that came to its state by a snapshot has only what followed it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from codeq_cluster.broker.feed.cursor import OtherHistory, Position
from codeq_cluster.broker.feed.feed import Feed
from codeq_cluster.broker.ports import LogEntry
from codeq_cluster.errors import NoLeader
from codeq_cluster.routing.ask_all import AskAll, Fact


@dataclass(frozen=True, slots=True)
class _Asked:
    shard: int
    after: Position
    bytes_max: int


@dataclass(frozen=True, slots=True)
class _Logged:
    """The first entries after a position: none if it is the last one, None if they are not here."""

    entries: list[LogEntry] | None = None
    is_other: bool = False


_LOGGED = Fact("logged", _Asked, _Logged)


class PeerLogs:
    """Asks all connected nodes for entries, and answers them."""

    def __init__(self, gathering: AskAll) -> None:
        self._gathering = gathering

    def answer_from(self, feed: Feed) -> None:
        """Answer the other nodes from this node's log."""

        async def answer(asked: _Asked) -> _Logged:
            try:
                found = feed.logged(asked.shard, asked.after, asked.bytes_max)
            except OtherHistory:
                return _Logged(is_other=True)
            return _Logged(None if found is None else [*found])

        self._gathering.register(_LOGGED, answer)

    async def entries(
        self, shard: int, after: Position, bytes_max: int
    ) -> Sequence[LogEntry] | None:
        """Return the first entries after a position, as `feed.Elsewhere` says.

        Raises:
            OtherHistory: A node has another entry at this place.
            NoLeader: No node has them, but one that may have them has not answered in time.
        """
        said = await self._gathering.ask_until(
            _LOGGED,
            _Asked(shard, after, bytes_max),
            lambda each: each.is_other or bool(each.entries),
        )
        told = [each for each in said if each is not None]
        if any(each.is_other for each in told):
            raise OtherHistory(f"shard {shard}: entry {after.index} is another one")
        found = [each.entries for each in told if each.entries is not None]
        if not found and len(told) < len(said):
            raise NoLeader(f"shard {shard}: a node that may have older entries is slow: ask again")
        return max(found, key=len, default=None)
