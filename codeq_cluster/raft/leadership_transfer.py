"""Leadership transfer: whom a leader makes the next one, and when it asks or gives up.

A leadership is transferred on request or to the preferred peer. It is also given up when no
majority has the leader's state.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from codeq_cluster.raft.messages import TimeoutNow
from codeq_cluster.raft.replica import Replica

_log = logging.getLogger(__name__)

# The preferred peer must be stable before the group pauses for it. If it soon loses the leadership
# again, the required time doubles. Otherwise a peer that is up but cannot lead (a disk that stalls
# under load) would interrupt the others every few seconds.
_CAUGHT_UP_S = 5.0
_CAUGHT_UP_S_MAX = 600.0
_SOON_S = 60.0
# A transfer pauses proposals, so clients wait: bounded by a time they barely notice.
_PAUSE_S = 0.5
# A leader that finds no majority for its state steps down after this many election timeouts:
# another node may reach other voters.
_DOUBTED_ELECTIONS = 3
_NEVER = float("inf")


class PreferredPeer:
    """How long the preferred peer must have been caught up before it gets the leadership."""

    def __init__(self) -> None:
        self._caught_up_since: float | None = None
        self._named: object = None
        self._wait_s = _CAUGHT_UP_S
        self._given_at = float("-inf")

    def restart(self) -> None:
        """Begin the wait again."""
        self._caught_up_since = None

    def due(self, named: object, *, caught_up: bool, now: float) -> bool:
        """Return whether the preferred peer has been connected and caught up for long enough.

        Args:
            named: Stands for the peer, and for the membership that prefers it.
            caught_up: Whether it could lead within moments.
            now: Monotonic seconds.
        """
        if named != self._named:
            self._named, self._caught_up_since = named, None
        if not caught_up:
            self._caught_up_since = None
            return False
        if self._caught_up_since is None:
            self._caught_up_since = now
        wait_s = self._wait_s
        if now - self._given_at < wait_s + _SOON_S:
            wait_s = min(2 * wait_s, _CAUGHT_UP_S_MAX)
        else:
            wait_s = _CAUGHT_UP_S
        if now - self._caught_up_since < wait_s:
            return False
        self._wait_s, self._given_at = wait_s, now
        return True


class LeadershipTransfer:
    """A leader's transfers, on request or to the preferred peer; at most one at a time.

    The peer is asked to start an election only when it holds this leader's whole log and every
    proposal has been answered, so a transfer makes no outcome unknown.

    Args:
        replica: Leads when anything but `end` is called.

    Attributes:
        peer: The next leader; None while no transfer is under way. A transfer pauses proposals.
        deadline: When this leader gives the transfer up; infinite without a peer.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._preferred = PreferredPeer()
        self._asked = False
        self.peer: str | None = None
        self.deadline = _NEVER

    def heirs(self) -> set[str]:
        """Return the voters to which leadership can be transferred."""
        replica = self._replica
        return replica.links.connected.intersection(replica.voters.voters) - {replica.node_id}

    def successor(self, peers: Sequence[str] | None = None) -> str | None:
        """Return the best next leader among these voters, or None.

        Voters that answered lately come first, then those that hold most of the log. A voter must
        be connected.

        Args:
            peers: The candidates; None for all voters not known to differ in state.
        """
        replica, engine = self._replica, self._replica.engine
        if peers is None:
            peers = [peer for peer in self.heirs() if peer not in replica.divergence.differing]
        lately = replica.now() - replica.election_s
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
        if self.peer is not None:
            return peer in (None, self.peer)
        if peer is None:
            peer = self.successor()
        elif not self._able(peer):
            return False
        if peer not in self.heirs():
            return False
        self._start(peer, self._replica.now())
        return True

    def _start(self, peer: str, now: float) -> None:
        self.peer = peer
        self._asked = False
        self.deadline = now + _PAUSE_S

    def end(self) -> None:
        """End the transfer under way, whether it succeeded or not."""
        self.peer = None
        self.deadline = _NEVER
        self._preferred.restart()

    def proceed(self) -> None:
        """Begin a transfer to the preferred peer if one is due, and ask the peer or give it up.

        Called while a transfer is under way or another node is preferred.
        """
        replica, voters = self._replica, self._replica.voters
        now = replica.now()
        if self.peer is not None and not voters.votes(self.peer):
            self.end()  # The peer was removed, or lost its data, during the transfer.
        if self.peer is None and voters.preferred is not None and voters.prefers_another:
            named, able = (voters.index, voters.preferred), self._able(voters.preferred)
            if self._preferred.due(named, caught_up=able, now=now):
                self._start(voters.preferred, now)
        if self.peer is None:
            return
        last = replica.journal.last
        if now >= self.deadline:
            replica.counters["transfer_failed"] += 1
            self.end()
            replica.schedule.want_another()
        elif (
            not self._asked
            and replica.applier.index == last
            and replica.engine.match_index(self.peer) == last
        ):
            self._asked = True
            replica.outbox.send(self.peer, TimeoutNow(term=replica.engine.term))

    def _able(self, peer: str) -> bool:
        """Return whether a voter could lead within moments, as far as is known."""
        replica, engine = self._replica, self._replica.engine
        # Under load a peer is always a few entries behind; the transfer waits for these.
        tolerated = 2 * replica.settings.entries_in_flight_max
        return (
            peer in self.heirs()
            and peer not in replica.divergence.differing
            # A paused peer, for lack of disk space for instance, is connected but does not answer.
            and engine.answered_since(peer, replica.now() - replica.election_s)
            and engine.match_index(peer) + tolerated >= engine.commit_index
        )


class DoubtedLeader:
    """A leader whose state differs from a voter's, while no majority is known to agree with either.

    It accepts and answers nothing, and its heartbeats ask the others. It steps down when a majority
    has another state, or has been silent for too long. The next leader gets the rest of the log
    first, because it could not be elected without it.

    Attributes:
        deadline: When this leader steps down; infinite while nobody differs.
    """

    def __init__(self, replica: Replica, transfer: LeadershipTransfer) -> None:
        self._replica = replica
        self._transfer = transfer
        self.deadline = _NEVER

    def give_up(self) -> None:
        """Step down if no majority can confirm a state in doubt, or none did in time."""
        replica, engine = self._replica, self._replica.engine
        divergence = replica.divergence
        if not (engine.leads and divergence.open):
            self.deadline = _NEVER
            return
        now = replica.now()
        if self.deadline == _NEVER:
            self.deadline = now + _DOUBTED_ELECTIONS * replica.election_s
            engine.heartbeat_now()
        peer = self._transfer.successor(divergence.differing)
        able = peer is not None and engine.match_index(peer) == replica.journal.last
        if (divergence.lost and able) or now >= self.deadline:
            _log.error(
                "stepping down: no majority has my state",
                extra={"shard": replica.shard, "peers": list(divergence.differing)},
            )
            if peer is not None:
                replica.outbox.send(peer, TimeoutNow(term=engine.term))
            engine.step_down()
            self.deadline = _NEVER
