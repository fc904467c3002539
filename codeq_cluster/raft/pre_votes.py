"""Pre-votes: what a node does when it has heard no leader for too long."""

from __future__ import annotations

from codeq_cluster.raft.elections import Campaign, Elections
from codeq_cluster.raft.messages import PreVoteRequest
from codeq_cluster.raft.replica import Replica
from codeq_cluster.raft.role import Role


class PreVotes:
    """One replica's requests for pre-votes.

    A node campaigns only after a majority would vote for it, so a node that was cut off deposes
    nobody. One that has no vote, or knows that its state is wrong, does not ask.
    """

    def __init__(
        self, replica: Replica, *, role: Role, elections: Elections, campaign: Campaign
    ) -> None:
        self._rules = replica.context.rules
        self._voters = replica.voters
        self._links = replica.links
        self._outbox = replica.outbox
        self._journal = replica.journal
        self._engine = replica.engine
        self._divergence = replica.divergence
        self._role = role
        self._elections = elections
        self._campaign = campaign

    def ask(self, now: float) -> None:
        """Forget the leader, and ask the voters whether they would elect this node."""
        self._role.forget_leader(self._engine)
        if not self._voters.voting:
            self._elections.abstain(now)
            return
        if self._divergence.wrong_at:
            # The majority works without this replica, which would lead with a wrong state.
            self._elections.unseated(now)
            return
        term = self._engine.term() + 1
        if self._elections.ask(term, now) or not self._rules.pre_vote:
            self._campaign.wanted = True
            return
        request = PreVoteRequest(
            term=term, last=self._journal.last, last_term=self._journal.last_term
        )
        for peer in self._voters.voters:
            if peer in self._links.connected:
                self._outbox.send(peer, request)
