"""Doubted leader: the time limit of a leader whose state no majority has confirmed."""

from __future__ import annotations

import logging

from codeq_cluster.raft.leadership_transfer import LeadershipTransfer
from codeq_cluster.raft.messages import TimeoutNow
from codeq_cluster.raft.replica import Replica

_log = logging.getLogger(__name__)

# A leader that finds no majority for its state steps down after this many election timeouts:
# another node may reach other voters.
_DOUBTED_ELECTIONS = 3
_NEVER = float("inf")


class DoubtedLeader:
    """A leader whose state differs from a voter's, while no majority is known to agree with either.

    It accepts and answers nothing, and its heartbeats ask the others. It steps down when a majority
    has another state, or has been silent for too long. The next leader gets the rest of the log
    first, because it could not be elected without it.

    Attributes:
        deadline: When this leader steps down; infinite while nobody differs.
    """

    def __init__(self, replica: Replica, transfer: LeadershipTransfer) -> None:
        self._context = replica.context
        self._outbox = replica.outbox
        self._journal = replica.journal
        self._engine = replica.engine
        self._divergence = replica.divergence
        self._transfer = transfer
        self.deadline = _NEVER

    def give_up(self) -> None:
        """Step down if no majority can confirm a state in doubt, or none did in time."""
        engine, divergence = self._engine, self._divergence
        if not (engine.leads() and divergence.open):
            self.deadline = _NEVER
            return
        now = self._context.now()
        if self.deadline == _NEVER:
            self.deadline = now + _DOUBTED_ELECTIONS * self._context.election_s
            engine.heartbeat_now()
        peer = self._transfer.successor(divergence.differing)
        able = peer is not None and engine.match_index(peer) == self._journal.last
        if (divergence.lost and able) or now >= self.deadline:
            _log.error(
                "stepping down: no majority has my state",
                extra={"shard": self._context.shard, "peers": list(divergence.differing)},
            )
            if peer is not None:
                self._outbox.send(peer, TimeoutNow(term=engine.term()))
            engine.step_down()
            self.deadline = _NEVER
