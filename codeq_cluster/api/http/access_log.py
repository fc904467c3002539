"""Access log: one line per request, and the reasons of refusals; never the caller's data.

A line names the caller's address, the method and the route's pattern. Paths contain ids, queries
and headers may contain secrets, and bodies belong to the users.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from aiohttp import web

from codeq_cluster.api.http.callers import Callers
from codeq_cluster.api.http.whole_requests import Whole

log = logging.getLogger(__name__)

# Strangers can cause any number of refusals. At most the first few of each period are logged, with
# a count of the suppressed ones.
REFUSALS_TOLD = 10
STRETCH_S = 10.0


class AccessLog:
    """Writes the log lines of requests.

    Attributes:
        writes: Whether requests get a line at the log's level.

    Args:
        severity: Of a request's line: `debug`, `info`, or `never` for no line.
        callers: Knows the address that a request came from.
        monotonic: Seconds that never jump.
    """

    def __init__(
        self, severity: str, callers: Callers, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._callers = callers
        self._level = {"debug": logging.DEBUG, "info": logging.INFO}.get(severity, logging.NOTSET)
        self.writes = self._level != logging.NOTSET and log.isEnabledFor(self._level)
        self._monotonic = monotonic
        self._stretch_ends_s = float("-inf")
        self._logged = 0
        self._untold = 0

    def answered(
        self,
        asked: web.BaseRequest | Whole,
        request_id: str,
        *,
        route: str,
        status: int,
        seconds: float,
        tenant: str,
    ) -> None:
        """Log a request that was answered, or whose client disconnected (499)."""
        if not self.writes:
            return
        log.log(
            self._level,
            "request",
            extra={
                "caller": self._callers.of(asked),
                "method": asked.method,
                "route": route,
                "status": status,
                "ms": round(seconds * 1000, 3),
                "tenant": tenant,
                "request_id": request_id,
            },
        )

    def refused(
        self,
        asked: web.BaseRequest | Whole,
        request_id: str,
        *,
        route: str,
        status: int,
        reason: str,
    ) -> None:
        """Log why a caller was refused, unless too many refusals were logged recently."""
        now_s = self._monotonic()
        if now_s >= self._stretch_ends_s:
            self._stretch_ends_s = now_s + STRETCH_S
            self._logged = 0
        if self._logged >= REFUSALS_TOLD:
            self._untold += 1
            return
        self._logged += 1
        untold, self._untold = self._untold, 0
        log.info(
            "caller refused",
            extra={
                "caller": self._callers.of(asked),
                "route": route,
                "status": status,
                "reason": reason,
                "request_id": request_id,
                # The line has no tenant: the caller's identity is not established.
                "tenant": "",
                "untold_before": untold,
            },
        )
