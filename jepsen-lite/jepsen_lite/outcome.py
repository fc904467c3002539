"""Outcome: the conclusion a client may draw from an answer, or from its absence."""

from __future__ import annotations

from collections.abc import Mapping

from jepsen_lite.history import Type

# Statuses that mean the broker did nothing and will do nothing.
_REFUSALS = frozenset({400, 401, 403, 404, 409, 413, 422, 429, 507})
# Error codes of batch items that may have been carried out.
_UNSURE = frozenset({"", "internal", "outcome-unknown"})
# Error codes of batch items that were certainly not carried out and may be sent again.
_LATER = frozenset({"no-leader", "overloaded", "upgrade-under-way"})


def outcome(status: int, headers: Mapping[str, str]) -> Type:
    """Classify an answer; every uncertain one is `info`."""
    if 200 <= status < 300:
        return Type.OK
    if status in _REFUSALS:
        return Type.FAIL
    told = {name.lower(): value for name, value in headers.items()}
    if status == 503 and told.get("x-outcome") == "not-applied":
        return Type.FAIL
    return Type.INFO


def item_outcome(code: str) -> Type:
    """Classify the error of one item of a batch."""
    return Type.INFO if code in _UNSURE else Type.FAIL


def item_may_succeed_later(code: str) -> bool:
    """Return whether an item of a batch that failed with this code may be sent again."""
    return code in _UNSURE or code in _LATER


def may_succeed_later(status: int, *, retryable: bool) -> bool:
    """Return whether the SDK would send the same request again."""
    return retryable or status == 0 or status >= 500
