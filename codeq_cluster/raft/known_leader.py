"""Known leader: which node leads, as last reported to the source of entries, and when none does."""

from __future__ import annotations

import logging

from codeq_cluster.raft.leader import Leader
from codeq_cluster.raft.messages import PreVoteRequest
from codeq_cluster.raft.replica import Replica

_log = logging.getLogger(__name__)


class KnownLeader:
    """Reports the leader to one replica's source, timer and waiting callers.

    `Leader` reports this node's own leadership to the source, once its term's first entry is
    applied. A leadership is ended before the source learns of the next leader.

    Args:
        replica: It has been loaded; no leader is known yet.
        leader: Its leadership is ended when this replica no longer leads the term that it led.
    """

    def __init__(self, replica: Replica, leader: Leader) -> None:
        self._replica = replica
        self._leader = leader
        self._begin()

    def _begin(self) -> None:
        self._known: tuple[int, bool, str | None] = (self._replica.engine.term, False, None)
        self._node: object = None
        self._replica.ports.source.follow(None)

    def note(self) -> None:
        """Report what changed about the leader since the last call."""
        replica, engine, known = self._replica, self._replica.engine, self._known
        node = engine.leader_node
        if engine.term == known[0] and engine.leads is known[1] and node is self._node:
            return
        self._node = node
        role = (engine.term, engine.leads, engine.leader)
        if role == known:
            return
        before, self._known = known, role
        term, leads, leader = role
        if before[1] and (not leads or term != before[0]):
            self._leader.end()
        if (leads, leader) != before[1:]:
            replica.leader_changes += leader != before[2]
            _log.info(
                "leader changed",
                extra={"shard": replica.shard, "term": term, "leader": leader, "self": leads},
            )
            if not leads:
                replica.ports.source.follow(leader)
        if leader is None and before[2] is not None and not engine.campaigns:
            replica.elections.unseated(replica.now())

    def seek(self, now: float) -> None:
        """Forget the leader, who is silent, and ask the voters whether they would elect this node.

        A node campaigns only after a majority would vote for it, so a node that was cut off deposes
        nobody. One that has no vote, or knows that its state is wrong, does not ask.
        """
        replica, engine, elections = self._replica, self._replica.engine, self._replica.elections
        if engine.leader is not None:
            engine.step_down()
            replica.leader_changes += 1
            self._begin()
        if not replica.voters.voting:
            elections.abstain(now)
            return
        if replica.divergence.wrong_at:
            # The majority works without this replica, which would lead with a wrong state.
            elections.unseated(now)
            return
        term = engine.term + 1
        if elections.ask(term, now) or not replica.rules.pre_vote:
            replica.campaign.wanted = True
            return
        journal = replica.journal
        request = PreVoteRequest(term=term, last=journal.last, last_term=journal.last_term)
        for peer in replica.voters.voters:
            if peer in replica.links.connected:
                replica.outbox.send(peer, request)
