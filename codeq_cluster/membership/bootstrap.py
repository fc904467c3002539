"""Bootstrap: the first start of a new cluster; a node that joins later finds out that it is late.

A new cluster starts when all its nodes are connected and none has data of another cluster. The
first of them by id then stores the membership and each member's data, and the others copy it. A
node whose data is not on that list is told to wait and joins later. So a node that lost its disk
can never help to bootstrap a second cluster while the others still have the first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec
from msgspec import Struct

from codeq_cluster.codec import membership as codec
from codeq_cluster.codec.membership import Member, Membership
from codeq_cluster.errors import CodeqError, StorageFailed
from codeq_cluster.wire import Mesh

STAND = "stand"

PAUSE_S = 0.1  # Between two rounds of questions.
LATER_PAUSE_S = 5.0  # The same, for a node that joins later.
ASK_TIMEOUT_S = 2.0
_TELL_EVERY = 50  # Log a waiting node's reason once in this number of rounds.

log = logging.getLogger(__name__)

# Applied index and digest of a shard.
State = tuple[int, bytes]


class BootstrapStatement(Struct, frozen=True, array_like=True, kw_only=True):
    """A node's statement about itself before it knows who forms the cluster.

    Attributes:
        me: This node, with its data.
        peers: Ids of all nodes in its configuration, itself included, ascending.
        states: Of its shards: empty ones, or restored ones.
        bootstrap: Encoded; the bootstrap membership as far as it knows, empty for none.
        members: Encoded; the current membership as far as it knows, empty for none.
    """

    me: Member
    peers: tuple[str, ...]
    states: tuple[State, ...]
    bootstrap: bytes = b""
    members: bytes = b""


class BootstrapOutcome(Enum):
    """A node's result of the bootstrap; the values are logged."""

    BOOTSTRAPPED = "founded"
    LATER = "later"


class Bootstrap:
    """One node's part in the bootstrap.

    Args:
        statement: Returns its current statement.
        order: Ids of the configured nodes, in the order in which they are to lead.
        level: Of the formats that a new cluster uses.
        on_bootstrap: Called with the bootstrap membership; writes it down durably and starts.
            Raises StorageFailed.
        on_heard: Called with the members of a cluster that this node is not part of yet. Some may
            be unknown here, and they decide whether it joins.
        callers: Returns the nodes that have proved to be of the cluster and are not in `order`.
            They are asked whether there is a cluster, and are not part of a new one.

    Attributes:
        waits_for: Why this node cannot start yet, for the operator; empty if it can.
    """

    def __init__(
        self,
        *,
        statement: Callable[[], BootstrapStatement],
        order: Sequence[str],
        calls: Mesh,
        level: int,
        on_bootstrap: Callable[[Membership], None],
        on_heard: Callable[[Membership], None],
        callers: Callable[[], Sequence[str]] = lambda: (),
    ) -> None:
        self._statement = statement
        self._order = order
        self._calls = calls
        self._level = level
        self._on_bootstrap = on_bootstrap
        self._on_heard = on_heard
        self._callers = callers
        self._rounds = 0
        self.waits_for = ""

    async def serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Return this node's statement to a peer."""
        del peer, method, body, timeout_s
        return msgspec.to_builtins(self._statement(), builtin_types=(bytes,))

    async def run(self) -> BootstrapOutcome:
        """Ask the others until the cluster's membership is known, without a time limit."""
        while True:
            found = await self._round()
            if isinstance(found, BootstrapOutcome):
                return found
            await asyncio.sleep(PAUSE_S)

    async def go_on(self) -> None:
        """Keep asking at intervals until this node is a member.

        The existing nodes may lose their data too, and then bootstrap a new cluster with this one.
        """
        while not self._statement().members:
            await asyncio.sleep(LATER_PAUSE_S)
            if await self._round() is BootstrapOutcome.BOOTSTRAPPED:
                return

    async def _round(self) -> BootstrapOutcome | str:
        """Ask every node once; return the outcome, or why this node still waits."""
        mine = self._statement()
        others = [peer for peer in mine.peers if peer != mine.me.id]
        callers = [peer for peer in self._callers() if peer not in mine.peers]
        said = await asyncio.gather(*map(self._ask, [*others, *callers]))
        known = [
            statement
            for statement in said
            if statement is not None
            and (statement.me.id in others or statement.bootstrap or statement.members)
        ]
        found = self._judged(mine, known)
        self.waits_for = ""
        if isinstance(found, str):
            missing = [peer for peer, answer in zip(others, said, strict=False) if not answer]
            self.waits_for = _waits(mine.me.id, found, missing)
            if self._rounds % _TELL_EVERY == 0:
                log.info(
                    "waiting to bootstrap: a new cluster starts when all its nodes are connected",
                    extra={"missing": missing, "reason": found},
                )
            self._rounds += 1
        return found

    def _judged(
        self, mine: BootstrapStatement, known: Sequence[BootstrapStatement]
    ) -> BootstrapOutcome | str:
        try:
            for statement in known:
                if statement.members:
                    self._on_heard(codec.decode(statement.members))
            bootstrap = judge(mine, known, order=self._order, level=self._level)
            if isinstance(bootstrap, Membership):
                self._on_bootstrap(bootstrap)
                return BootstrapOutcome.BOOTSTRAPPED
        except (StorageFailed, ValueError) as error:
            return str(error)
        return bootstrap

    async def _ask(self, peer: str) -> BootstrapStatement | None:
        try:
            said = await self._calls.call(peer, STAND, None, timeout_s=ASK_TIMEOUT_S)
            return msgspec.convert(said, BootstrapStatement, builtin_types=(bytes,))
        except (CodeqError, ValueError):
            return None


def _waits(me: str, found: str, missing: Sequence[str]) -> str:
    names = f": {', '.join(missing)}" if missing else ""
    return (
        f"{me} waits to begin: {found}{names}; a new cluster begins when all nodes of raft.peers "
        "are there; for one that there is, name nodes there that run, and let this one in with "
        f"`cluster join {me}`"
    )


def judge(
    mine: BootstrapStatement,
    others: Sequence[BootstrapStatement],
    *,
    order: Sequence[str],
    level: int,
) -> Membership | BootstrapOutcome | str:
    """Return a node's next step, from the statements of all nodes.

    Returns:
        The bootstrap membership with this node in it; or that the node joins later; or what it
        waits for.
    """
    for statement in others:
        if statement.bootstrap:
            bootstrap = codec.decode(statement.bootstrap)
            member = bootstrap.of(mine.me.id)
            if member is not None and member.data == mine.me.data:
                return bootstrap
            return BootstrapOutcome.LATER
    if any(statement.members for statement in others):
        return BootstrapOutcome.LATER
    if {statement.me.id for statement in others} | {mine.me.id} != set(mine.peers):
        return "not all nodes answer"
    if any(statement.peers != mine.peers for statement in others):
        return "the nodes are configured with different peers"
    if any(statement.states != mine.states for statement in others):
        return "the nodes hold different data: restore all of them from the same backup, or none"
    if mine.me.id != min(mine.peers):
        return f"{min(mine.peers)} begins"
    found = {statement.me.id: statement.me for statement in [mine, *others]}
    return Membership(
        members=tuple(found[node_id] for node_id in order),
        level=min(level, *(member.level for member in found.values())),
    )
