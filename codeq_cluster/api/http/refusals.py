"""Refusals: the errors that several routes answer with, for handlers and for their description."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from codeq_cluster.api.http.errors import ApiError, bad_request, from_failure, from_rejection
from codeq_cluster.broker.requests.producer import over_budget
from codeq_cluster.core.bounds import COMMAND_WORDS
from codeq_cluster.core.outcomes import Rejected, Rejection
from codeq_cluster.errors import LimitExceeded
from codeq_cluster.ratelimit.token_bucket import Scope

T = TypeVar("T")

INVALID_COMMAND = bad_request("invalid command", "invalid-command").because(
    f"use {COMMAND_WORDS}, other than . and .."
)
INVALID_STATUS = bad_request("invalid status", "invalid-status")
INVALID_CONSISTENCY = bad_request(
    "invalid 'consistency' (use linearizable or stale)", "invalid-consistency"
)
NEVER_STALE = bad_request(
    "invalid 'consistency' (this route has no stale reads)", "invalid-consistency"
)
NOT_ALLOWED = ApiError(403, "event type not allowed", "event-type-not-allowed")
NOT_FOUND = ApiError(404, "not-found", "not-found")
NO_TASK = ApiError(404, "not found", "not-found")
TASK_NOT_FOUND = ApiError(404, "task not found", "not-found")
STALLED = ApiError(408, "request timeout", "request-timeout", retryable=True)


def accepted(outcome: T | Rejected, refusal: Callable[[Rejected], ApiError] = from_rejection) -> T:
    """Return what the broker has done; raise the answer to a refusal of it."""
    if isinstance(outcome, Rejected):
        raise refusal(outcome)
    return outcome


def lacks_scope(scope: str) -> ApiError:
    """Return the 403 for a part of a request that needs a scope of its own."""
    return ApiError(403, f"missing scope {scope}", "forbidden")


def too_low(name: str, least: int) -> ApiError:
    """Return the error for a number below its bound."""
    return bad_request(f"invalid '{name}' (must be >= {least})", "out-of-range")


def too_high(name: str, most: int) -> ApiError:
    """Return the error for a number above its bound."""
    return bad_request(f"invalid '{name}' (must be <= {most})", "out-of-range")


def bounded(name: str, value: int, *, least: int, most: int) -> int:
    """Return the value; raise `too_low` or `too_high` unless least <= value <= most."""
    if value < least:
        raise too_low(name, least)
    if value > most:
        raise too_high(name, most)
    return value


def too_many(name: str, most: int) -> ApiError:
    """Return the error for a list with too many entries."""
    return bad_request(f"invalid '{name}' (at most {most})", "out-of-range")


def no_integer(name: str) -> ApiError:
    """Return the error for a text of the query that is not an integer."""
    return bad_request(f"invalid '{name}' (use an integer)", "invalid-query")


def unknown_name(name: str, known: Sequence[str]) -> ApiError:
    """Return the error for an unknown selector or parameter, which would select too much."""
    use = f"use {', '.join(known)}" if known else "the query of this route has no parameters"
    return bad_request(f"invalid '{name[:64]}' (unknown: {use})", "unknown-name")


def repeated(name: str) -> ApiError:
    """Return the error for a parameter of the query that is there more than once."""
    return bad_request(f"invalid '{name}' (give it once)", "invalid-query")


def no_flag(name: str) -> ApiError:
    """Return the error for a text of the query that is neither true nor false."""
    return bad_request(f"invalid '{name}' (use true or false)", "invalid-query")


def batch_too_large(most: int) -> ApiError:
    """Return the error for a batch with too many items."""
    return bad_request(f"batch size exceeds maximum of {most}", "batch-too-large")


def body_too_large(bytes_max: int, *, beside: str = "") -> ApiError:
    """Return the 413 for a body above its route's limit, or for the rest `beside` something."""
    text = f"request body exceeds {bytes_max} bytes" + (beside and f" beside {beside}")
    return ApiError(413, text, "body-too-large")


def invalid_field(field: str, message: str) -> ApiError:
    """Return the 422 that names one field of a body."""
    return ApiError(422, f"invalid {field}: {message}", "invalid-field", extra={"field": field})


def rate_limited(scope: Scope, operation: str) -> ApiError:
    """Return the 429 for an exceeded rate."""
    return from_failure(LimitExceeded(scope=scope, operation=operation, retry_after_s=1))


def budget_exceeded(limit: str, operation: str) -> ApiError:
    """Return the 429 for an exhausted budget."""
    return from_failure(over_budget(Rejected(Rejection.BUDGET_EXCEEDED, limit), operation))
