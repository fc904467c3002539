"""Sessions: a token in a sealed cookie, checked again by each node that gets it.

The cookie holds the token itself, so a session is never worth more than its token. It ends when the
token expires or a node no longer accepts it. No node stores anything.

Where the browser speaks https, the cookie's name begins with `__Host-`: no other host, and no plain
HTTP, can set such a cookie. Such a name needs the path `/`, but no route beyond the page reads it.
Elsewhere another host of the domain can set a cookie of this name. A value that this cluster did
not seal is passed over, and two sessions at once are none.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from aiohttp import web

from codeq_cluster.api.http.callers import Callers, told
from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.http.middleware import Admitting
from codeq_cluster.auth import Access, AccessRefused, Authenticator, Identity, Role
from codeq_cluster.settings import NodeSettings
from codeq_cluster.ui.seal import OVERHEAD_BYTES, Seal

# One working day: a token that never expires must not keep a browser logged in for ever.
SESSION_S_MAX = 12 * 3600
CSRF_HEADER = "X-CSRF-Token"
PATH = "/ui"

# Browsers drop a cookie of more than 4096 bytes, its name and attributes included.
_COOKIE_CHARS_MAX = 3900
_STAMP_BYTES = 8
TOKEN_CHARS_MAX = _COOKIE_CHARS_MAX * 3 // 4 - OVERHEAD_BYTES - _STAMP_BYTES

_NO_SESSION = ApiError(401, "no session: log in", "no-session")
_FORGED = ApiError(403, f"missing or wrong {CSRF_HEADER}: reload the page", "csrf")
_FOREIGN = ApiError(403, "the request comes from another site", "cross-site")
_TOO_LONG = ApiError(
    400,
    f"the token has more than {TOKEN_CHARS_MAX} characters, which no cookie can hold",
    "token-too-long",
)
_OWN_SITES = ("same-origin", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A logged-in user.

    Attributes:
        csrf: Must be sent with every write.
        ends_ms: Unix milliseconds.
        authorization: The token as an Authorization header has it.
    """

    identity: Identity
    csrf: str
    ends_ms: int
    authorization: str = field(repr=False)


class Sessions:
    """Starts sessions and reads them from requests.

    Args:
        authenticator: This node's; checks tokens.
        callers: Knows the proxies that may say that the browser speaks https.
        now_ms: Unix milliseconds.
    """

    def __init__(
        self,
        authenticator: Authenticator,
        settings: NodeSettings,
        callers: Callers,
        now_ms: Callable[[], int],
    ) -> None:
        self._authenticator = authenticator
        self._now_ms = now_ms
        self._seal = Seal(settings.cluster_secret, cluster_id=settings.cluster_id)
        self._tls = settings.tls.cert_file is not None
        self._callers = callers
        # Cookies ignore ports: two clusters on one host must not share a cookie.
        of_cluster = hashlib.sha256(settings.cluster_id.encode()).hexdigest()[:8]
        self._cookie = f"codeq_session_{of_cluster}"

    async def begin(self, token: str) -> tuple[Session, str]:
        """Return the session of a token, and the cookie's value.

        Raises:
            AccessRefused: The token may not open the page.
            KeysUnavailable: The token cannot be checked now.
            ApiError: 400: the token does not fit into a cookie.
        """
        if len(token.encode()) > TOKEN_CHARS_MAX:
            raise _TOO_LONG
        stamp = self._now_ms().to_bytes(_STAMP_BYTES, "big")
        sealed = self._seal.close(stamp + token.encode())
        return await self._opened(sealed), sealed

    def admit(self, *roles: Role, access: Access | None = None) -> Admitting:
        """Return a check that admits sessions with one of the roles.

        Args:
            roles: The session needs one of them.
            access: What the API's own route also demands of the token; None if the role is enough.
        """
        lacking = ApiError(403, f"forbidden. This needs scope {' or '.join(roles)}", "forbidden")

        async def admit(request: web.Request) -> Identity:
            session = await self.of(request)
            if session.identity.roles.isdisjoint(roles):
                raise lacking
            if access is not None:
                await self._see_access(session.authorization, access)
            return session.identity

        return admit

    async def _see_access(self, authorization: str, access: Access) -> None:
        if self._authenticator.known(authorization, access) is not None:
            return
        try:
            await self._authenticator.authenticate(authorization, access)
        except AccessRefused as refused:
            # Not 401: the session is valid and must not end.
            text = f"forbidden. The API takes this from a {access} alone: {refused.text}"
            raise ApiError(403, text, "forbidden") from refused

    async def of(self, request: web.Request) -> Session:
        """Return the session of a request that the page itself sent.

        Raises:
            ApiError: 401 without a session; 403 if another page sent the request.
            KeysUnavailable: The token cannot be checked now.
        """
        self.refuse_foreign(request)
        sealed = self._sealed(request)
        try:
            session = await self._opened(sealed)
        except AccessRefused as refused:
            raise _NO_SESSION from refused
        if request.method not in ("GET", "HEAD"):
            given = request.headers.get(CSRF_HEADER, "")
            if not hmac.compare_digest(given.encode(errors="replace"), session.csrf.encode()):
                raise _FORGED
        return session

    @staticmethod
    def refuse_foreign(request: web.Request) -> None:
        """Refuse a request that another site made the browser send.

        Raises:
            ApiError: 403.
        """
        if request.headers.get("Sec-Fetch-Site", "none") not in _OWN_SITES:
            raise _FOREIGN

    def keep(
        self, request: web.Request, response: web.Response, sealed: str, session: Session
    ) -> None:
        """Make the browser keep a session until it ends."""
        left_s = (session.ends_ms - self._now_ms()) // 1000
        self._set(request, response, sealed, max_age=left_s)

    def drop(self, request: web.Request, response: web.Response) -> None:
        """Make the browser delete its session."""
        self._set(request, response, "", max_age=0)

    def _set(
        self, request: web.Request, response: web.Response, value: str, *, max_age: int
    ) -> None:
        secure = self._is_secure(request)
        response.set_cookie(
            self._name(secure=secure),
            value,
            path="/" if secure else PATH,
            max_age=max_age,
            httponly=True,
            samesite="Strict",
            secure=secure,
        )

    def _is_secure(self, request: web.Request) -> bool:
        """Return whether the browser speaks https, to this node or to a trusted proxy."""
        if self._tls or not self._callers.trusts(request.remote or ""):
            return self._tls
        return told(request, "x-forwarded-proto").rpartition(",")[2].strip() == "https"

    def _name(self, *, secure: bool) -> str:
        return f"__Host-{self._cookie}" if secure else self._cookie

    def _sealed(self, request: web.Request) -> str:
        """Return the one cookie that this cluster sealed."""
        name = self._name(secure=self._is_secure(request))
        cookies = (each.strip().partition("=") for each in told(request, "cookie").split(";"))
        found = {value for own, _, value in cookies if own == name and self._seal.open(value)}
        if len(found) != 1:
            raise _NO_SESSION
        return found.pop()

    async def _opened(self, sealed: str) -> Session:
        plain = self._seal.open(sealed)
        if plain is None:
            raise _NO_SESSION
        began_ms = int.from_bytes(plain[:_STAMP_BYTES], "big")
        header = f"Bearer {plain[_STAMP_BYTES:].decode()}"
        known = self._authenticator.known(header, Access.PAGE)
        identity = known or await self._authenticator.authenticate(header, Access.PAGE)
        expires_ms = identity.expires_s * 1000
        ends_ms = began_ms + SESSION_S_MAX * 1000
        if math.isfinite(expires_ms):
            ends_ms = min(ends_ms, int(expires_ms))
        if ends_ms <= self._now_ms():
            raise _NO_SESSION
        return Session(
            identity=identity,
            csrf=self._seal.mark(sealed),
            ends_ms=ends_ms,
            authorization=header,
        )
