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
from codeq_cluster.raft.messages import (
    Answer,
    Append,
    Beat,
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
from codeq_cluster.raft.replica import Replica


class Guard:
    """One replica's checks: `handle` for incoming messages, `translate` for the library's own.

    No message of a member on other data, of an earlier term or of an earlier process start changes
    this replica's log, term or vote.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

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
            case Behind() | Diverged() | Beat():
                self._judged(peer, message)
            case _:
                assert_never(message)

    def translate(self, peer: str, message: Mapping[str, object]) -> None:
        """Send a message of the library's in this package's own format; each is a promise."""
        replica = self._replica
        engine = replica.engine
        match message:
            case {"type": "request_vote", "last_log_index": int(last), "last_log_term": int(term)}:
                request = VoteRequest(
                    term=engine.term,
                    last=last,
                    last_term=term,
                    transfer=replica.campaign.transferred,
                )
                replica.outbox.promise(peer, request)
            case {"type": "response_vote", "term": int(term)}:
                replica.outbox.promise(peer, Vote(term=term))
            case _:
                raise SafetyViolated(f"the library wants to send {message.get('type')!r}")

    # Followers.

    def _append(self, peer: str, message: Append) -> None:
        replica, engine, campaign = self._replica, self._replica.engine, self._replica.campaign
        if message.term < engine.term:
            replica.counters["stale_append"] += 1
            self._hint(peer)
            return
        if message.term == engine.term and engine.leads:
            raise SafetyViolated(
                f"shard {replica.shard}: {peer} leads term {message.term}, and so do I"
            )
        replica.elections.heard(peer, replica.now())
        if message.commands:
            # A leader that still sends entries has given up its leadership transfer.
            campaign.transferred = False
        if not campaign.transferred:
            # Pre-votes of this turn were granted before this leader was heard: no election.
            campaign.wanted = False
        mine = replica.digests.kept.get(message.applied)
        if mine is not None:
            replica.divergence.compared(peer, message.applied, same=mine == message.digest)
        elif message.applied > replica.applier.index:
            replica.digests.expect(peer, message.applied, message.digest)
        replica.known_commit = max(replica.known_commit, message.commit)
        replica.floor = message.floor
        engine.follow(peer, message.term)
        self._follow(peer, message)

    def _follow(self, peer: str, message: Append) -> None:
        """Compare the entries with the log, write those it lacks, and answer."""
        replica, engine, journal = self._replica, self._replica.engine, self._replica.journal
        prev, prev_term = message.prev, message.prev_term
        commands, terms = message.commands, message.terms
        if prev < journal.first:
            # Trimmed entries are committed, so the leader holds the same ones.
            known = journal.first - prev
            prev, prev_term = journal.first, journal.term_at(journal.first) or 0
            commands, terms = commands[known:], terms[known:]
        mine = journal.term_at(prev)
        if mine is None:
            self._refuse(peer, message, after=journal.last + 1)
        elif mine != prev_term:
            self._conflict(peer, message, prev)
        else:
            if replica.rules.skip_what_we_have:
                have, most = 0, min(len(terms), journal.last - prev)
                while have < most and journal.term_at(prev + 1 + have) == terms[have]:
                    have += 1
                commands, terms, prev = commands[have:], terms[have:], prev + have
            if commands or not replica.rules.skip_what_we_have:
                engine.write(prev, commands, terms)
                prev += len(commands)
            engine.commit(
                min(message.commit, prev) if replica.rules.clamp_commit else message.commit
            )
            if not message.quiet:
                self._answer_append(peer, message, after=prev + 1, success=True)

    def _conflict(self, peer: str, message: Append, prev: int) -> None:
        journal, rules = self._replica.journal, self._replica.rules
        commit = journal.commit
        if prev <= commit and rules.keep_committed:
            raise SafetyViolated(
                f"shard {self._replica.shard}: {peer} has another entry {prev}; mine is committed. "
                "If the cluster was recovered without this node, empty its data directory and let "
                "it in with `cluster join`; else keep the data and report this"
            )
        start = journal.first_of_term(prev) if rules.skip_conflicting_terms else prev
        self._refuse(peer, message, after=max(start, min(commit + 1, prev)))

    def _refuse(self, peer: str, message: Append, *, after: int) -> None:
        """Ask the leader to go back: nothing that it sent was compared with this log."""
        if not self._replica.rules.clamp_commit:
            self._replica.engine.commit(message.commit)
        self._answer_append(peer, message, after=after, success=False)

    def _answer_append(self, peer: str, message: Append, *, after: int, success: bool) -> None:
        replica, applier, machine = self._replica, self._replica.applier, self._replica.machine
        replica.outbox.promise(
            peer,
            Answer(
                term=replica.engine.term,
                next=after,
                success=success,
                reset=not success,
                of_incarnation=message.incarnation,
                of_seq=message.seq,
                round=message.round,
                applied=applier.index,
                digest=applier.digest,
                awaited=machine.awaited,
            ),
        )

    # Leaders.

    def _answer(self, peer: str, message: Answer) -> None:
        replica = self._replica
        engine = replica.engine
        if self._stranger(peer, message):
            return
        if replica.rules.answers_of_this_term and (
            message.term != engine.term or message.of_incarnation != replica.incarnation
        ):
            replica.counters["stale_answer"] += 1
            self._learn_term(message.term)
            return
        if not engine.leads:
            replica.counters["stale_answer"] += 1
            return
        if message.next - 1 > replica.journal.last:
            replica.counters["answer_beyond_log"] += 1
            return
        mine = replica.digests.kept.get(message.applied)
        if mine == message.digest:
            replica.divergence.compared(peer, message.applied, same=True)
        elif mine is not None:
            self._differs(peer, message)
        replica.followers.awaited[peer] = message.awaited
        if message.success:
            engine.acknowledge(peer, upto=message.next - 1, keep_next=replica.rules.keep_next_index)
        else:
            self._go_back(peer, message)
        if replica.read_index.open:
            replica.read_index.answered(peer, message.round)

    def _go_back(self, peer: str, message: Answer) -> None:
        """Send again what a follower lacks, or say that this log lacks it, too."""
        replica, engine = self._replica, self._replica.engine
        rewound = replica.followers.rewound
        if message.of_seq <= rewound[peer] and replica.rules.no_stale_resets:
            # This answers a message from before the last rewind. Rewinding again would resend the
            # log twice.
            replica.counters["stale_reset"] += 1
            engine.alive(peer)
            return
        rewound[peer] = replica.outbox.sent(peer)
        if not engine.rewind(peer, message.next):
            replica.counters["peer_out_of_reach"] += 1
            replica.followers.lacks_trimmed_entries(peer, replica.now())
            replica.outbox.send(peer, Behind(term=engine.term, first=replica.journal.first))

    def _differs(self, peer: str, message: Answer) -> None:
        replica = self._replica
        replica.divergence.compared(peer, message.applied, same=False)
        replica.counters["digest_mismatch"] += 1
        if replica.divergence.condemns(peer) or not replica.rules.majority_decides:
            replica.outbox.send(
                peer,
                Diverged(term=replica.engine.term, index=message.applied, digest=message.digest),
            )

    # Elections.

    def _vote_request(self, peer: str, message: VoteRequest) -> None:
        replica = self._replica
        engine = replica.engine
        if message.term < engine.term:
            replica.counters["stale_vote_request"] += 1
            self._hint(peer)
            return
        transferred = message.transfer and replica.voters.votes(peer)
        if replica.rules.sticky and not transferred and self._loyal(peer):
            replica.counters["vote_refused"] += 1
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
        if replica.journal.voted_for == peer:
            replica.elections.unseated(replica.now())

    def _vote(self, peer: str, message: Vote) -> None:
        replica = self._replica
        if self._stranger(peer, message) or not replica.voters.votes(peer):
            return
        if not replica.engine.campaigns or message.term != replica.engine.term:
            replica.counters["stale_vote"] += 1
            return
        if (message.term, peer) in replica.campaign.votes and replica.rules.one_vote_a_voter:
            replica.counters["second_vote"] += 1
            return
        replica.campaign.votes = {
            vote for vote in replica.campaign.votes if vote[0] == message.term
        }
        replica.campaign.votes.add((message.term, peer))
        replica.engine.deliver(peer, {"type": "response_vote", "term": message.term})

    def _pre_vote_request(self, peer: str, message: PreVoteRequest) -> None:
        replica = self._replica
        journal = replica.journal
        granted = (
            message.term > replica.engine.term
            and (message.last_term, message.last) >= (journal.last_term, journal.last)
            and not self._loyal(peer)
        )
        answer = PreVote(term=replica.engine.term, asked=message.term, granted=granted)
        replica.outbox.send(peer, answer)

    def _pre_vote(self, peer: str, message: PreVote) -> None:
        replica = self._replica
        if self._stranger(peer, message):
            return
        # A node that stayed in its older term would ask for pre-votes in vain for ever.
        self._learn_term(message.term)
        if not message.granted or replica.engine.leads:
            return
        if (
            replica.elections.granted(peer, message.asked)
            and message.asked == replica.engine.term + 1
        ):
            replica.campaign.wanted = True

    def _timeout_now(self, peer: str, message: TimeoutNow) -> None:
        replica = self._replica
        if message.term != replica.engine.term or replica.engine.leader != peer:
            replica.counters["stale_transfer"] += 1
            return
        if replica.divergence.wrong_at:
            return  # This replica would lead with a wrong state.
        if not replica.voters.voting:
            replica.counters["transfer_to_learner"] += 1
            return
        replica.campaign.wanted = True
        replica.campaign.transferred = True

    def _judged(self, peer: str, message: Behind | Diverged | Beat) -> None:
        """Note the leader's verdict that this replica is behind or has diverged.

        A beat is no verdict, and belongs to the node.
        """
        replica = self._replica
        leads = message.term == replica.engine.term and replica.engine.leader == peer
        match message:
            case Behind() if leads:
                replica.behind = True
            # The digest must still match: the state may have been replaced while the message was on
            # its way.
            case Diverged() if leads and replica.digests.kept.get(message.index) == message.digest:
                replica.divergence.wrong_at = message.index
            case _:
                replica.counters[f"stale_{type(message).__name__.lower()}"] += 1

    def _term_hint(self, peer: str, message: TermHint) -> None:
        if not self._stranger(peer, message):
            self._learn_term(message.term)

    def _stranger(self, peer: str, message: Message) -> bool:
        """Return whether to ignore the peer: it is no member on the data it joined with.

        Ignored messages are counted.
        """
        replica = self._replica
        voters = replica.voters
        if voters.knows(peer, message.incarnation) or (
            peer in voters.peers and not replica.rules.members_only
        ):
            return False
        replica.counters["stranger"] += 1
        return True

    def _learn_term(self, term: int) -> None:
        replica = self._replica
        if term > replica.engine.term:
            replica.engine.adopt(term)

    def _hint(self, peer: str) -> None:
        replica = self._replica
        if replica.rules.term_hints:
            replica.outbox.send(peer, TermHint(term=replica.engine.term))

    def _loyal(self, candidate: str) -> bool:
        """Return whether a leader other than the candidate is alive; it may be this node."""
        replica = self._replica
        now = replica.now()
        if not replica.engine.leads:
            return replica.elections.leader_alive(now) and replica.engine.leader != candidate
        voters = replica.voters
        followers = sum(
            replica.engine.answered_since(peer, now - replica.election_s)
            for peer in voters.peers
            if voters.votes(peer)
        )
        return followers + 1 >= voters.majority
