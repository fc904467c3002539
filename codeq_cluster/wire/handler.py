"""Handler: the link's callbacks to its node; every method is called on the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from codeq_cluster.wire.rpc import Quick


class LinkHandler(Protocol):
    """Acts on the peers' messages; a method that raises is a bug, except `on_call`."""

    @property
    def quick(self) -> Mapping[str, Quick]:
        """Handlers of calls, by method, that answer without a task; see `rpc.Quick`."""

    def on_raft(self, peer: str, group: int, message: bytes) -> None:
        """Take a Raft message, packed; any group number may come."""

    def on_up(self, peer: str) -> None:
        """Note that the connection this node dialled to a peer is authenticated."""

    def on_down(self, peer: str, *, refused: bool) -> None:
        """Note that this connection is lost; called once per loss.

        The call waits until it is known whether the peer's machine refuses a new connection.

        Args:
            peer: Its other end.
            refused: The machine refuses: the peer's process has ended.
        """

    async def on_call(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        """Answer a call; cancelled at the deadline and at stop."""


class Admission(Protocol):
    """Decides which nodes may connect."""

    def welcomes(self) -> bool:
        """Return whether unknown nodes may connect: only while this one does not know its peers."""

    def recognises(self, peer: str, incarnation: int) -> bool:
        """Return whether a node that proved itself may connect.

        False for one that runs on other data than a connected node of its id.
        """

    def is_past(self, incarnation: int) -> bool:
        """Return whether a node runs on data that the cluster was recovered without.

        The node learns this and nothing else.
        """

    def on_stranger(self, peer: str, address: str) -> None:
        """Note a welcome node that proved itself, and the address it reports.

        The node may stay if this call has passed it to `Mesh.know`.
        """
