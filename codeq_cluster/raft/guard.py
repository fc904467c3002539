"""Guard: the checks between the peers' messages and the library, which believes every message.

A message passes only when Raft allows it: it is fresh and of this term. It never truncates matching
entries, and never commits entries that were not compared. Each check has its test and, in
`SafetySwitches`, its switch.

Only a member on the data it joined with counts for a majority. A node listens to
leaders and candidates that its own log does not name as members: it may lack the very entry that
names them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from codeq_cluster.errors import SafetyViolated
from codeq_cluster.raft.divergence import Divergence
from codeq_cluster.raft.elections import Elections
from codeq_cluster.raft.journal import Journal
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
from codeq_cluster.raft.outbox import Outbox
from codeq_cluster.raft.ports import StateMachine
from codeq_cluster.raft.read_index import ReadIndex
from codeq_cluster.raft.safe_syncobj import SafeSyncObj
from codeq_cluster.raft.safety_switches import SafetySwitches
from codeq_cluster.raft.state_digests import Digests
from codeq_cluster.raft.voters import Voters

_log = logging.getLogger(__name__)

AWAITED_FROM = 2  # The level at which every member reads `Answer.awaited`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """One group's checks: `handle` takes what comes in, `translate` what the library sends.

    Attributes:
        election_s: How long a leader counts as alive after its followers' last answers.
        memory: The state of the guard itself.
    """

    shard: int
    incarnation: int
    voters: Voters
    election_s: float
    rules: SafetySwitches
    engine: SafeSyncObj
    journal: Journal
    machine: StateMachine
    elections: Elections
    read_index: ReadIndex
    digests: Digests
    divergence: Divergence
    outbox: Outbox
    counters: Counter[str]
    now: Callable[[], float]
    memory: Memory

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
        engine = self.engine
        match message:
            case {"type": "next_node_idx", "next_node_idx": int(after), "success": True}:
                self._reply(peer, after, success=True)
            case {"type": "request_vote", "last_log_index": int(last), "last_log_term": int(term)}:
                request = VoteRequest(
                    term=engine.term(), last=last, last_term=term, transfer=self.memory.transfer
                )
                self.outbox.promise(peer, request)
            case {"type": "response_vote", "term": int(term)}:
                self.outbox.promise(peer, Vote(term=term))
            case _:
                raise SafetyViolated(f"the library wants to send {message.get('type')!r}")

    # Followers.

    def _append(self, peer: str, message: Append) -> None:
        term = self.engine.term()
        if message.term < term:
            self.counters["stale_append"] += 1
            if self.rules.term_hints:
                self.outbox.send(peer, TermHint(term=term))
            return
        if message.term == term and self.engine.leads():
            raise SafetyViolated(f"shard {self.shard}: {peer} leads term {term}, and so do I")
        self.elections.heard(peer, self.now())
        if message.commands:
            # A leader that still sends entries has given up its leadership transfer.
            self.memory.transfer = False
        if not self.memory.transfer:
            # This turn's pre-votes were granted before this leader was heard.
            self.memory.stand = False
        self._compare_with_leader(peer, message)
        self.memory.leader_commit = max(self.memory.leader_commit, message.commit)
        self.memory.floor = message.floor
        self.memory.answering = message
        self._follow(peer, message)
        self.memory.answering = None

    def _follow(self, peer: str, message: Append) -> None:
        """Compare the entries with the log; the library sees only those it may write."""
        journal = self.journal
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
        if self.rules.skip_what_we_have:
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
        self.engine.deliver(
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
        commit = self.journal.commit
        if prev <= commit and self.rules.keep_committed:
            raise SafetyViolated(
                f"shard {self.shard}: {peer} has another entry {prev}; mine is committed. If the "
                "cluster was recovered without this node, empty its data directory and let it in "
                "with `cluster join`; else keep the data and report this"
            )
        start = self.journal.first_of_term(prev) if self.rules.skip_conflicting_terms else prev
        self._beat(peer, message, verified=0)
        self._reply(peer, max(start, min(commit + 1, prev)), success=False)

    def _beat(self, peer: str, message: Append, *, verified: int) -> None:
        commit = self._clamped(message.commit, verified)
        self.engine.beat(peer, term=message.term, commit=commit)

    def _clamped(self, commit: int, verified: int) -> int:
        return min(commit, verified) if self.rules.clamp_commit else commit

    def _reply(self, peer: str, after: int, *, success: bool) -> None:
        asked = self.memory.answering
        assert asked is not None, "an answer without a question"
        if asked.quiet and success:
            return
        self.outbox.promise(
            peer,
            Answer(
                term=self.engine.term(),
                next=after,
                success=success,
                reset=not success,
                of_incarnation=asked.incarnation,
                of_seq=asked.seq,
                round=asked.round,
                applied=self.machine.applied_index,
                digest=self.machine.digest,
                awaited=self.voters.membership.level >= AWAITED_FROM and self.machine.awaited,
            ),
        )

    def _compare_with_leader(self, peer: str, message: Append) -> None:
        same = self.digests.same(message.applied, message.digest)
        if same is not None:
            self.compared(peer, message.applied, same=same)
        elif message.applied > self.machine.applied_index:
            self.digests.expect(peer, message.applied, message.digest)

    def compared(self, peer: str, index: int, *, same: bool) -> None:
        """Note whether a voter's state at an index equals this replica's; either may be wrong."""
        if self.divergence.heard(peer, index, same=same):
            _log.log(
                logging.WARNING if same else logging.ERROR,
                "states are equal again" if same else "states differ",
                extra={"shard": self.shard, "peer": peer, "index": index},
            )
        diverged = self.memory.diverged
        if same and diverged and self.divergence.confirmed(diverged):
            # A leader that is wrong itself can go by what it knew of a state since replaced.
            self.memory.diverged = 0
            _log.warning("a majority has my state", extra={"shard": self.shard, "index": diverged})

    # Leaders.

    def _answer(self, peer: str, message: Answer) -> None:
        engine = self.engine
        if self._stranger(peer, message):
            return
        if self.rules.answers_of_this_term and (
            message.term != engine.term() or message.of_incarnation != self.incarnation
        ):
            self.counters["stale_answer"] += 1
            self._learn_term(message.term)
            return
        if not engine.leads():
            self.counters["stale_answer"] += 1
            return
        if message.next - 1 > self.journal.last:
            self.counters["answer_beyond_log"] += 1
            return
        self._compare_with_follower(peer, message)
        self.memory.awaited[peer] = message.awaited
        if message.success:
            engine.acknowledge(peer, upto=message.next - 1, keep_next=self.rules.keep_next_index)
        elif message.of_seq <= self.memory.rewound[peer] and self.rules.no_stale_resets:
            # This answers a message from before the last rewind. Rewinding again would resend the
            # log twice.
            self.counters["stale_reset"] += 1
            engine.alive(peer)
        else:
            self.memory.rewound[peer] = self.outbox.sent(peer)
            if not engine.rewind(peer, message.next):
                self.counters["peer_out_of_reach"] += 1
                self.memory.out_of_reach[peer] = self.now()
                self.outbox.send(peer, Behind(term=engine.term(), first=self.journal.first))
        self.read_index.answered(peer, message.round)

    def _compare_with_follower(self, peer: str, message: Answer) -> None:
        same = self.digests.same(message.applied, message.digest)
        if same is None:
            return
        self.compared(peer, message.applied, same=same)
        if same:
            return
        self.counters["digest_mismatch"] += 1
        if self.divergence.condemns(peer) or not self.rules.majority_decides:
            told = Diverged(term=self.engine.term(), index=message.applied, digest=message.digest)
            self.outbox.send(peer, told)

    # Elections.

    def _vote_request(self, peer: str, message: VoteRequest) -> None:
        engine = self.engine
        if message.term < engine.term():
            self.counters["stale_vote_request"] += 1
            self._hint(peer)
            return
        handed_over = message.transfer and self.voters.votes(peer)
        if self.rules.sticky and not handed_over and self._loyal(peer):
            self.counters["vote_refused"] += 1
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
        if self.journal.voted_for == peer:
            self.elections.unseated(self.now())

    def _vote(self, peer: str, message: Vote) -> None:
        if self._stranger(peer, message) or not self.voters.votes(peer):
            return
        if not self.engine.stands() or message.term != self.engine.term():
            self.counters["stale_vote"] += 1
            return
        if (message.term, peer) in self.memory.votes and self.rules.one_vote_a_voter:
            self.counters["second_vote"] += 1
            return
        self.memory.votes = {vote for vote in self.memory.votes if vote[0] == message.term}
        self.memory.votes.add((message.term, peer))
        self.engine.deliver(peer, {"type": "response_vote", "term": message.term})

    def _pre_vote_request(self, peer: str, message: PreVoteRequest) -> None:
        journal = self.journal
        granted = (
            message.term > self.engine.term()
            and (message.last_term, message.last) >= (journal.last_term, journal.last)
            and not self._loyal(peer)
        )
        answer = PreVote(term=self.engine.term(), asked=message.term, granted=granted)
        self.outbox.send(peer, answer)

    def _pre_vote(self, peer: str, message: PreVote) -> None:
        if self._stranger(peer, message):
            return
        # A node whose term is behind would ask in vain for ever.
        self._learn_term(message.term)
        if not message.granted or self.engine.leads():
            return
        if self.elections.granted(peer, message.asked) and message.asked == self.engine.term() + 1:
            self.memory.stand = True

    def _timeout_now(self, peer: str, message: TimeoutNow) -> None:
        if message.term != self.engine.term() or self.engine.leader() != peer:
            self.counters["stale_transfer"] += 1
            return
        if self.memory.diverged:
            return  # This replica would lead with a wrong state.
        if not self.voters.voting:
            self.counters["transfer_to_learner"] += 1
            return
        self.memory.stand = True
        self.memory.transfer = True

    def _judged(self, peer: str, message: Behind | Diverged) -> None:
        """Note the leader's verdict that this replica is behind or has diverged."""
        leads = message.term == self.engine.term() and self.engine.leader() == peer
        match message:
            case Behind() if leads:
                self.memory.behind = True
            # The digest must still match: the state may have been replaced while the message was on
            # its way.
            case Diverged() if leads and self.digests.same(message.index, message.digest):
                self.memory.diverged = message.index
            case _:
                self.counters[f"stale_{type(message).__name__.lower()}"] += 1

    def _term_hint(self, peer: str, message: TermHint) -> None:
        if not self._stranger(peer, message):
            self._learn_term(message.term)

    def _stranger(self, peer: str, message: Message) -> bool:
        """Return whether the peer's word counts for nothing, and count that."""
        voters = self.voters
        if voters.knows(peer, message.incarnation) or (
            peer in voters.peers and not self.rules.members_only
        ):
            return False
        self.counters["stranger"] += 1
        return True

    def _learn_term(self, term: int) -> None:
        if term > self.engine.term():
            self.engine.adopt(term)

    def _hint(self, peer: str) -> None:
        if self.rules.term_hints:
            self.outbox.send(peer, TermHint(term=self.engine.term()))

    def _loyal(self, candidate: str) -> bool:
        """Return whether a leader other than the candidate is alive, this node included."""
        now = self.now()
        if not self.engine.leads():
            return self.elections.leader_alive(now) and self.engine.leader() != candidate
        voters = self.voters
        followers = sum(
            self.engine.answered_since(peer, now - self.election_s)
            for peer in voters.peers
            if voters.votes(peer)
        )
        return followers + 1 >= voters.majority


class Memory:
    """One group's state that the guard keeps between messages.

    Attributes:
        answering: The message being handled.
        floor: The leader allows the log to be trimmed up to here.
        leader_commit: The highest commit index a leader has reported.
        rewound: Per peer, the number of the last message sent before the latest rewind.
        out_of_reach: Per peer, when it last lacked entries that this leader's log no longer
            has.
        stand: Start an election with this turn's tick.
        transfer: The leader asked for that election.
        votes: (term, voter) counted in this term.
        awaited: Per follower, whether a caller on its node waits for entries to be applied.
        behind: The leader no longer has the entries this node needs.
        diverged: Entry at which this node's state differs from the majority's; 0 when none is
            known.
    """

    def __init__(self) -> None:
        self.answering: Append | None = None
        self.floor = 0
        self.leader_commit = 0
        self.rewound: Counter[str] = Counter()
        self.out_of_reach: dict[str, float] = {}
        self.stand = False
        self.transfer = False
        self.votes: set[tuple[int, str]] = set()
        self.awaited: dict[str, bool] = {}
        self.behind = False
        self.diverged = 0
