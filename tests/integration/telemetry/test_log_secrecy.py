"""Log secrecy: real nodes at the most verbose level log events, but nothing that was sent."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.harness.cluster import LocalCluster
from tests.harness.http import HttpClient
from tests.harness.node_process import ADMIN_TOKEN
from tests.harness.waiting import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "sesame-open-7f3a"
FORGED = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJzZXNhbWUtZm9yZ2VkIn0."
# Every request of a test or its answer contains one of these words, and no log line may.
SECRETS = ("sesame", "eyJ", "turnip", "cqwh_")
_SCOPES = ["codeq:claim", "codeq:heartbeat", "codeq:abandon", "codeq:nack", "codeq:result"]
_AUTH = {
    "tenantFallback": "default",
    "producer": [
        {
            "kind": "static",
            "tokens": [
                {"token": TOKEN, "subject": "p", "tenant": "acme", "scopes": ["codeq:admin"]},
                {"token": ADMIN_TOKEN, "subject": "admin", "scopes": ["codeq:admin"]},
            ],
        },
        {"kind": "hs256", "secret": "sesame is the word that opens the rock", "issuer": "us"},
    ],
    "worker": [
        {
            "kind": "static",
            "tokens": [
                {
                    "token": f"{TOKEN}-worker",
                    "subject": "w",
                    "tenant": "acme",
                    "scopes": _SCOPES,
                    "eventTypes": ["*"],
                },
                {
                    "token": f"{TOKEN}-narrow",
                    "subject": "n",
                    "tenant": "acme",
                    "scopes": ["codeq:claim"],
                    "eventTypes": ["narrow"],
                },
            ],
        }
    ],
}
_WORKER = {"Authorization": f"Bearer {TOKEN}-worker"}
_NARROW = {"Authorization": f"Bearer {TOKEN}-narrow"}
_PRODUCER = {"Authorization": f"Bearer {TOKEN}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalCluster]:
    """Run three nodes that log everything."""
    settings = {
        "logLevel": "debug",
        "accessLog": "debug",
        "auth": _AUTH,
        "limits": {"maxBodyBytes": 65_536},
        "webhooks": {"allowPrivate": True},
        "webhookHmacSecret": "the turnip that signs",
    }
    async with LocalCluster(
        tmp_path_factory.mktemp("talkative"), shards=2, settings=settings
    ) as running:
        yield running


class Sender:
    """Sends requests to the nodes in turn, and keeps the answers."""

    def __init__(self, urls: list[str], http: HttpClient) -> None:
        self._urls = urls
        self._http = http
        self.answered: dict[str, int] = {}

    async def send(
        self, method: str, path: str, body: object = None, *, raw: bytes = b"", **headers: str
    ) -> dict[str, object]:
        """Send one request and return its JSON, empty if it has none."""
        request_id = f"r-{len(self.answered)}"
        url = self._urls[len(self.answered) % len(self._urls)]
        answer = await self._http.send(
            method,
            url,
            path,
            body=raw if body is None else json.dumps(body).encode(),
            headers={"X-Request-Id": request_id, **headers},
        )
        self.answered[request_id] = answer.status
        if not answer.body.startswith(b"{"):
            return {}
        said: dict[str, object] = answer.json
        return said

    async def task(self) -> str:
        """Create a task full of secrets and claim it; return its id."""
        body = {"command": "hush", "payload": {"turnip": "turnip"}, "webhook": _WEBHOOK}
        await self.send("POST", "/v1/codeq/tasks", body, **_PRODUCER)
        claimed = await self.send(
            "POST",
            "/v1/codeq/tasks/claim",
            {"commands": ["hush"], "waitSeconds": 30},
            **_WORKER,
        )
        return str(claimed["id"])


_WEBHOOK = "http://127.0.0.1:9/turnip?key=turnip"
_RESULT = {"status": "COMPLETED", "result": {"turnip": "turnip"}}


async def _all_kinds(sender: Sender) -> None:
    """Send valid, refused and malformed requests."""
    send, base = sender.send, "/v1/codeq"
    done = await sender.task()
    await send("POST", f"{base}/tasks/{done}/heartbeat", {"extendSeconds": 60}, **_WORKER)
    await send("POST", f"{base}/tasks/{done}/result?token=turnip", _RESULT, **_WORKER)
    await send("GET", f"{base}/tasks/{done}?token={TOKEN}", **_PRODUCER)
    await send("GET", f"{base}/tasks/{done}/result?consistency=turnip", **_PRODUCER)
    failed = await sender.task()
    await send(
        "POST",
        f"{base}/tasks/{failed}/result",
        {"status": "FAILED", "error": "turnip"},
        **_WORKER,
    )
    for verb, body in (("abandon", {}), ("nack", {"delaySeconds": 0, "reason": "turnip"})):
        held = await sender.task()
        await send("POST", f"{base}/tasks/{held}/{verb}", body, **_WORKER)
    await send(
        "POST",
        f"{base}/tasks/batch",
        {"tasks": [{"command": "hush", "payload": "turnip", "idempotencyKey": "turnip"}] * 3},
        **_PRODUCER,
    )
    await send("POST", f"{base}/tasks/claim/batch", {"count": 9}, **_WORKER)
    await send(
        "POST", f"{base}/tasks/batch/results", {"results": [{"taskId": "turnip"}]}, **_WORKER
    )
    await send("POST", f"{base}/tasks/turnip/cancel", **_PRODUCER)
    await send("POST", f"{base}/tasks/turnip/heartbeat", {}, **_NARROW)
    await send("POST", f"{base}/tasks/claim", {"commands": ["turnip"]}, **_NARROW)
    await send("GET", f"{base}/admin/queues/turnip", **_PRODUCER)
    await send("GET", f"{base}/admin/queues?turnip", **_PRODUCER)
    assert "cqwh_" in str(await send("GET", f"{base}/admin/webhooks/keys", **_PRODUCER))
    assert "cqwh_" in str(await send("POST", f"{base}/admin/webhooks/keys/rotate", **_PRODUCER))
    await send("GET", f"{base}/raft/status", **_PRODUCER)
    for path in ("/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"):
        await send("GET", f"{path}?turnip", **_PRODUCER)
    for header in (
        {},
        {"Authorization": "sesame"},
        {"Authorization": "Basic sesame"},
        {"Authorization": "Bearer sesame-wrong"},
        {"Authorization": f"Bearer {FORGED}"},
        _WORKER,
    ):
        await send("POST", f"{base}/tasks", {"command": "c", "payload": "turnip"}, **header)
    for raw in (b"turnip", b'{"turnip":', b'{"payload":turnip}', b"\xffturnip", b"[" * 9999):
        await send("POST", f"{base}/tasks", raw=raw, **_PRODUCER)
    large = b'{"command":"c","payload":"' + b"turnip" * 20_000 + b'"}'
    await send("POST", f"{base}/tasks", raw=large, **_PRODUCER)
    await send("PATCH", f"{base}/tasks", {"turnip": "turnip"}, **_PRODUCER)
    await send("GET", "/turnip/sesame", **_PRODUCER)


async def _no_http(url: str) -> None:
    """Send bytes that are no request, and close a request half way."""
    host, port = url.removeprefix("http://").split(":")
    for said in (
        b"turnip sesame\r\n\r\n",
        b"GET /turnip HTTP/1.1\r\nturnip sesame\r\n\r\n",
        b"GET /turnip HTTP/9.9\r\nHost: sesame\r\n\r\n",
        b"POST /v1/codeq/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
        b"Authorization: Bearer sesame-open-7f3a\r\n\r\n" + b'{"turnip":',
    ):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(said)
        writer.write_eof()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()


def _lines(path: Path) -> Iterator[dict[str, object]]:
    for line in path.read_text().splitlines():
        said = json.loads(line)
        assert isinstance(said, dict), line
        yield said


async def test_every_line_is_an_object_and_none_holds_what_was_sent(cluster: LocalCluster) -> None:
    """No line has a token, a payload or a query, even of broken requests."""
    urls = list(cluster.urls.values())
    async with HttpClient() as http:
        sender = Sender(urls, http)
        await _all_kinds(sender)
    for url in urls:
        await _no_http(url)
    for node_id in cluster.nodes:
        assert 0 == await cluster.stop(node_id)

    requests: dict[str, dict[str, object]] = {}
    refusals: dict[str, str] = {}
    for node in cluster.nodes.values():
        text = node.log_path.read_text()
        assert [] == [word for word in SECRETS if word in text]
        for line in _lines(node.log_path):
            assert {"ts", "level", "event", "logger"} <= line.keys()
            assert node.id == line["node"]
            if line["event"] == "request":
                assert {"method", "route", "status", "ms", "tenant", "request_id"} <= line.keys()
                requests[str(line["request_id"])] = line
            if line["event"] == "caller refused":
                refusals[str(line["request_id"])] = str(line["reason"])

    told = {name: requests[name]["status"] for name in sender.answered}
    assert sender.answered == told
    assert set(told.values()) >= {200, 202, 400, 401, 403, 404, 405, 413}
    first = requests["r-0"]
    assert ("POST", "/v1/codeq/tasks") == (first["method"], first["route"])
    assert ("acme", "debug") == (first["tenant"], first["level"])
    # A program that another test has left may still ask at this port.
    refused = refusals.keys() & told.keys()
    assert refused == {name for name, status in told.items() if status == 401}
    assert any("algorithm 'none'" in reason or "alg" in reason for reason in refusals.values())


async def test_a_node_at_its_default_says_nothing_of_requests(tmp_path: Path) -> None:
    """Logging each request must be configured."""
    async with LocalCluster(tmp_path, nodes=1, shards=1) as cluster:
        [node] = cluster.nodes.values()

        async def answered() -> bool:
            return (await cluster.status(node.id)) is not None

        await until(answered, what="an answer")
        await cluster.stop(node.id)

    events = [line["event"] for line in _lines(node.log_path)]
    assert "serving" in events
    assert "request" not in events
