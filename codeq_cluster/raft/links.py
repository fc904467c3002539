"""Links: to which peers there is a connection, and whose process is gone."""

from __future__ import annotations

from codeq_cluster.raft.voters import Voters


class Links:
    """The state of the connections to all peers, members or not.

    No peer is both connected and refused.

    Attributes:
        connected: The peers to which the link works.
        refused: The peers whose process was gone when they were last dialled.
    """

    def __init__(self) -> None:
        self.connected: set[str] = set()
        self.refused: set[str] = set()

    def up(self, peer: str) -> None:
        """Note that the link to the peer works."""
        self.connected.add(peer)
        self.refused.discard(peer)

    def down(self, peer: str, *, refused: bool) -> None:
        """Note that the link broke, and whether dialling again was refused."""
        self.connected.discard(peer)
        if refused:
            self.refused.add(peer)

    def leave_a_majority(self, voters: Voters) -> bool:
        """Return whether the voters that are not known to be gone are a majority."""
        gone = sum(map(voters.votes, self.refused))
        return len(voters.voters) - gone >= voters.majority
