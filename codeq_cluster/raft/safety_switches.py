"""Safety switches: the rules of the group, so that a test can show what each one prevents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetySwitches:
    """The rules that keep the library safe; production never switches one off.

    Attributes:
        fresh_only: T1, drop a message that is not newer than the peer's last one.
        answers_of_this_term: T3, an answer counts only in the term and life it was asked in.
        skip_what_we_have: T4, never truncate entries that match.
        clamp_commit: T4, the commit index never passes the last verified entry.
        skip_conflicting_terms: T4, a conflict backs up by a term at a time, not by an entry.
        keep_committed: J7, refuse to truncate at or below the commit index.
        one_vote_a_voter: T6, count each voter once per term.
        no_stale_resets: T8, a rewind ignores answers to messages sent before the last rewind.
        keep_next_index: An acknowledgement never rewinds entries that are already on their way.
        hold_promises: T9, no message that promises durability leaves before the flush.
        apply_flushed_only: An entry is applied only when this node's journal holds it durably.
        tell_committed_only: Followers hear of an entry as committed only when a majority holds
            it.
        commit_at_once: The answer that commits an entry does not wait for the next heartbeat.
        pre_vote: T12, start an election only when a majority would vote for this node.
        sticky: T12, no vote against a leader that is alive.
        term_hints: T11, tell a leader of an older term that its term is over.
        newer_snapshots_only: T5, install only a snapshot that is beyond the commit index.
        keep_the_vote: A snapshot exchanges the log, never the term and the vote.
        keep_the_suffix: A snapshot drops nothing of a log that holds its last entry.
        majority_decides: A state is replaced only when a majority is known to have another.
        hold_for_snapshots: T5, keep the log after a snapshot while the snapshot travels.
        members_only: T2, D8, a node's word counts only on the data it joined with.
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


ALL_RULES = SafetySwitches()
