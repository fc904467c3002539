"""Issuer: a real key server on a socket, with real keys."""

from __future__ import annotations

import json
import time
from types import TracebackType
from typing import Self

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec


class Issuer:
    """Signs tokens and publishes the keys it is told to.

    Attributes:
        fetches: How often the keys were asked for.
        broken: While true, the key server answers 500.
    """

    def __init__(self) -> None:
        self.fetches = 0
        self.broken = False
        self.url = ""
        self._keys: dict[str, ec.EllipticCurvePrivateKey] = {}
        self._published: list[str] = []
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_get("/keys", self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/keys"
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    def publish(self, *kids: str) -> None:
        """Publish these keys and no others, making those that do not exist."""
        for kid in kids:
            self._keys.setdefault(kid, ec.generate_private_key(ec.SECP256R1()))
        self._published = list(kids)

    def token(self, kid: str, *, headers: dict[str, object] | None = None, **fields: object) -> str:
        """Sign a token of subject `s` that lives for a minute, unless the fields say otherwise."""
        key = self._keys.setdefault(kid, ec.generate_private_key(ec.SECP256R1()))
        claims = {"sub": "s", "exp": int(time.time()) + 60, **fields}
        claims = {name: value for name, value in claims.items() if value is not None}
        return jwt.encode(claims, key, algorithm="ES256", headers={"kid": kid, **(headers or {})})

    async def _answer(self, request: web.Request) -> web.Response:
        self.fetches += 1
        if self.broken:
            return web.Response(status=500)
        keys = [{**self._public(kid), "kid": kid, "use": "sig"} for kid in self._published]
        keys.append({"kty": "of a kind unknown", "kid": "odd"})
        return web.json_response({"keys": keys})

    def _public(self, kid: str) -> dict[str, object]:
        public = self._keys[kid].public_key()
        described: dict[str, object] = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(public))
        return described
