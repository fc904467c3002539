"""Retrying: the same request again while it may succeed, within a bound, ever less often."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from codeq_cluster.client.refusals import Refused, Unreachable, Untrusted
from codeq_cluster.errors import CodeqError

T = TypeVar("T")

log = logging.getLogger(__name__)

_PAUSE_S = 0.2
_PAUSE_S_MAX = 5.0
_RETRY_AFTER_S_MAX = 60  # A broker that says more is asked again then all the same.
_FAILURES_DOUBLED_MAX = 10  # 0.2 s x 2^10 is beyond the longest pause.


async def retried(call: Callable[[], Awaitable[T]], *, within_s: float, what: str) -> T:
    """Make a request until it is answered.

    Args:
        call: One attempt; it must do no harm when it is carried out twice.
        within_s: From the first failure; no attempt begins after that.
        what: For the log.

    Raises:
        Unreachable: To the end, no node took it.
        Refused: It makes no sense to ask again, or it was refused to the end.
    """
    failures = 0
    deadline = 0.0
    while True:
        try:
            return await call()
        except (Unreachable, Refused) as error:
            if not may_succeed(error):
                raise
            now = time.monotonic()
            if failures == 0:
                deadline = now + within_s
            pause_s = _pause_s(failures, error)
            if now + pause_s > deadline:
                raise
            failures += 1
            # In the text: whoever runs a worker of his own sees no more of a line.
            log.warning("%s: no answer, trying again: %s", what, error)
        await asyncio.sleep(pause_s)


def may_succeed(error: CodeqError) -> bool:
    """Tell whether the same request may succeed later."""
    match error:
        case Untrusted():
            return False
        case Refused():
            # A proxy in front of the nodes answers 502 or 504 in a form of its own.
            return error.retryable or error.status >= 500
        case _:
            return isinstance(error, Unreachable)


def _pause_s(failures: int, error: CodeqError) -> float:
    if isinstance(error, Refused) and error.retry_after_s:
        # Workers that were refused together must not come back together.
        return min(error.retry_after_s, _RETRY_AFTER_S_MAX) + random.uniform(0, _PAUSE_S)  # noqa: S311
    longest = min(_PAUSE_S_MAX, _PAUSE_S * 2 ** min(failures, _FAILURES_DOUBLED_MAX))
    return random.uniform(longest / 2, longest)  # noqa: S311, spreads load, guards nothing
