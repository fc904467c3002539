"""Answers: an outcome of the core as the plain tuple that the model gives."""

from __future__ import annotations

from typing import assert_never

from codeq_cluster.core.outcomes import (
    Advanced,
    Cancelled,
    Changed,
    Claimed,
    Created,
    Extended,
    Outcome,
    Rejected,
    Returned,
    ScheduleStands,
    Submitted,
    Subscribed,
    Taken,
    TopicStands,
    Triggered,
)

from .model_items import Answer


def answer_of(  # noqa: C901, PLR0912 - a line an outcome
    outcome: Outcome, *, by_id: bool
) -> Answer:
    """Return the tuple; `by_id` sorts claimed tasks by their ids."""
    match outcome:
        case Rejected():
            limit = (outcome.limit,) if outcome.limit else ()
            return "rejected", outcome.rejection.value, *limit
        case Created():
            return "created", outcome.task.id, outcome.replay
        case Claimed():
            ids = [task.id for task in outcome.tasks]
            return "claimed", tuple(sorted(ids) if by_id else ids)
        case Extended():
            return "extended", outcome.lease_until_ms
        case Returned():
            return "returned", outcome.dead, outcome.delay_ms
        case Submitted():
            result = outcome.result
            names = tuple(each.id or each.key for each in result.next)
            said = result.status, result.body, result.error, result.worker, result.next_digest
            return "submitted", *said, names
        case Cancelled():
            return "cancelled", outcome.task.id
        case Advanced():
            return "advanced", outcome.count
        case Changed():
            return "changed", outcome.count
        case Taken():
            return "taken", outcome.number
        case TopicStands():
            return "topic", outcome.topic.name, outcome.topic.version, outcome.made
        case ScheduleStands():
            schedule = outcome.schedule
            return "schedule", schedule.id, schedule.version, outcome.made
        case Triggered():
            return "triggered", outcome.how.value, outcome.task_id
        case Subscribed():
            subscription = outcome.subscription
            return "subscribed", subscription.id, subscription.expires_ms
        case _:
            assert_never(outcome)
