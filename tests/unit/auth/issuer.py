"""Issuer: a real key server on a socket, with real keys of every kind."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa

from tests.serving import served

_CURVES: dict[str, ec.EllipticCurve] = {
    "ES256": ec.SECP256R1(),
    "ES384": ec.SECP384R1(),
    "ES512": ec.SECP521R1(),
}


class Issuer:
    """Signs tokens and publishes keys.

    Attributes:
        fetches: How often the keys were fetched.
        broken: While true, the key server answers 500.
        odd: Descriptions published unchanged beside the keys.
        answer: Sent instead of the keys if it is not None.
        silent: While not set, the key server does not answer.
    """

    def __init__(self) -> None:
        self.fetches = 0
        self.broken = False
        self.odd: list[object] = [{"kty": "of a kind unknown", "kid": "odd"}]
        self.answer: web.Response | None = None
        self.silent = asyncio.Event()
        self.silent.set()
        self.url = ""
        self._keys: dict[str, Any] = {}
        self._published: list[str] = []
        self._server = AsyncExitStack()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/keys", self._answer)
        self.url = await self._server.enter_async_context(served(app)) + "/keys"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._server.aclose()

    def publish(self, *kids: str, algorithm: str = "ES256") -> None:
        """Publish only these keys; make those that do not exist."""
        for kid in kids:
            self._key(kid, algorithm)
        self._published = list(kids)

    def token(
        self,
        kid: str,
        *,
        algorithm: str = "ES256",
        headers: dict[str, object] | None = None,
        **fields: object,
    ) -> str:
        """Return a signed token of subject `s` that lives for a minute by default."""
        claims = {"sub": "s", "exp": int(time.time()) + 60, **fields}
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(
            claims,
            self._key(kid, algorithm),
            algorithm=algorithm.removesuffix("-448"),
            headers={"kid": kid, **(headers or {})},
        )

    def described(self, kid: str) -> dict[str, object]:
        """Return the published description of a key's public half."""
        return {**_public(self._keys[kid]), "kid": kid, "use": "sig"}

    async def _answer(self, request: web.Request) -> web.Response:
        self.fetches += 1
        await self.silent.wait()
        if self.broken:
            return web.Response(status=500)
        if self.answer is not None:
            return self.answer
        keys = [self.described(kid) for kid in self._published]
        return web.json_response({"keys": [*keys, *self.odd]})

    def _key(self, kid: str, algorithm: str) -> Any:
        if kid not in self._keys:
            self._keys[kid] = make_key(algorithm)
        return self._keys[kid]


def make_key(algorithm: str, *, bits: int = 2048) -> Any:
    """Return a new private key for an algorithm; `EdDSA-448` for the longer curve."""
    match algorithm:
        case "EdDSA":
            return ed25519.Ed25519PrivateKey.generate()
        case "EdDSA-448":
            return ed448.Ed448PrivateKey.generate()
        case "ES256" | "ES384" | "ES512":
            return ec.generate_private_key(_CURVES[algorithm])
        case _:
            return rsa.generate_private_key(65537, bits)


def _public(key: Any) -> dict[str, object]:
    public = key.public_key()
    if isinstance(key, rsa.RSAPrivateKey):
        text = jwt.algorithms.RSAAlgorithm.to_jwk(public)
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        text = jwt.algorithms.ECAlgorithm.to_jwk(public)
    else:
        text = jwt.algorithms.OKPAlgorithm.to_jwk(public)
    described: dict[str, object] = json.loads(text)
    return described
