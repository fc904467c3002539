"""Retrying: which failed requests are repeated, and after how long."""

from __future__ import annotations

from random import SystemRandom
from typing import Final

from codeq_cluster.client.refusals import Refused, Unreachable, Untrusted
from codeq_cluster.errors import CodeqError

_PAUSE_S: Final = 0.2
_PAUSE_S_MAX: Final = 5.0
_RETRY_AFTER_S_MAX: Final = 60  # A longer Retry-After is cut to this.
_FAILURES_DOUBLED_MAX: Final = 10  # 0.2 s x 2^10 is beyond the longest pause.

# Not the generator of the program, whose draws are its own.
_random: Final = SystemRandom()


def may_succeed(error: CodeqError) -> bool:
    """Return whether the same request may succeed later."""
    match error:
        case Untrusted():
            return False
        case Refused(status=status):
            # A proxy in front of the nodes answers 502 or 504 with a body that is not ours. A 404
            # or 409 is an answer: the caller decides whether to ask again.
            return status == 0 or status >= 500 or (status in (408, 429) and error.retryable)
        case _:
            return isinstance(error, Unreachable)


def is_harmless(error: CodeqError) -> bool:
    """Return whether the failed request certainly had no effect."""
    return isinstance(error, Unreachable) or (isinstance(error, Refused) and error.nothing_done)


def pause_s(failures: int, error: CodeqError) -> float:
    """Return how long to wait before the next attempt, in seconds.

    The pause doubles with each earlier failure, from 0.2 s to 5 s, and is drawn from its upper
    half. A `Retry-After` of the broker replaces it.
    """
    if isinstance(error, Refused) and error.retry_after_s:
        # A random share is added, so that clients refused together do not return together.
        return min(error.retry_after_s, _RETRY_AFTER_S_MAX) + _random.uniform(0, _PAUSE_S)
    longest = min(_PAUSE_S_MAX, _PAUSE_S * 2 ** min(failures, _FAILURES_DOUBLED_MAX))
    return _random.uniform(longest / 2, longest)
