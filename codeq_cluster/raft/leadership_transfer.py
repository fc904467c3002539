"""Leadership transfer: whom this leader makes the next one, and when it asks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codeq_cluster.raft.handover import Handover
from codeq_cluster.raft.messages import TimeoutNow
from codeq_cluster.raft.replica import Replica


class LeadershipTransfer:
    """A leader's transfers, on request or to the preferred peer; at most one at a time.

    The peer is asked to start an election only when it holds this leader's whole log and every
    proposal has been answered, so a transfer makes no outcome unknown.

    Args:
        replica: Leads when anything but `end` is called.
        again: Called when another turn should follow this one.

    Attributes:
        handover: The transfer under way.
    """

    def __init__(self, replica: Replica, again: Callable[[], None]) -> None:
        self._context = replica.context
        self._node_id = replica.context.node_id
        self._now = replica.context.now
        self._voters = replica.voters
        self._connected = replica.links.connected
        self._outbox = replica.outbox
        self._journal = replica.journal
        self._engine = replica.engine
        self._applier = replica.applier
        self._divergence = replica.divergence
        self._again = again
        self.handover = Handover()

    def heirs(self) -> set[str]:
        """Return the voters to which leadership can be transferred."""
        return self._connected.intersection(self._voters.voters) - {self._node_id}

    def successor(self, peers: Sequence[str] | None = None) -> str | None:
        """Return the best next leader among these voters, or None.

        Voters that answered lately come first, then those that hold most of the log. A voter must
        be connected.

        Args:
            peers: The candidates; None for all voters not known to differ in state.
        """
        if peers is None:
            peers = [peer for peer in self.heirs() if peer not in self._divergence.differing]
        engine = self._engine
        lately = self._now() - self._context.election_s
        return max(
            sorted(self.heirs() & set(peers)),
            key=lambda peer: (engine.answered_since(peer, lately), engine.match_index(peer)),
            default=None,
        )

    def begin(self, peer: str | None) -> bool:
        """Begin a transfer; False when this leader cannot ask that peer.

        True also while a transfer to that peer is under way, or, with None, to any peer.

        Args:
            peer: The next leader, if it could lead within moments. None chooses the connected voter
                that holds most of the log, however far behind it is.
        """
        if self.handover.peer is not None:
            return peer in (None, self.handover.peer)
        if peer is None:
            peer = self.successor()
        elif not self._able(peer):
            return False
        if peer not in self.heirs():
            return False
        self.handover.begin(peer, self._now())
        return True

    def end(self) -> None:
        """End the transfer under way: this leadership is over."""
        self.handover.end()

    def proceed(self) -> None:
        """Begin a transfer to the preferred peer if one is due, and ask the peer or give it up."""
        engine, handover, now = self._engine, self.handover, self._now()
        if handover.peer is not None and not self._voters.votes(handover.peer):
            handover.end()  # The peer was removed, or lost its data, during the transfer.
        if handover.peer is None:
            preferred = self._voters.preferred or self._node_id
            due = handover.preferred_due(preferred, caught_up=self._able(preferred), now=now)
            if preferred != self._node_id and due:
                handover.begin(preferred, now)
        if handover.peer is None:
            return
        if now >= handover.deadline:
            self._context.counters["handover_failed"] += 1
            handover.end()
            self._again()
        elif (
            not handover.asked
            and self._applier.index == self._journal.last
            and engine.match_index(handover.peer) == self._journal.last
        ):
            handover.asked = True
            self._outbox.send(handover.peer, TimeoutNow(term=engine.term()))

    def _able(self, peer: str) -> bool:
        """Return whether a voter could lead within moments, as far as is known."""
        engine = self._engine
        # Under load a peer is always a few entries behind; the transfer waits for these.
        tolerated = 2 * self._context.settings.entries_in_flight_max
        return (
            peer in self.heirs()
            and peer not in self._divergence.differing
            # A paused peer, for lack of disk space for instance, is connected but does not answer.
            and engine.answered_since(peer, self._now() - self._context.election_s)
            and engine.match_index(peer) + tolerated >= engine.commit_index()
        )
