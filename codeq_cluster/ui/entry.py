"""Entry: logging in with a token, reading the session, and logging out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from aiohttp import web
from msgspec import Struct

from codeq_cluster import __version__
from codeq_cluster.api.declared.bodies import Body, Schema
from codeq_cluster.api.http.answer import reply
from codeq_cluster.api.http.call import Call
from codeq_cluster.api.http.errors import ApiError, bad_request
from codeq_cluster.api.http.throttle import Throttle
from codeq_cluster.auth import AccessRefused
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.ratelimit.token_bucket import RateLimit
from codeq_cluster.ui.sessions import Session, Sessions
from codeq_cluster.ui.views.serving_node import ServingNode, serving
from codeq_cluster.wire.addresses import site

log = logging.getLogger(__name__)

# Ten wrong tokens at once may be a person with the wrong clipboard; after that, one in six seconds.
WRONG_TOKENS = RateLimit(per_minute=10, burst=10)

_NO_TOKEN = bad_request("a token is needed", "token-required")


class LoginBody(Body):
    """The body of a log-in."""

    token: str | None = None


class SessionView(Struct, rename="camel", kw_only=True):
    """The session's user, and the cluster.

    Attributes:
        tenant: Empty for the default tenant.
        roles: The scopes that the page knows.
        csrf: Must be sent with every write.
    """

    subject: str
    tenant: str
    roles: list[str]
    csrf: str
    ends_at: str
    cluster: str
    version: str
    serving: ServingNode


LOGIN = Schema(LoginBody)


class LoginRoutes:
    """The routes for logging in and out.

    Args:
        now_ns: Monotonic nanoseconds.
    """

    def __init__(self, sessions: Sessions, now_ns: Callable[[], int]) -> None:
        self._sessions = sessions
        self._throttle = Throttle(WRONG_TOKENS, now_ns)

    async def login(self, call: Call) -> web.Response:
        """Start a session with a token; an address with too many wrong ones must wait.

        A valid token never waits: callers behind one proxy may share an address. The check is that
        of every other route, of a bounded token, so a wait before it would save nothing.
        """
        self._sessions.refuse_foreign(call.request)
        if call.request.content_type != "application/json":
            # Another site's form could send any other content type without a preflight request.
            raise ApiError(415, "use Content-Type application/json", "unsupported-media-type")
        token = (LOGIN.decode(call.text).token or "").strip()
        if not token:
            raise _NO_TOKEN
        try:
            session, sealed = await self._sessions.begin(token)
        except AccessRefused as refused:
            if refused.status == 401:
                wait_s = self._throttle.failed(site(call.services.shares.callers.of(call.request)))
                if wait_s:
                    raise _too_often(wait_s) from refused
            raise
        identity = session.identity
        log.info("logged in", extra={"subject": identity.subject, "tenant": identity.tenant})
        response = self._view(call, session)
        self._sessions.keep(call.request, response, sealed, session)
        return response

    async def session(self, call: Call) -> web.Response:
        """Return the session's user; null without a session, which is not an error here."""
        try:
            session = await self._sessions.of(call.request)
        except ApiError as refused:
            if refused.status != 401:
                raise
            refused.with_traceback(None)
            return reply(None).response()
        return self._view(call, session)

    async def logout(self, call: Call) -> web.Response:
        """Make the browser delete its session."""
        response = reply({"loggedOut": True}).response()
        self._sessions.drop(call.request, response)
        return response

    @staticmethod
    def _view(call: Call, session: Session) -> web.Response:
        identity = session.identity
        view = SessionView(
            subject=identity.subject,
            tenant=identity.tenant,
            roles=sorted(identity.roles),
            csrf=session.csrf,
            ends_at=rfc3339(session.ends_ms),
            cluster=call.services.settings.cluster_id,
            version=__version__,
            serving=serving(call),
        )
        return reply(view).response()


def _too_often(wait_s: int) -> ApiError:
    return ApiError(
        429,
        f"too many wrong tokens from this address: try again in {wait_s} s",
        "too-many-log-ins",
        retryable=True,
        headers={"Retry-After": str(wait_s)},
    )
