"""Access log: a line a request, and why a token was refused; never what a caller sent along.

A request is named by its method and its route's pattern: a path holds ids, a query or a header may
hold a secret, a body is the users' own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger(__name__)

# Refusals cost a stranger nothing, so that there may be any number of them: of each stretch of time
# the first few are told, and how many were not.
REFUSALS_TOLD = 10
STRETCH_S = 10.0


class AccessLog:
    """What the log is told of requests.

    Args:
        severity: Of a request's line: `debug`, `info`, or `never` for no line.
        monotonic: Seconds that never jump.
    """

    def __init__(self, severity: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._level = {"debug": logging.DEBUG, "info": logging.INFO}.get(severity)
        self._monotonic = monotonic
        self._stretch_ends_s = float("-inf")
        self._told = 0
        self._untold = 0

    def answered(
        self, request_id: str, *, method: str, route: str, status: int, seconds: float, tenant: str
    ) -> None:
        """Tell of a request that has had its answer, or whose client has gone away (499)."""
        level = self._level
        if level is None or not log.isEnabledFor(level):
            return
        log.log(
            level,
            "request",
            extra={
                "method": method,
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 3),
                "tenant": tenant,
                "request_id": request_id,
            },
        )

    def refused(self, request_id: str, *, route: str, status: int, reason: str) -> None:
        """Tell why a caller was not let in, unless many were told of just now."""
        now_s = self._monotonic()
        if now_s >= self._stretch_ends_s:
            self._stretch_ends_s = now_s + STRETCH_S
            self._told = 0
        if self._told >= REFUSALS_TOLD:
            self._untold += 1
            return
        self._told += 1
        untold, self._untold = self._untold, 0
        log.info(
            "caller refused",
            extra={
                "route": route,
                "status": status,
                "reason": reason,
                "request_id": request_id,
                # Nobody knows whose request it is: that is why it is refused.
                "tenant": "",
                "untold_before": untold,
            },
        )
