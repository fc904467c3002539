"""Jwks: an issuer's published keys, fetched in the background and on sight of an unknown key id."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import aiohttp
import jwt
import msgspec
from msgspec import Struct

from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

FETCH_INTERVAL_S = 10.0  # Between fetches for unknown key ids: a forger must not drive the issuer.
STALE_S_MAX = 3600.0  # An issuer may be down this long before its keys are trusted no more.
_FETCH_TIMEOUT_S = 5.0
_DOCUMENT_BYTES_MAX = 2**20
_KEYS_MAX = 1000


class KeysUnavailable(CodeqError):
    """No key set young enough is at hand; the token can be judged later."""


class Key(Struct, frozen=True):
    """One published key; `algorithm` is empty when the issuer does not name one."""

    public: object
    algorithm: str


class Jwks:
    """The key set behind one URL.

    Attributes:
        fetched: Set once the keys have been had for the first time.

    Args:
        ttl_s: Age at which the set is fetched again, in the background.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float,
        interval_s: float = FETCH_INTERVAL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._ttl_s = max(1.0, ttl_s)
        self._interval_s = interval_s
        self._clock = clock
        self._keys: dict[str | None, Key] = {}
        self._fetched_s = float("-inf")
        self._tried_s = float("-inf")
        self._flight = asyncio.Lock()
        self._refresher: asyncio.Task[None] | None = None
        self.fetched = asyncio.Event()

    async def start(self) -> None:
        """Fetch the keys now and then again each time they reach their age."""
        self._refresher = asyncio.create_task(self._refresh(), name="jwks refresh")

    async def stop(self) -> None:
        """Stop fetching."""
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher
            self._refresher = None

    async def key(self, kid: object) -> Key | None:
        """Return the key of that id, or None when the issuer publishes none.

        A token without an id is given the only key of a set of one. An unknown id costs one fetch
        an interval, however many callers ask.

        Raises:
            KeysUnavailable: The set is missing or too old, and cannot be had now.
        """
        if not isinstance(kid, str | None):
            return None
        age_s = self._clock() - self._fetched_s
        found = self._keys.get(kid)
        if found is not None and age_s < self._ttl_s:
            return found
        await self._fetch_once()
        if self._clock() - self._fetched_s > max(STALE_S_MAX, self._ttl_s):
            raise KeysUnavailable("the issuer's keys cannot be fetched")
        return self._keys.get(kid)

    async def _fetch_once(self) -> None:
        # Single flight: whoever waited for the lock finds the attempt made, whatever came of it.
        async with self._flight:
            if self._clock() - self._tried_s < self._interval_s:
                return
            self._tried_s = self._clock()
            try:
                self._keys = await _fetch(self._url)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                log.warning("jwks fetch failed", extra={"url": self._url, "reason": str(error)})
            else:
                self._fetched_s = self._clock()
                self.fetched.set()

    async def _refresh(self) -> None:
        while True:
            await self._fetch_once()
            age_s = self._clock() - self._fetched_s
            await asyncio.sleep(max(self._interval_s, self._ttl_s * 0.8 - age_s))


async def _fetch(url: str) -> dict[str | None, Key]:
    timeout = aiohttp.ClientTimeout(total=_FETCH_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            raise ValueError(f"status {answer.status}")
        document = await _bounded(answer)
    # msgspec's errors are ValueErrors.
    return _parsed(msgspec.json.decode(document, type=_Document))


class _Document(Struct):
    keys: list[dict[str, object]]


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    document = bytearray()
    async for chunk in answer.content.iter_chunked(2**16):
        document += chunk
        if len(document) > _DOCUMENT_BYTES_MAX:
            raise ValueError("the key set is too large")
    return bytes(document)


def _parsed(document: _Document) -> dict[str | None, Key]:
    keys: dict[str | None, Key] = {}
    for entry in document.keys[:_KEYS_MAX]:
        if entry.get("use", "sig") != "sig" or entry.get("kty") == "oct":
            continue
        try:
            public = jwt.PyJWK(entry).key
        except (jwt.PyJWTError, TypeError, ValueError):
            # A set may hold keys of kinds this library does not know; the others still serve.
            log.info("jwks key skipped", extra={"kid": str(entry.get("kid"))})
            continue
        kid = entry.get("kid")
        algorithm = entry.get("alg")
        keys[kid if isinstance(kid, str) else None] = Key(
            public, algorithm if isinstance(algorithm, str) else ""
        )
    if len(keys) == 1:
        keys.setdefault(None, next(iter(keys.values())))
    return keys
