"""Call: one request on its way through a handler, and the services a handler may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from codeq_cluster.api.errors import ApiError, bad_request
from codeq_cluster.api.ports import Broker
from codeq_cluster.api.waits import Waits
from codeq_cluster.auth import Authenticator, Identity
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics

JSON = "application/json; charset=utf-8"

_TASK_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers of one node share.

    Attributes:
        now_ms: Wall clock for what is only shown, Unix milliseconds.
    """

    broker: Broker
    authenticator: Authenticator
    settings: NodeSettings
    metrics: Metrics
    now_ms: Callable[[], int]
    waits: Waits


class Call:
    """One authenticated request.

    Attributes:
        identity: The caller; a nobody on open routes.
        text: The body, empty on routes that take none.
    """

    __slots__ = ("identity", "request", "services", "text", "timeout_s")

    def __init__(
        self, request: web.Request, services: Services, identity: Identity, text: str
    ) -> None:
        self.request = request
        self.services = services
        self.identity = identity
        self.text = text
        self.timeout_s = services.settings.limits.request_timeout_ms / 1000

    def task_id(self, *, not_found: ApiError) -> str:
        """Return the task id of the path.

        Raises:
            ApiError: The given one, for what no task of ours can be called.
        """
        task_id = self.request.match_info["id"]
        if not is_task_id(task_id):
            raise not_found
        return task_id

    def stale(self) -> bool:
        """Tell whether the caller asked for the local replica's word.

        Raises:
            ApiError: 400 for a consistency that does not exist.
        """
        if not self.request.query_string:
            return False
        asked = self.request.query.get("consistency", "")
        if asked not in ("", "linearizable", "stale"):
            raise bad_request(
                "invalid 'consistency' (use linearizable or stale)", "invalid-consistency"
            )
        return asked == "stale"

    def query_integer(self, name: str) -> int:
        """Return an integer of the query string, 0 when it is absent.

        Raises:
            ApiError: 400 for anything but an integer.
        """
        if not self.request.query_string:
            return 0
        asked = self.request.query.get(name, "")
        if not asked:
            return 0
        if not _INTEGER.fullmatch(asked):
            raise bad_request(f"invalid '{name}' (use an integer)", "invalid-query")
        return int(asked)


def is_task_id(text: str) -> bool:
    """Tell whether a task of ours could be called that."""
    return _TASK_ID.fullmatch(text) is not None


def reply(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] = _NO_HEADERS
) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=body, status=status, headers={"Content-Type": JSON, **headers})
