"""Call: one request on its way through a handler."""

from __future__ import annotations

import re
from asyncio import current_task
from collections.abc import Mapping

from aiohttp import web

from codeq_cluster.api.http.callers import told
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.refusals import INVALID_COMMAND, INVALID_CONSISTENCY, no_integer
from codeq_cluster.api.http.services import Services
from codeq_cluster.api.http.whole_requests import Whole
from codeq_cluster.auth import Identity
from codeq_cluster.core.bounds import COMMAND
from codeq_cluster.ratelimit.token_bucket import Scope

# The `consistency` parameter of the query string, and its default.
CONSISTENCY = "consistency"
LINEARIZABLE = "linearizable"

# Creating so many tasks costs a node about as much as a request by itself.
_TASKS_OF_A_UNIT = 6

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_STEP = re.compile(r"~+\.\.?")

# A request as a handler gets it: from aiohttp, or read in one piece.
Asked = web.Request | Whole


class Call:
    """One authenticated request.

    Attributes:
        headers: The request's headers, looked up by lower-case name.
        named: The named parts of the path.
        identity: The caller; anonymous on open routes.
        text: The body, empty on routes that take none.
        request_id: The caller's own, or a generated one.
    """

    __slots__ = (
        "_asked",
        "headers",
        "identity",
        "named",
        "request_id",
        "services",
        "text",
        "timeout_s",
    )

    def __init__(
        self, asked: Asked, services: Services, identity: Identity, text: str, request_id: str
    ) -> None:
        self._asked = asked
        self.headers: Mapping[str, str] = asked.headers
        self.named: Mapping[str, str] = asked.match_info
        self.services = services
        self.identity = identity
        self.text = text
        self.request_id = request_id
        self.timeout_s = services.settings.limits.request_timeout_ms / 1000

    @property
    def request(self) -> web.Request:
        """Return aiohttp's request; routes that take one-piece requests must not ask for it."""
        assert isinstance(self._asked, web.Request)
        return self._asked

    def task_id(self, *, not_found: ApiError) -> str:
        """Return the task id in the path.

        Raises:
            ApiError: The given error; the text cannot be a task id.
        """
        task_id = self.named["id"]
        if not is_task_id(task_id):
            raise not_found
        return task_id

    def command(self) -> str:
        """Return the command in the path.

        Raises:
            ApiError: 400; the text cannot be a command.
        """
        command = self.named["command"].removeprefix("~")
        if not COMMAND.fullmatch(command):
            raise INVALID_COMMAND
        return command

    def segment(self, name: str) -> str:
        """Return a part of the path that may be any text.

        No path can hold `.` and `..`, so clients put a `~` before them, and before those that have
        one.
        """
        text = self.named[name]
        return text[1:] if _STEP.fullmatch(text) else text

    def most(self, scope: Scope) -> int | None:
        """Return the most that one request of the caller's tenant can cost, None for no bound."""
        return self.services.shares.quotas.most(scope, self.identity.tenant)

    async def spend(self, scope: Scope, operation: str, cost: int = 1) -> None:
        """Count the request against the rate limit of the caller's tenant.

        Raises:
            LimitExceeded: The request is over the limit; answered 429.
        """
        quotas = self.services.shares.quotas
        if scope not in quotas.unlimited:
            await quotas.spend(scope, operation, self.identity.tenant, cost)

    def weigh(self, tasks: int) -> None:
        """Count the request by the tasks it is about, beside its size, as long as it goes on."""
        task = current_task()
        if task is not None:
            self.services.shares.turns.add(task, tasks // _TASKS_OF_A_UNIT)

    def stale(self) -> bool:
        """Return whether the caller asked for a read from the local replica.

        Raises:
            ApiError: 400; there is no such consistency.
        """
        if not self.request.query_string:
            return False
        asked = self.request.query.get(CONSISTENCY, "")
        if asked not in ("", LINEARIZABLE, "stale"):
            raise INVALID_CONSISTENCY
        return asked == "stale"

    def query_integer(self, name: str) -> int:
        """Return an integer of the query string, 0 when absent.

        Raises:
            ApiError: 400; the value is not an integer.
        """
        asked = self.query_text(name)
        if not asked:
            return 0
        if not _INTEGER.fullmatch(asked):
            raise no_integer(name)
        return int(asked)

    def query_text(self, name: str) -> str:
        """Return a text of the query string, empty when absent."""
        return self.request.query.get(name, "") if self.request.query_string else ""


def authorization(asked: Asked) -> str | None:
    """Return the Authorization header, or None.

    Duplicate headers are joined so that neither is accepted: a proxy in front may have checked the
    other one.
    """
    return told(asked, "authorization") or None


def is_task_id(text: str) -> bool:
    """Return whether the text can be a task id of this cluster."""
    return COMMAND.fullmatch(text) is not None
