"""Guard: the checks between the peers' messages and the library, which believes every message.

A message passes only when Raft allows it: it is fresh and of this term. No message truncates
entries that match the leader's, or commits entries that were not compared with them. Each check has
its test and, in `SafetySwitches`, its switch.

Only a member on the data it joined with counts for a majority. A node also listens to leaders and
candidates that its own log does not name as members, because it may lack the very entry that names
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from codeq_cluster.errors import SafetyViolated
from codeq_cluster.raft.elections import Campaign, Elections
from codeq_cluster.raft.followers import Followers
from codeq_cluster.raft.following import Following
from codeq_cluster.raft.messages import (
    Answer,
    Append,
    Behind,
    Diverged,
    Message,
    PreVote,
    PreVoteRequest,
    TermHint,
    TimeoutNow,
    Vote,
    VoteRequest,
)
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.replica import Replica
from codeq_cluster.raft.state_digests import Digests

AWAITED_FROM = 2  # From this format level on, every member reads `Answer.awaited`.


class Guard:
    """One replica's checks: `handle` for incoming messages, `translate` for the library's own.

    No message of a member on other data, of an earlier term or of an earlier process start changes
    this replica's log, term or vote.

    Args:
        replica: The replica that is checked.
        elections: Records when this node last heard a leader.
        campaign: The election that a message may make this node start.
        read_index: The read rounds that followers' answers confirm.
        digests: Digests of this replica's latest states.
        followers: Notes about the followers, for the time this node leads.
        following: Notes about the leader, for the time this node follows.
    """

    def __init__(
        self,
        replica: Replica,
        *,
        elections: Elections,
        campaign: Campaign,
        read_index: ReadIndex,
        digests: Digests,
        followers: Followers,
        following: Following,
    ) -> None:
        context = replica.context
        self._shard = context.shard
        self._incarnation = context.incarnation
        self._election_s = context.election_s
        self._rules = context.rules
        self._counters = context.counters
        self._now = context.now
        self._voters = replica.voters
        self._outbox = replica.outbox
        self._journal = replica.journal
        self._engine = replica.engine
        self._machine = replica.machine
        self._divergence = replica.divergence
        self._elections = elections
        self._campaign = campaign
        self._read_index = read_index
        self._digests = digests
        self._followers = followers
        self._following = following

    def handle(self, peer: str, message: Message) -> None:
        """Check one message and act on it.

        Raises:
            SafetyViolated: The message shows that an invariant is broken; nothing was done.
        """
        match message:
            case Append():
                self._append(peer, message)
            case Answer():
                self._answer(peer, message)
            case VoteRequest():
                self._vote_request(peer, message)
            case Vote():
                self._vote(peer, message)
            case PreVoteRequest():
                self._pre_vote_request(peer, message)
            case PreVote():
                self._pre_vote(peer, message)
            case TimeoutNow():
                self._timeout_now(peer, message)
            case TermHint():
                self._term_hint(peer, message)
            case Behind() | Diverged():
                self._judged(peer, message)
            case _:
                assert_never(message)

    def translate(self, peer: str, message: Mapping[str, object]) -> None:
        """Send a message of the library's in this package's own format; each is a promise."""
        engine = self._engine
        match message:
            case {"type": "next_node_idx", "next_node_idx": int(after), "success": True}:
                self._reply(peer, after, success=True)
            case {"type": "request_vote", "last_log_index": int(last), "last_log_term": int(term)}:
                request = VoteRequest(
                    term=engine.term(),
                    last=last,
                    last_term=term,
                    transfer=self._campaign.transferred,
                )
                self._outbox.promise(peer, request)
            case {"type": "response_vote", "term": int(term)}:
                self._outbox.promise(peer, Vote(term=term))
            case _:
                raise SafetyViolated(f"the library wants to send {message.get('type')!r}")

    # Followers.

    def _append(self, peer: str, message: Append) -> None:
        term = self._engine.term()
        if message.term < term:
            self._counters["stale_append"] += 1
            if self._rules.term_hints:
                self._outbox.send(peer, TermHint(term=term))
            return
        if message.term == term and self._engine.leads():
            raise SafetyViolated(f"shard {self._shard}: {peer} leads term {term}, and so do I")
        self._elections.heard(peer, self._now())
        if message.commands:
            # A leader that still sends entries has given up its leadership transfer.
            self._campaign.transferred = False
        if not self._campaign.transferred:
            # Pre-votes of this turn were granted before this leader was heard: no election.
            self._campaign.wanted = False
        self._compare_with_leader(peer, message)
        self._following.commit = max(self._following.commit, message.commit)
        self._following.floor = message.floor
        self._following.answering = message
        self._follow(peer, message)
        self._following.answering = None

    def _follow(self, peer: str, message: Append) -> None:
        """Compare the entries with the log; the library sees only those it may write."""
        journal = self._journal
        prev, prev_term = message.prev, message.prev_term
        commands, terms = message.commands, message.terms
        if prev < journal.first:
            # Trimmed entries are committed, so the leader holds the same ones.
            known = journal.first - prev
            prev, prev_term = journal.first, journal.term_at(journal.first) or 0
            commands, terms = commands[known:], terms[known:]
        mine = journal.term_at(prev)
        if mine is None:
            self._beat(peer, message, verified=0)
            self._reply(peer, journal.last + 1, success=False)
            return
        if mine != prev_term:
            self._conflict(peer, message, prev)
            return
        if self._rules.skip_what_we_have:
            have = 0
            while have < len(terms) and journal.term_at(prev + 1 + have) == terms[have]:
                have += 1
            commands, terms, prev = commands[have:], terms[have:], prev + have
            prev_term = journal.term_at(prev) or 0
            if not commands:
                self._beat(peer, message, verified=prev)
                self._reply(peer, prev + 1, success=True)
                return
        entries = [
            (command, prev + 1 + offset, term)
            for offset, (command, term) in enumerate(zip(commands, terms, strict=True))
        ]
        self._engine.deliver(
            peer,
            {
                "type": "append_entries",
                "term": message.term,
                "commit_index": self._clamped(message.commit, prev + len(entries)),
                "entries": entries,
                "prevLogIdx": prev,
                "prevLogTerm": prev_term,
            },
        )

    def _conflict(self, peer: str, message: Append, prev: int) -> None:
        commit = self._journal.commit
        if prev <= commit and self._rules.keep_committed:
            raise SafetyViolated(
                f"shard {self._shard}: {peer} has another entry {prev}; mine is committed. If the "
                "cluster was recovered without this node, empty its data directory and let it in "
                "with `cluster join`; else keep the data and report this"
            )
        start = self._journal.first_of_term(prev) if self._rules.skip_conflicting_terms else prev
        self._beat(peer, message, verified=0)
        self._reply(peer, max(start, min(commit + 1, prev)), success=False)

    def _beat(self, peer: str, message: Append, *, verified: int) -> None:
        commit = self._clamped(message.commit, verified)
        self._engine.beat(peer, term=message.term, commit=commit)

    def _clamped(self, commit: int, verified: int) -> int:
        return min(commit, verified) if self._rules.clamp_commit else commit

    def _reply(self, peer: str, after: int, *, success: bool) -> None:
        asked = self._following.answering
        assert asked is not None, "an answer without a question"
        if asked.quiet and success:
            return
        self._outbox.promise(
            peer,
            Answer(
                term=self._engine.term(),
                next=after,
                success=success,
                reset=not success,
                of_incarnation=asked.incarnation,
                of_seq=asked.seq,
                round=asked.round,
                applied=self._machine.applied_index,
                digest=self._machine.digest,
                awaited=self._voters.membership.level >= AWAITED_FROM and self._machine.awaited,
            ),
        )

    def _compare_with_leader(self, peer: str, message: Append) -> None:
        same = self._digests.same(message.applied, message.digest)
        if same is not None:
            self._divergence.compared(peer, message.applied, same=same)
        elif message.applied > self._machine.applied_index:
            self._digests.expect(peer, message.applied, message.digest)

    # Leaders.

    def _answer(self, peer: str, message: Answer) -> None:
        engine = self._engine
        if self._stranger(peer, message):
            return
        if self._rules.answers_of_this_term and (
            message.term != engine.term() or message.of_incarnation != self._incarnation
        ):
            self._counters["stale_answer"] += 1
            self._learn_term(message.term)
            return
        if not engine.leads():
            self._counters["stale_answer"] += 1
            return
        if message.next - 1 > self._journal.last:
            self._counters["answer_beyond_log"] += 1
            return
        self._compare_with_follower(peer, message)
        self._followers.awaited[peer] = message.awaited
        if message.success:
            engine.acknowledge(peer, upto=message.next - 1, keep_next=self._rules.keep_next_index)
        elif message.of_seq <= self._followers.rewound[peer] and self._rules.no_stale_resets:
            # This answers a message from before the last rewind. Rewinding again would resend the
            # log twice.
            self._counters["stale_reset"] += 1
            engine.alive(peer)
        else:
            self._followers.rewound[peer] = self._outbox.sent(peer)
            if not engine.rewind(peer, message.next):
                self._counters["peer_out_of_reach"] += 1
                self._followers.lacks_trimmed_entries(peer, self._now())
                self._outbox.send(peer, Behind(term=engine.term(), first=self._journal.first))
        self._read_index.answered(peer, message.round)

    def _compare_with_follower(self, peer: str, message: Answer) -> None:
        same = self._digests.same(message.applied, message.digest)
        if same is None:
            return
        self._divergence.compared(peer, message.applied, same=same)
        if same:
            return
        self._counters["digest_mismatch"] += 1
        if self._divergence.condemns(peer) or not self._rules.majority_decides:
            self._outbox.send(
                peer,
                Diverged(term=self._engine.term(), index=message.applied, digest=message.digest),
            )

    # Elections.

    def _vote_request(self, peer: str, message: VoteRequest) -> None:
        engine = self._engine
        if message.term < engine.term():
            self._counters["stale_vote_request"] += 1
            self._hint(peer)
            return
        handed_over = message.transfer and self._voters.votes(peer)
        if self._rules.sticky and not handed_over and self._loyal(peer):
            self._counters["vote_refused"] += 1
            return
        engine.deliver(
            peer,
            {
                "type": "request_vote",
                "term": message.term,
                "last_log_index": message.last,
                "last_log_term": message.last_term,
            },
        )
        if self._journal.voted_for == peer:
            self._elections.unseated(self._now())

    def _vote(self, peer: str, message: Vote) -> None:
        if self._stranger(peer, message) or not self._voters.votes(peer):
            return
        if not self._engine.is_candidate() or message.term != self._engine.term():
            self._counters["stale_vote"] += 1
            return
        if (message.term, peer) in self._campaign.votes and self._rules.one_vote_a_voter:
            self._counters["second_vote"] += 1
            return
        self._campaign.votes = {vote for vote in self._campaign.votes if vote[0] == message.term}
        self._campaign.votes.add((message.term, peer))
        self._engine.deliver(peer, {"type": "response_vote", "term": message.term})

    def _pre_vote_request(self, peer: str, message: PreVoteRequest) -> None:
        journal = self._journal
        granted = (
            message.term > self._engine.term()
            and (message.last_term, message.last) >= (journal.last_term, journal.last)
            and not self._loyal(peer)
        )
        answer = PreVote(term=self._engine.term(), asked=message.term, granted=granted)
        self._outbox.send(peer, answer)

    def _pre_vote(self, peer: str, message: PreVote) -> None:
        if self._stranger(peer, message):
            return
        # A node that stayed in its older term would ask for pre-votes in vain for ever.
        self._learn_term(message.term)
        if not message.granted or self._engine.leads():
            return
        if (
            self._elections.granted(peer, message.asked)
            and message.asked == self._engine.term() + 1
        ):
            self._campaign.wanted = True

    def _timeout_now(self, peer: str, message: TimeoutNow) -> None:
        if message.term != self._engine.term() or self._engine.leader() != peer:
            self._counters["stale_transfer"] += 1
            return
        if self._divergence.wrong_at:
            return  # This replica would lead with a wrong state.
        if not self._voters.voting:
            self._counters["transfer_to_learner"] += 1
            return
        self._campaign.wanted = True
        self._campaign.transferred = True

    def _judged(self, peer: str, message: Behind | Diverged) -> None:
        """Note the leader's verdict that this replica is behind or has diverged."""
        leads = message.term == self._engine.term() and self._engine.leader() == peer
        match message:
            case Behind() if leads:
                self._following.behind = True
            # The digest must still match: the state may have been replaced while the message was on
            # its way.
            case Diverged() if leads and self._digests.same(message.index, message.digest):
                self._divergence.wrong_at = message.index
            case _:
                self._counters[f"stale_{type(message).__name__.lower()}"] += 1

    def _term_hint(self, peer: str, message: TermHint) -> None:
        if not self._stranger(peer, message):
            self._learn_term(message.term)

    def _stranger(self, peer: str, message: Message) -> bool:
        """Return whether to ignore the peer: it is no member on the data it joined with.

        Ignored messages are counted.
        """
        voters = self._voters
        if voters.knows(peer, message.incarnation) or (
            peer in voters.peers and not self._rules.members_only
        ):
            return False
        self._counters["stranger"] += 1
        return True

    def _learn_term(self, term: int) -> None:
        if term > self._engine.term():
            self._engine.adopt(term)

    def _hint(self, peer: str) -> None:
        if self._rules.term_hints:
            self._outbox.send(peer, TermHint(term=self._engine.term()))

    def _loyal(self, candidate: str) -> bool:
        """Return whether a leader other than the candidate is alive; it may be this node."""
        now = self._now()
        if not self._engine.leads():
            return self._elections.leader_alive(now) and self._engine.leader() != candidate
        voters = self._voters
        followers = sum(
            self._engine.answered_since(peer, now - self._election_s)
            for peer in voters.peers
            if voters.votes(peer)
        )
        return followers + 1 >= voters.majority
