"""Drain: transfers all leaderships of a node before it stops or steps back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.raft.group import RaftGroup

# How long a node waits for others to lead in its place: longer than a disk or machine stalls.
TRANSFER_S = 6.0
TRY_S = 0.6  # A little more than the pause that a transfer may take: then the group can ask again.

log = logging.getLogger(__name__)


class Drain:
    """One node's leaderships.

    Args:
        groups: Of this node, in the order of shards.
        replicas: The same order; they report changes of leaders.
    """

    def __init__(
        self, *, node_id: str, groups: Sequence[RaftGroup], replicas: Sequence[Engine]
    ) -> None:
        self._node_id = node_id
        self._groups = groups
        self._changed = asyncio.Event()
        for replica in replicas:
            replica.on_leader(self._changed.set)

    async def transfer_all(self) -> None:
        """Transfer every leadership to a peer, so that no client waits for an election.

        It asks until no leadership is left, no peer can be asked, or `TRANSFER_S` have passed.
        """
        led = len(self._led())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TRANSFER_S):
                first = True
                while asked := [group for group in self._led() if self._transfer(group, first)]:
                    first = False
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(TRY_S):
                            await self._until_gone(asked)
        log.info("leaderships transferred", extra={"led": led, "kept": len(self._led())})

    async def _until_gone(self, asked: Sequence[RaftGroup]) -> None:
        while any(group.status().is_leader for group in asked):
            self._changed.clear()
            await self._changed.wait()

    def _led(self) -> list[RaftGroup]:
        return [group for group in self._groups if group.status().is_leader]

    def _transfer(self, group: RaftGroup, first: bool) -> bool:
        """Ask a peer to lead in this node's place; return whether one was asked.

        The first try spreads the shards over the peers that can lead within moments, so that they
        share the load. The later ones ask the peer that has most of the log by then.
        """
        shard, voters = group.status().shard, group.membership.voters
        if self._node_id not in voters or len(voters) < 2:
            return False
        # Shards that prefer one node differ by a multiple of the node count: alternate their next
        # leaders.
        step = 1 + shard // len(voters) % (len(voters) - 1)
        heir = voters[(voters.index(self._node_id) + step) % len(voters)]
        return (first and group.transfer(heir)) or group.transfer(None)
