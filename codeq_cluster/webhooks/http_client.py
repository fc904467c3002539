"""HTTP client: makes one POST to a target that a user has named, bounded in every way."""

from __future__ import annotations

import asyncio
import contextlib
import io
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import aiohttp

from codeq_cluster import __version__
from codeq_cluster.core.items import WebhookKey
from codeq_cluster.fair_shares import FairShares
from codeq_cluster.settings import Signing, WebhookSettings
from codeq_cluster.telemetry.tracing import DeliverySpan
from codeq_cluster.webhooks import signing
from codeq_cluster.webhooks.answer_bound import BoundedConnector
from codeq_cluster.webhooks.circuit_breaker import CircuitBreaker
from codeq_cluster.webhooks.dns import DnsResolver, looking_up_for
from codeq_cluster.webhooks.host_limits import HostLimits, Route
from codeq_cluster.webhooks.ssrf_guard.connecting import AddressRefused, Gate
from codeq_cluster.webhooks.ssrf_guard.targets import Lookup, RefusedTarget, Target, read

DELIVERY = "X-CodeQ-Delivery"

_ANSWER_TIMEOUT_S = 1.0  # Only the status matters, so a slow body is not waited for.
_IDLE_S = 2.0  # Servers close after 5 s or more: no request meets a closing one.
_HEAD_LINE_BYTES_MAX = 8190
_FULL_RETRY_S = 1.0
_RETRY_AFTER_S_MAX = 3600.0  # A target may ask for a pause, but not for ever.
_ERROR_CHARS_MAX = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """The outcome of one POST.

    Attributes:
        ok: The target answered 2xx.
        status: Of the answer, or 0 if there was none.
        error: The reason if not ok, for an operator; empty if ok.
        retry_after_s: Do not retry sooner: the target's wish, at most an hour, or when a deferred
            request may find room; 0 for any time.
        deferred: No attempt was made: the host's circuit is open or its places are taken, or no
            request may be sent at all.
    """

    ok: bool = False
    status: int = 0
    error: str = ""
    retry_after_s: float = 0.0
    deferred: bool = False


class Sender:
    """Sends bodies to targets, many at once; a slow host delays no other tenant's bodies.

    It follows no redirects, keeps no cookies and uses no proxies of the environment. Certificates
    are verified by the system's authorities (or those of SSL_CERT_FILE).

    Args:
        settings: The secrets, the bounds, and whether private targets are allowed.
        webhook_key: Returns the version of a tenant's key; by default, every key is the first.
        lookup: Resolves names; the system's resolver by default.
        breaker: The hosts' circuit breakers.

    Attributes:
        calls: The node's calls at once, a share a tenant. A caller takes one before it posts, and
            keeps it until it has dealt with the outcome.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        *,
        webhook_key: Callable[[str], WebhookKey] = lambda tenant: WebhookKey(tenant=tenant),
        lookup: Lookup | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        self._settings = settings
        self._webhook_key = webhook_key
        # A thread for every request at once: a slow name takes no thread that another request
        # needs.
        self._lookup = lookup or DnsResolver(threads_max=settings.concurrency).addresses
        self._breaker = CircuitBreaker(now_s=time.monotonic) if breaker is None else breaker
        self.calls = FairShares(settings.concurrency, name="the node's webhook calls")
        self._places = HostLimits(per_host=settings.per_host_concurrency)
        # Deliveries accepted earlier or elsewhere wait until a secret is configured again. Sent
        # unsigned, a receiver could not tell them from a stranger's.
        self._holds_back = settings.signing is Signing.REFUSED
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session; must precede `post`."""
        gate = Gate(allow_private=self._settings.allow_private, lookup=self._lookup)
        connector = BoundedConnector(
            resolver=gate,
            socket_factory=gate.socket,
            ssl=ssl.create_default_context(),
            limit=0,  # `calls` and `HostLimits` count.
            # A look-up shared by tenants would wait for the share of the one that asked first.
            use_dns_cache=False,
            keepalive_timeout=_IDLE_S,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_seconds),
            headers={
                "User-Agent": f"codeq-cluster/{__version__}",
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
            },
            auto_decompress=False,
            trust_env=False,
            max_line_size=_HEAD_LINE_BYTES_MAX,
            max_field_size=_HEAD_LINE_BYTES_MAX,
        )

    async def stop(self) -> None:
        """Close every connection; requests in progress fail."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def route(self, tenant: str, url: str) -> Route:
        """Return where a tenant's post to a URL goes; the host of a URL that is refused is empty.

        Reading a URL takes as long as some fifty questions for room, so callers keep the route.
        """
        target = read(url, allow_private=self._settings.allow_private)
        return tenant, "" if isinstance(target, RefusedTarget) else target.host

    def room(self, route: Route) -> int:
        """Return how many posts on a route would not be deferred now.

        A URL that is refused is never deferred, so there is always room for it.
        """
        if not route[1]:
            return 1
        if self._holds_back:
            return 0
        return 0 if self._breaker.wait_s(route) else self._places.free(route)

    async def post(
        self,
        url: str,
        body: bytes,
        *,
        tenant: str,
        delivery: str,
        trace_parent: str = "",
        trace_state: str = "",
        span: Callable[[], AbstractContextManager[DeliverySpan]] | None = None,
    ) -> Sent:
        """Send a JSON body once and return the outcome; the target's faults are never raised.

        Args:
            url: As registered; checked again.
            body: Signed as it is.
            delivery: The same on every retry, so that a receiver can recognise a repetition.
            trace_parent: W3C trace context, passed through; empty for none.
            trace_state: The same.
            span: Opened for a request that is sent, not for one that is deferred or refused for its
                URL; the target gets its context in place of the one passed through.
        """
        assert self._session is not None, "not started"
        target = read(url, allow_private=self._settings.allow_private)
        if isinstance(target, RefusedTarget):
            return Sent(error=target.reason)
        if self._holds_back:
            text = (
                "webhookHmacSecret is not set, and webhooks.unsigned does not allow to do without"
            )
            return Sent(error=text, retry_after_s=_FULL_RETRY_S, deferred=True)
        route = (tenant, target.host)
        if not self._places.take(route):
            text = "as many requests to the host as may be are under way"
            return Sent(error=text, retry_after_s=_FULL_RETRY_S, deferred=True)
        try:
            wait_s = self._breaker.admit(route)
            if wait_s:
                text = "the host has failed again and again"
                return Sent(error=text, retry_after_s=wait_s, deferred=True)
            if span is None:
                headers = self._headers(tenant, body, delivery, trace_parent, trace_state)
                return await self._judged(self._session, route, target, body, headers)
            with span() as begun:
                headers = self._headers(
                    tenant, body, delivery, begun.trace_parent, begun.trace_state
                )
                sent = await self._judged(self._session, route, target, body, headers)
                if sent.status:
                    begun.answered(sent.status)
                else:
                    begun.unanswered()
                return sent
        finally:
            self._places.give_back(route)

    async def _judged(
        self,
        session: aiohttp.ClientSession,
        route: Route,
        target: Target,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Sent:
        """Make an admitted request and report the host's health to the breaker."""
        decided = False
        try:
            with looking_up_for(route[0]):
                sent = await self._attempt(session, target, body, headers)
            # A client error is one caller's fault, not the host's; so is a refused target.
            if sent.status and sent.status < 500:
                self._breaker.succeeded(route)
                decided = True
            elif sent.error != _REFUSED.error:
                self._breaker.failed(route)
                decided = True
        finally:
            if not decided:
                self._breaker.undecided(route)
        return sent

    async def _attempt(
        self,
        session: aiohttp.ClientSession,
        target: Target,
        body: bytes,
        headers: Mapping[str, str],
    ) -> Sent:
        try:
            async with session.post(
                target.url,
                # aiohttp sends a stream in pieces, and warns of plain bytes above 1 MiB.
                data=io.BytesIO(body),
                headers=headers,
                allow_redirects=False,
            ) as answer:
                sent = _outcome(answer)
                await _drop_body(answer)
                return sent
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, AddressRefused):
                return _REFUSED
            return Sent(error=_bounded(f"no connection: {error}"))
        except TimeoutError:
            return Sent(error=f"no answer within {self._settings.timeout_seconds:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Sent(error=_bounded(f"no answer: {error or type(error).__name__}"))

    def _headers(
        self, tenant: str, body: bytes, delivery: str, trace_parent: str, trace_state: str
    ) -> dict[str, str]:
        unix_s = time.time()
        keys = signing.signing_keys(
            self._settings, self._webhook_key(tenant), now_ms=int(unix_s * 1000)
        )
        headers = {DELIVERY: delivery, **signing.headers(keys, unix_s=int(unix_s), body=body)}
        # The task's producer chose them; a text that is not valid in a header cannot be sent.
        if _is_header_text(trace_parent):
            headers["traceparent"] = trace_parent
            if _is_header_text(trace_state):
                headers["tracestate"] = trace_state
        return headers


_REFUSED = Sent(error=str(AddressRefused()))


def _outcome(answer: aiohttp.ClientResponse) -> Sent:
    status = answer.status
    if 200 <= status < 300:
        return Sent(ok=True, status=status)
    text = f"status {status}"
    if 300 <= status < 400:
        text = f"status {status}: redirects are not followed"
    return Sent(
        status=status,
        error=text,
        retry_after_s=_retry_after_s(answer.headers.get("Retry-After", "")),
    )


async def _drop_body(answer: aiohttp.ClientResponse) -> None:
    """Read the rest of a short answer, so that the connection can be reused; else close it."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await answer.content.read()
            return
    answer.close()


def _retry_after_s(text: str) -> float:
    """Return the header's seconds or date as seconds; 0 for any other text."""
    if text.isascii() and text.isdecimal():
        # Nine digits are decades already.
        return min(float(text[:9]), _RETRY_AFTER_S_MAX)
    try:
        instant = parsedate_to_datetime(text)
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        wait_s = (instant - datetime.now(UTC)).total_seconds()
    except (ValueError, OverflowError):
        # A year or a zone of many digits overflows.
        return 0.0
    return min(max(0.0, wait_s), _RETRY_AFTER_S_MAX)


def _is_header_text(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable()


def _bounded(text: str) -> str:
    return text if len(text) <= _ERROR_CHARS_MAX else text[:_ERROR_CHARS_MAX] + "…"
