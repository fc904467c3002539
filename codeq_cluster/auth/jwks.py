"""Jwks: an issuer's published keys, fetched in the background and for an unknown key id.

A withdrawn key stays valid for at most the age limit of the set, or for the pause between two
fetches if that is longer. The set is fetched again at four fifths of its age limit, and no verdict
is cached beyond the limit.

While the issuer cannot be reached, the last known keys stay valid, for `STALE_S_MAX` at most.
Meanwhile only callers with an unknown key id wait for the issuer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import aiohttp
import jwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from msgspec import Struct

from codeq_cluster.errors import CodeqError

log = logging.getLogger(__name__)

FETCH_INTERVAL_S = 10.0  # For unknown key ids: forged tokens must not cause load on the issuer.
STALE_S_MAX = 3600.0  # An issuer may be down for this long before its keys are no longer trusted.
FETCH_TIMEOUT_S = 5.0
_DOCUMENT_BYTES_MAX = 2**20
_KEYS_MAX = 1000
_RSA_BITS_MIN = 2048  # RFC 7518 §3.3.
_TEXT_CHARS_MAX = 200  # Of an issuer's text, in a line of the log.


class KeysUnavailable(CodeqError):
    """No key set young enough is available; the token can be verified later."""


class PublishedKey(Struct, frozen=True):
    """One published key; `algorithm` is empty if the issuer does not name one."""

    public: object
    algorithm: str


class Jwks:
    """The key set behind one URL.

    Attributes:
        fetched: Set once the first fetch has succeeded.

    Args:
        ttl_s: Age limit of the set.
        interval_s: Least time between two fetches, whatever their cause.
        timeout_s: Of one fetch.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        url: str,
        *,
        ttl_s: float,
        interval_s: float = FETCH_INTERVAL_S,
        timeout_s: float = FETCH_TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        # The URL for the log: a name or a password before the host, or a query, may be a secret.
        parts = urlsplit(url)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        self._ttl_s = max(1.0, ttl_s)
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._keys: dict[str | None, PublishedKey] = {}
        self._fetched_s = float("-inf")
        self._tried_s = float("-inf")
        self._flight = asyncio.Lock()
        self._refresher: asyncio.Task[None] | None = None
        self.fetched = asyncio.Event()

    async def start(self) -> None:
        """Start to fetch the keys, now and whenever they reach their age."""
        self._refresher = asyncio.create_task(self._refresh(), name="jwks refresh")

    async def stop(self) -> None:
        """Stop fetching."""
        if self._refresher is not None:
            self._refresher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._refresher
            self._refresher = None

    async def key(self, kid: object) -> PublishedKey | None:
        """Return the key of that id, or None if the issuer publishes none.

        A token without an id gets the only key of a set of one. An unknown id costs at most one
        fetch per interval, however many callers ask.

        Raises:
            KeysUnavailable: The set is missing or too old, and cannot be fetched now.
        """
        if not isinstance(kid, str | None):
            return None
        found = self._keys.get(kid)
        if found is not None and (self.fresh_s() > 0 or self._serves_on()):
            return found
        await self._fetch_once()
        if self._age_s() > self._stale_s_max:
            raise KeysUnavailable("the issuer's keys cannot be fetched")
        return self._keys.get(kid)

    def fresh_s(self) -> float:
        """Return the seconds until the set reaches its age limit, never below 0."""
        return max(0.0, self._ttl_s - self._age_s())

    @property
    def _stale_s_max(self) -> float:
        return max(STALE_S_MAX, self._ttl_s)

    def _age_s(self) -> float:
        return self._clock() - self._fetched_s

    def _serves_on(self) -> bool:
        """Return whether old keys are accepted: the last fetch failed and the next one is due."""
        failed = self._tried_s > self._fetched_s
        return failed and self._refresher is not None and self._age_s() <= self._stale_s_max

    async def _fetch_once(self) -> None:
        # Single flight: a caller that waited for the lock finds the attempt made, with or without
        # success.
        async with self._flight:
            if self._clock() - self._tried_s < self._interval_s:
                return
            self._tried_s = self._clock()
            try:
                self._keys = await _fetch(self._url, timeout_s=self._timeout_s)
            except (
                aiohttp.ClientError,
                OSError,  # TimeoutError is one.
                ValueError,
                RecursionError,
            ) as error:
                reason = f"{type(error).__name__}: {error}"[:_TEXT_CHARS_MAX]
                log.warning("jwks fetch failed", extra={"url": self._shown, "reason": reason})
            else:
                self._fetched_s = self._clock()
                self.fetched.set()

    async def _refresh(self) -> None:
        while True:
            await self._fetch_once()
            age_s = self._clock() - self._fetched_s
            await asyncio.sleep(max(self._interval_s, self._ttl_s * 0.8 - age_s))


async def _fetch(url: str, *, timeout_s: float) -> dict[str | None, PublishedKey]:
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    # Not decompressed, so that the bound applies to what is read. No redirects: only this URL was
    # checked.
    async with (
        aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session,
        session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as answer,
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


def _parsed(document: _Document) -> dict[str | None, PublishedKey]:
    keys: dict[str | None, PublishedKey] = {}
    unnamed: list[PublishedKey] = []
    skipped = []
    for entry in document.keys[:_KEYS_MAX]:
        kid = entry.get("kid")
        try:
            key = _key(entry)
        except _NO_KEY as error:
            # A set may hold keys of kinds that PyJWT does not know; the others stay usable.
            skipped.append(f"{kid}: {error}"[:_TEXT_CHARS_MAX])
            continue
        if isinstance(kid, str):
            keys[kid] = key
        else:
            unnamed.append(key)
    if skipped:
        log.info("jwks keys skipped", extra={"count": len(skipped), "first": skipped[:5]})
    # With several keys, a token without a key id would be ambiguous.
    candidates = unnamed or list(keys.values())
    if len(candidates) == 1:
        keys[None] = candidates[0]
    return keys


# PyJWT and its parts raise these for a description that is not a key.
_NO_KEY = (
    jwt.PyJWTError,
    UnsupportedAlgorithm,
    TypeError,
    ValueError,
    KeyError,
    AttributeError,
    OverflowError,
)


def _key(entry: dict[str, object]) -> PublishedKey:
    operations = entry.get("key_ops")
    if entry.get("use", "sig") != "sig" or (
        isinstance(operations, list) and "verify" not in operations
    ):
        raise ValueError("not for signatures")
    if entry.get("kty") == "oct":
        raise ValueError("a shared secret is no public key")
    if "d" in entry:
        raise ValueError("a private key, which everybody knows now")
    # PyJWT guesses the algorithm of each kind, except for the longer Edwards curve.
    public = jwt.PyJWK(entry, algorithm="EdDSA" if entry.get("kty") == "OKP" else None).key
    if isinstance(public, RSAPublicKey) and public.key_size < _RSA_BITS_MIN:
        raise ValueError(f"an RSA key of {public.key_size} bits")
    algorithm = entry.get("alg")
    return PublishedKey(public, algorithm if isinstance(algorithm, str) else "")
