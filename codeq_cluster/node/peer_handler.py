"""Peer handler: what this node does about its peers: each message and call goes to its part."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence

from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.rest import NODE, Rest
from codeq_cluster.routing.shard_calls import ShardCalls
from codeq_cluster.wire.rpc import Quick

Method = Callable[[str, str, object, float], Coroutine[None, None, object]]
"""Answers (peer, method, body, timeout_s)."""


class PeerHandler:
    """Serves the peers.

    Args:
        groups: Of this node, in the order of shards.
        shard_calls: Answers the calls about shards, and the ones that nobody knows.
        methods: Answer all other calls, by name.
        wall_ms: Tells the time, Unix milliseconds.

    Attributes:
        quick: The methods that are answered without a task of their own.
    """

    def __init__(
        self,
        groups: Sequence[RaftGroup],
        shard_calls: ShardCalls,
        *,
        rest: Rest,
        methods: Mapping[str, Method],
        traced: bool,
        wall_ms: Callable[[], int],
    ) -> None:
        self._groups = groups
        self._rest = rest
        self._shard_calls = shard_calls
        self._methods = methods
        self._wall_ms = wall_ms
        self._since_ms = wall_ms()
        self._up: set[str] = set()
        self._down_ms: dict[str, int] = {}
        # Spans need a task of their own around each call.
        self.quick: Mapping[str, Quick] = {} if traced else {"operate": shard_calls.serve_operate}

    def on_raft(self, peer: str, group: int, message: bytes) -> None:
        """Deliver a Raft message to its group; drop one of a group that is not here."""
        if 0 <= group < len(self._groups):
            self._groups[group].receive(peer, message)
        elif group == NODE:
            self._rest.receive(peer, message)

    def on_up(self, peer: str) -> None:
        """Tell every group that a peer can be reached."""
        self._up.add(peer)
        self._down_ms.pop(peer, None)
        for group in self._groups:
            group.peer_up(peer)

    def on_down(self, peer: str, *, refused: bool) -> None:
        """Tell every group that a peer cannot be reached, and whether its process has ended."""
        self._up.discard(peer)
        self._down_ms.setdefault(peer, self._wall_ms())
        for group in self._groups:
            group.peer_down(peer, refused=refused)

    def away_since_ms(self, peer: str) -> int:
        """Return since when a peer cannot be reached, at the earliest since the start; else 0."""
        return 0 if peer in self._up else self._down_ms.get(peer, self._since_ms)

    async def on_call(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Answer a call."""
        serve = self._methods.get(method, self._shard_calls.serve)
        return await serve(peer, method, body, timeout_s)
