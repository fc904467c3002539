"""Errors: each is answered with the status, text and hints that a client acts on."""

from __future__ import annotations

import json

import pytest

from codeq_cluster.api.http.errors import (
    ApiError,
    envelope,
    from_access,
    from_failure,
    from_rejection,
)
from codeq_cluster.auth import AccessRefused
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.errors import (
    CodeqError,
    LimitExceeded,
    LinkLost,
    NoLeader,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerUnreachable,
    StorageFailed,
)


def test_the_envelope_has_four_keys() -> None:
    """Clients of the reference read the first; the others are ours."""
    body = json.loads(envelope(ApiError(400, "t", "c", retryable=True), "r"))

    assert {"error": "t", "code": "c", "retryable": True, "requestId": "r"} == body


@pytest.mark.parametrize("failure", [OutcomeUnknown(), LinkLost(), StorageFailed(), CodeqError()])
def test_a_write_with_an_unknown_outcome_is_never_called_failed(failure: CodeqError) -> None:
    """The answer does not call it unapplied either."""
    error = from_failure(failure)

    assert (503, "outcome unknown", "outcome-unknown") == (error.status, error.text, error.code)
    assert error.retryable
    assert "X-Outcome" not in error.headers


@pytest.mark.parametrize(
    "failure", [NoLeader(), NoLeader("shard 3"), NotLeader("b"), PeerUnreachable()]
)
def test_a_shard_without_leader_says_that_nothing_was_applied(failure: CodeqError) -> None:
    """The answer also says when to retry."""
    error = from_failure(failure)

    assert (503, "no leader for shard", "no-leader") == (error.status, error.text, error.code)
    assert {"Retry-After": "1", "X-Outcome": "not-applied"} == error.headers
    known = str(failure) if isinstance(failure, NoLeader) else ""
    assert known == error.extra.get("detail", "")


def test_an_overloaded_broker_says_when_to_come_again() -> None:
    """The answer has the broker's own estimate."""
    error = from_failure(Overloaded("queue", retry_after_s=3))

    assert 503 == error.status
    assert {"Retry-After": "3", "X-Outcome": "not-applied"} == error.headers


def test_an_exceeded_limit_is_named_with_when_to_come_again() -> None:
    """Header and body give the wait in whole seconds, at least one."""
    error = from_failure(LimitExceeded(scope="producer", operation="create_task", retry_after_s=0))

    assert 429 == error.status
    assert {"Retry-After": "1", "X-Outcome": "not-applied"} == error.headers
    assert {
        "error": "rate limit exceeded",
        "code": "rate-limited",
        "retryable": True,
        "requestId": "r",
        "scope": "producer",
        "operation": "create_task",
        "retryAfterSeconds": 1,
    } == json.loads(envelope(error, "r"))


@pytest.mark.parametrize(
    ("rejection", "status", "text"),
    [
        (Rejection.NOT_FOUND, 404, "task not found"),
        (Rejection.NOT_OWNER, 403, "not-owner"),
        (Rejection.NOT_IN_PROGRESS, 409, "not-in-progress"),
        (Rejection.LEASE_LOST, 409, "lease-lost"),
        (Rejection.IDEMPOTENCY_CONFLICT, 409, "idempotency conflict"),
        (Rejection.ALREADY_TERMINAL, 409, "already-terminal"),
        (Rejection.BUDGET_EXCEEDED, 429, "budget-exceeded"),
        (Rejection.TOO_MANY, 409, "too-many"),
    ],
)
def test_every_refusal_of_the_broker_has_its_answer(
    rejection: Rejection, status: int, text: str
) -> None:
    """The refusal's name is the answer's code."""
    error = from_rejection(Rejected(rejection), not_found="task not found")

    assert (status, text, rejection.value) == (error.status, error.text, error.code)
    assert not error.retryable


def test_a_priority_outside_the_tiers_is_refused_with_the_tiers() -> None:
    """The answer also names the priority of a request without one."""
    error = from_rejection(Rejected(Rejection.INVALID_PRIORITY, "1, 3, 5"))

    assert (400, "invalid-priority", False) == (error.status, error.code, error.retryable)
    assert (
        "invalid 'priority' (must be one of 1, 3, 5, the priorityTiers of its topic; 0 when absent)"
    ) == error.text


def test_no_refusal_lacks_an_answer() -> None:
    """A new refusal without an answer fails here before it fails a client."""
    assert all(from_rejection(Rejected(each)).status >= 400 for each in Rejection)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_caller_gets_the_authenticators_words(status: int) -> None:
    """The answer adds nothing to them."""
    error = from_access(AccessRefused(status, "words"))

    assert (status, "words") == (error.status, error.text)
