"""A real node on real sockets, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from codeq_cluster.auth.identity import WORKER_SCOPES
from codeq_cluster.node.compose import Node
from codeq_cluster.settings import (
    AuthProviderSettings,
    AuthSettings,
    LimitSettings,
    NodeSettings,
    PeerAddress,
    StaticToken,
    StoreSettings,
    Unsigned,
    WebhookSettings,
)
from codeq_cluster.testing.ports import free_ports
from tests.harness.http import HttpAnswer, body_bytes
from tests.harness.waiting import until

T = TypeVar("T")

DEADLINE_S = 20.0  # For one answer; shorter than the longest waits that tests request.
PATIENCE_S = 60.0  # For several answers, such as the start of a node.
BASE = "/v1/codeq"

# Each tenant belongs to one test file, which expects only its own objects in it.
OWN = (
    "idle",
    "topics",
    "pauses",
    "subscribers",
    "audited",
    "listed",
    "cleaned",
    "mine",
    "theirs",
    "crowd",
    "rulers",
    "bounded",
)

# The cluster's operator belongs to the tenant of most tests, so that they can read its audit
# records.
OPERATOR = "operator"

_SCOPES = (*sorted(WORKER_SCOPES), "codeq:admin")
_TOKENS = AuthProviderSettings(
    kind="static",
    tokens=(
        StaticToken(token="acme", subject="w", tenant="acme", scopes=_SCOPES, event_types=("*",)),
        StaticToken(token="mate", subject="m", tenant="acme", scopes=_SCOPES, event_types=("*",)),
        StaticToken(token="other", subject="w", tenant="other", scopes=_SCOPES, event_types=("*",)),
        StaticToken(
            token="narrow",
            subject="n",
            tenant="acme",
            scopes=("codeq:claim",),
            event_types=("allowed",),
        ),
        StaticToken(
            token="ender", subject="w", tenant="acme", scopes=("codeq:result",), event_types=("*",)
        ),
        StaticToken(
            token="narrow-ender",
            subject="w",
            tenant="acme",
            scopes=("codeq:nack", "codeq:result", "codeq:enqueue"),
            event_types=("allowed",),
        ),
        StaticToken(
            token="listener",
            subject="l",
            tenant="acme",
            scopes=("codeq:subscribe",),
            event_types=("allowed", "Also.Allowed", "no command"),
        ),
        *(
            StaticToken(token=name, subject="s", tenant=name, scopes=_SCOPES, event_types=("*",))
            for name in OWN
        ),
        StaticToken(token=OPERATOR, subject="o", tenant="acme", scopes=("codeq:operator",)),
        StaticToken(token="homeless", subject="h", tenant="NOT A TENANT", scopes=_SCOPES),
    ),
)

# The targets of the tests' webhooks listen on loopback.
_LOCAL = WebhookSettings(allow_private=True, unsigned=Unsigned.ALLOW)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        """Return the body as an object."""
        value: dict[str, object] = json.loads(self.body)
        return value

    @property
    def error(self) -> object:
        """Return the text of an error answer."""
        return self.json["error"]


@dataclass(slots=True)
class Client:
    """Sends requests to one node, each on its own connection.

    Attributes:
        token: Sent by default; empty for none.
        trust: Speaks TLS if given.
    """

    port: int
    token: str = "acme"
    open: list[asyncio.StreamWriter] = field(default_factory=list)
    trust: ssl.SSLContext | None = None

    async def post(self, path: str, body: object = b"", **options: str) -> Answer:
        """Post a body: bytes as they are, anything else as JSON."""
        raw = (
            body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        )
        return await self.send("POST", path, raw, **options)

    async def get(self, path: str, **options: str) -> Answer:
        """Get a path."""
        return await self.send("GET", path, b"", **options)

    async def send(
        self, method: str, path: str, body: bytes, *, token: str | None = None, **headers: str
    ) -> Answer:
        """Send one request and read the whole answer; underscores in header names are dashes."""
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await self.connect()
            writer.write(self.head(method, path, len(body), token=token, **headers) + body)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            answer = await read_answer(reader, bodiless=method == "HEAD")
            writer.close()
            return answer

    def head(
        self, method: str, path: str, length: int, *, token: str | None = None, **headers: str
    ) -> bytes:
        """Return a request's head."""
        token = self.token if token is None else token
        lines = [f"{method} {path if path.startswith('/') else f'{BASE}/{path}'} HTTP/1.1"]
        lines += [f"Host: {headers.pop('Host', 'node')}", f"Content-Length: {length}"]
        lines += [f"Authorization: Bearer {token}"] if token else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that is closed at the end of the test at the latest."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust)
        self.open.append(writer)
        return reader, writer

    async def create(self, command: str = "c", **fields: object) -> str:
        """Claim a task that must exist."""
        answer = await self.post("tasks", {"command": command, "payload": {}, **fields})
        assert 202 == answer.status, answer.body
        return str(answer.json["id"])

    async def claim(self, command: str = "c", **fields: object) -> dict[str, object]:
        """Claim a task that must be there."""
        answer = await self.post("tasks/claim", {"commands": [command], **fields})
        assert 200 == answer.status, answer.body
        return answer.json

    async def depth(self, command: str) -> dict[str, object]:
        """Return the counters of a queue."""
        return (await self.get(f"admin/queues/{command}")).json

    async def metric(self, name: str) -> float:
        """Return the value of a metric, which is named with its labels."""
        text = (await self.get("/metrics")).body.decode()
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        assert found, f"{name} is not among the metrics"
        return float(found[1])


async def read_answer(reader: asyncio.StreamReader, *, bodiless: bool = False) -> Answer:
    """Read one answer; an answer to HEAD announces a body and has none."""
    head = (await reader.readuntil(b"\r\n\r\n"))[:-4]
    body = await reader.readexactly(0 if bodiless else body_bytes(head) or 0)
    answer = HttpAnswer(int(head[9:12]), head, body)
    return Answer(answer.status, answer.headers, body)


def single(
    data_dir: Path, limits: LimitSettings, webhooks: WebhookSettings = _LOCAL
) -> NodeSettings:
    """Return the settings of a cluster of one node with two shards."""
    [link_port] = free_ports(1)
    return NodeSettings(
        node_id="n1",
        cluster_id="http-tests",
        cluster_secret="a secret for the tests of the http layer",
        peers=(PeerAddress(id="n1", link=f"127.0.0.1:{link_port}", http="http://127.0.0.1"),),
        data_dir=data_dir,
        port=0,
        link_port=link_port,
        shards=2,
        store=StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**20),
        # A drain would only slow the tests: there is no load balancer, and many nodes are stopped.
        limits=replace(limits, drain_ms=0),
        auth=AuthSettings(producer=(_TOKENS,), worker=(_TOKENS,)),
        webhooks=webhooks,
    )


@contextlib.asynccontextmanager
async def running(
    data_dir: Path, limits: LimitSettings, webhooks: WebhookSettings = _LOCAL
) -> AsyncIterator[Client]:
    """Run a node until the end of the block; yield a client of it."""
    async with serving(single(data_dir, limits, webhooks)) as client:
        yield client


@contextlib.asynccontextmanager
async def serving(settings: NodeSettings) -> AsyncIterator[Client]:
    """Run a node with these settings until the end of the block; yield a client of it."""
    async with running_node(settings) as (_, client):
        yield client


@contextlib.asynccontextmanager
async def running_node(
    settings: NodeSettings, *, trust: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Node, Client]]:
    """Run a node with these settings until the end of the block; yield it with a client."""
    node = Node(settings)
    await node.start()
    client = Client(node.port, trust=trust)
    try:
        await ready(client)
        yield node, client
    finally:
        for writer in client.open:
            writer.close()
        await node.stop()


async def ready(client: Client) -> None:
    """Wait until a node is ready."""
    await eventually(lambda: client.get("/readyz"), lambda answer: answer.status == 200)


async def eventually(ask: Callable[[], Awaitable[T]], holds: Callable[[T], object] = bool) -> T:
    """Repeat a request until its answer is as expected; return the answer.

    Raises:
        ClusterError: It was not as expected within PATIENCE_S.
    """

    async def expected() -> tuple[T] | None:
        answer = await ask()
        return (answer,) if holds(answer) else None

    (answer,) = await until(expected, what="the expected answer")
    return answer
