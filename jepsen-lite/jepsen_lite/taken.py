"""Taken: what a simulated broker answers to an operation that it has taken."""

from __future__ import annotations

from typing import TypeVar

from codeq_cluster.api.http.errors import from_rejection
from codeq_cluster.core.outcomes import Rejected
from codeq_cluster.errors import CodeqError

_T = TypeVar("_T")


def taken(answered: _T | Rejected | CodeqError) -> _T:
    """Return the result.

    Raises:
        ApiError: It was refused.
        CodeqError: It was not carried out, or the outcome is unknown.
    """
    if isinstance(answered, CodeqError):
        raise answered
    if isinstance(answered, Rejected):
        raise from_rejection(answered)
    return answered
