"""Rules: the switches of the guard, so that a test can show what each rule prevents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Each rule that holds the library; production never switches one off.

    Attributes:
        fresh_only: T1, drop a message that is not newer than the peer's last one.
        answers_of_this_term: T3, an answer counts in the term and life it was asked in only.
        skip_what_we_have: T4, never truncate entries that match.
        clamp_commit: T4, the commit index never passes the last verified entry.
        skip_conflicting_terms: T4, a conflict backs up a term at a time, not an entry.
        keep_committed: J7, refuse to truncate at or below the commit index.
        one_vote_a_voter: T6, count a voter once a term.
        no_stale_resets: T8, a rewind honours no answer to what was sent before the last one.
        keep_next_index: An acknowledgement never rewinds what is already on its way.
        hold_promises: T9, nothing that promises durability leaves before the flush.
        apply_flushed_only: An entry is applied only when the own journal holds it durably.
        tell_committed_only: Followers are told of no entry as committed before a majority holds it.
        commit_at_once: The answer that commits an entry does not wait for the next heartbeat.
        pre_vote: T12, stand only when a majority would vote.
        sticky: T12, no vote against a leader that is alive.
        term_hints: T11, tell a leader of an older term.
        newer_snapshots_only: T5, never install what is not beyond the commit index.
        keep_the_vote: A snapshot exchanges the log, never the term and the vote.
        keep_the_suffix: A snapshot drops nothing of a log that holds its last entry.
        majority_decides: A state is made anew only when a majority is known to have another.
        hold_for_snapshots: T5, keep what follows a snapshot while it travels.
        members_only: T2, D8, what a node says counts only on the data it was let in with.
        one_change_at_a_time: D6, no other membership before the last one is committed.
    """

    fresh_only: bool = True
    answers_of_this_term: bool = True
    skip_what_we_have: bool = True
    clamp_commit: bool = True
    skip_conflicting_terms: bool = True
    keep_committed: bool = True
    one_vote_a_voter: bool = True
    no_stale_resets: bool = True
    keep_next_index: bool = True
    hold_promises: bool = True
    apply_flushed_only: bool = True
    tell_committed_only: bool = True
    commit_at_once: bool = True
    pre_vote: bool = True
    sticky: bool = True
    term_hints: bool = True
    newer_snapshots_only: bool = True
    keep_the_vote: bool = True
    keep_the_suffix: bool = True
    majority_decides: bool = True
    hold_for_snapshots: bool = True
    members_only: bool = True
    one_change_at_a_time: bool = True


ALL_RULES = Rules()
