"""Call: one request on its way through a handler, and the services a handler may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from codeq_cluster.api.access_log import AccessLog
from codeq_cluster.api.answer import JSON
from codeq_cluster.api.errors import ApiError, bad_request
from codeq_cluster.api.import_room import ImportRoom
from codeq_cluster.api.large_bodies import LargeBodies
from codeq_cluster.api.ports import Backups, Broker, Cluster, Members, Quotas, Targets
from codeq_cluster.api.waits import Waits
from codeq_cluster.api.whole import Whole
from codeq_cluster.artifacts import ArtifactStore
from codeq_cluster.auth import Authenticator, Identity
from codeq_cluster.broker.polls import Polls
from codeq_cluster.core.rate import Scope
from codeq_cluster.settings import NodeSettings
from codeq_cluster.telemetry import Metrics
from codeq_cluster.telemetry.tracing import Tracing

COMMAND = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Of the query string, and what a read is without it.
CONSISTENCY = "consistency"
LINEARIZABLE = "linearizable"
NEVER_STALE = bad_request(
    "invalid 'consistency' (this route has no stale reads)", "invalid-consistency"
)

_TASK_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_NONE: tuple[str, ...] = ()
_NO_HEADERS: Mapping[str, str] = {}

# What a route is asked: by the library's way, or in one piece.
Asked = web.Request | Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the handlers of one node share.

    Attributes:
        now_ms: Wall clock for what is only shown, Unix milliseconds.
        polls: Which workers have claimed here.
        artifacts: Where artifacts are kept; None when nowhere.
        backups: Those this node takes; None when it has no place for them.
        tracing: Makes spans of requests; None for none.
    """

    broker: Broker
    authenticator: Authenticator
    settings: NodeSettings
    metrics: Metrics
    now_ms: Callable[[], int]
    waits: Waits
    access_log: AccessLog
    quotas: Quotas
    targets: Targets
    cluster: Cluster
    members: Members
    large_bodies: LargeBodies
    import_room: ImportRoom
    polls: Polls
    artifacts: ArtifactStore | None = None
    backups: Backups | None = None
    tracing: Tracing | None = None


class Call:
    """One authenticated request.

    Attributes:
        headers: Of the request, to be asked by names in lower case.
        named: The parts of the path that the route names.
        identity: The caller; a nobody on open routes.
        text: The body, empty on routes that take none.
        request_id: The caller's own, or one made for it.
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
        """Return the library's request, which a route that takes whole ones may not have."""
        assert isinstance(self._asked, web.Request)
        return self._asked

    def task_id(self, *, not_found: ApiError) -> str:
        """Return the task id of the path.

        Raises:
            ApiError: The given one, for what no task of ours can be called.
        """
        task_id = self.named["id"]
        if not is_task_id(task_id):
            raise not_found
        return task_id

    def command(self) -> str:
        """Return the command of the path.

        Raises:
            ApiError: 400 for what no command can be called.
        """
        command = self.named["command"]
        if not COMMAND.fullmatch(command):
            raise bad_request("invalid command", "invalid-command")
        return command

    def most(self, scope: Scope) -> int | None:
        """Return the most that one request of the caller's tenant can cost, None for any."""
        return self.services.quotas.most(scope, self.identity.tenant)

    async def spend(self, scope: Scope, operation: str, cost: int = 1) -> None:
        """Count the request against the rate limit of the caller's tenant.

        Raises:
            LimitExceeded: It is beyond the limit; answered 429.
        """
        await self.services.quotas.spend(scope, operation, self.identity.tenant, cost)

    def stale(self) -> bool:
        """Tell whether the caller asked for the local replica's word.

        Raises:
            ApiError: 400 for a consistency that does not exist.
        """
        if not self.request.query_string:
            return False
        asked = self.request.query.get(CONSISTENCY, "")
        if asked not in ("", LINEARIZABLE, "stale"):
            raise bad_request(
                "invalid 'consistency' (use linearizable or stale)", "invalid-consistency"
            )
        return asked == "stale"

    def query_integer(self, name: str) -> int:
        """Return an integer of the query string, 0 when it is absent.

        Raises:
            ApiError: 400 for anything but an integer.
        """
        asked = self.query_text(name)
        if not asked:
            return 0
        if not _INTEGER.fullmatch(asked):
            raise bad_request(f"invalid '{name}' (use an integer)", "invalid-query")
        return int(asked)

    def query_text(self, name: str) -> str:
        """Return a text of the query string, empty when it is absent."""
        return self.request.query.get(name, "") if self.request.query_string else ""


def authorization(asked: Asked) -> str | None:
    """Return the Authorization header, None for none.

    Several are joined so that none of them is accepted: a proxy in front may have checked another.
    """
    if isinstance(asked, Whole):
        return asked.headers.get("authorization")
    given = asked.headers.getall("Authorization", _NONE)
    return ", ".join(given) if given else None


def is_task_id(text: str) -> bool:
    """Tell whether a task of ours could be called that."""
    return _TASK_ID.fullmatch(text) is not None


def reply(
    body: bytes, *, status: int = 200, headers: Mapping[str, str] = _NO_HEADERS
) -> web.Response:
    """Return a JSON answer."""
    return web.Response(body=body, status=status, headers={"Content-Type": JSON, **headers})
