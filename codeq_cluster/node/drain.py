"""Drain: transfers all leaderships of a node before it stops or steps back."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.raft.group import RaftGroup

HANDOVER_S = 1.0  # The time a node waits for other nodes to take its leaderships over.
HANDOVER_TRIES = 2  # The second try asks the peer that has most of the log by then.

log = logging.getLogger(__name__)


class Drain:
    """One node's leaderships.

    Args:
        node_id: This node.
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

    async def give_all_away(self) -> None:
        """Transfer every leadership to a peer, so that no client waits for an election; bounded."""
        led = len(self._led())
        for attempt in range(HANDOVER_TRIES):
            asked = [group for group in self._led() if self._give_away(group, attempt)]
            if not asked:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HANDOVER_S):
                    await self._until_gone(asked)
        log.info("leaderships transferred", extra={"led": led, "kept": len(self._led())})

    async def _until_gone(self, asked: Sequence[RaftGroup]) -> None:
        while any(group.status().is_leader for group in asked):
            self._changed.clear()
            await self._changed.wait()

    def _led(self) -> list[RaftGroup]:
        return [group for group in self._groups if group.status().is_leader]

    def _give_away(self, group: RaftGroup, attempt: int) -> bool:
        """Ask a peer to lead in this node's place; return whether one was asked.

        The first try spreads the shards over the peers that can lead within moments, so that they
        share the load.
        """
        shard, voters = group.status().shard, group.membership.voters
        if self._node_id not in voters or len(voters) < 2:
            return False
        # Shards that prefer one node differ by a multiple of the node count: alternate their next
        # leaders.
        step = 1 + shard // len(voters) % (len(voters) - 1)
        heir = voters[(voters.index(self._node_id) + step) % len(voters)]
        return (attempt == 0 and group.transfer(heir)) or group.transfer(None)
