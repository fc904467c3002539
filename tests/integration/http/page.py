"""Page: the requests of a browser in a session, without a browser."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.settings import (
    AuthProviderSettings,
    AuthSettings,
    LimitSettings,
    NodeSettings,
    StaticToken,
)
from tests.integration.http.client import Answer, Client, serving, single

ROLES = {
    "viewer": ("codeq:view",),
    "admin": ("codeq:admin",),
    "operator": ("codeq:operator",),
    "both": ("codeq:admin", "codeq:operator"),
}
_JSON = "application/json"


def with_roles(settings: NodeSettings) -> NodeSettings:
    """Return the settings with a token for each role, named like it, and some without a role.

    `foreman` is an admin's token among the workers', so no producer's route accepts it.
    """
    tokens = [
        StaticToken(token=role, subject=f"a {role}", tenant="acme", scopes=scopes)
        for role, scopes in ROLES.items()
    ]
    tokens += [
        StaticToken(token="stranger", subject="s", tenant="other", scopes=("codeq:admin",)),
        StaticToken(token="producer", subject="p", tenant="acme"),
        StaticToken(
            token="worker",
            subject="w",
            tenant="acme",
            scopes=tuple(WORKER_SCOPES),
            event_types=("*",),
        ),
    ]
    provider = AuthProviderSettings(kind="static", tokens=tuple(tokens))
    foreman = StaticToken(
        token="foreman", subject="f", tenant="acme", scopes=("codeq:admin",), event_types=("*",)
    )
    workers = AuthProviderSettings(kind="static", tokens=(*tokens, foreman))
    return replace(settings, auth=AuthSettings(producer=(provider,), worker=(workers,)))


@dataclass(slots=True)
class Session:
    """A logged-in session.

    Attributes:
        cookie: Name and value.
    """

    client: Client
    cookie: str
    csrf: str

    async def get(self, path: str, **headers: str) -> Answer:
        """Get a path below the page's API."""
        return await self.client.get(f"/ui/api{path}", token="", Cookie=self.cookie, **headers)

    async def write(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """Send a write as the page does."""
        raw = b"" if body is None else json.dumps(body).encode()
        headers = {"X_CSRF_Token": self.csrf, "Content_Type": _JSON, **headers}
        return await self.client.send(
            method, f"/ui/api{path}", raw, token="", Cookie=self.cookie, **headers
        )

    async def view(self, query: str) -> dict[str, Any]:
        """Return the answer of a view."""
        answer = await self.get(f"/now?view={query}")
        assert 200 == answer.status, answer.body
        shown: dict[str, Any] = json.loads(answer.body)
        return shown


async def try_to_log_in(client: Client, token: object, **headers: str) -> Answer:
    """Send the log-in form."""
    headers = {"Content_Type": _JSON, **headers}
    body = json.dumps({"token": token}).encode()
    return await client.send("POST", "/ui/api/session", body, token="", **headers)


async def logged_in(client: Client, token: str) -> Session:
    """Log in."""
    answer = await try_to_log_in(client, token)
    assert 200 == answer.status, answer.body
    return Session(client, cookie_of(answer), str(answer.json["csrf"]))


def cookie_of(answer: Answer) -> str:
    """Return the name and value of the cookie that an answer sets."""
    found = re.match(r"[^;]*", answer.headers["set-cookie"])
    assert found is not None
    return found[0]


@dataclass(slots=True)
class PageWorld:
    """A node with sessions of one tenant, and of another.

    Attributes:
        client: A worker's.
        stranger: An admin of the other tenant.
    """

    client: Client
    admin: Session
    viewer: Session
    stranger: Session


_World = TypeVar("_World", bound=PageWorld)


@contextlib.asynccontextmanager
async def logged_in_world(data_dir: Path, kind: type[_World]) -> AsyncIterator[_World]:
    """Run a node until the end of the block, and log in to it."""
    async with serving(with_roles(single(data_dir, LimitSettings()))) as client:
        client.token = "worker"
        sessions = [await logged_in(client, role) for role in ("admin", "viewer", "stranger")]
        yield kind(client, *sessions)
