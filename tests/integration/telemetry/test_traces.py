"""Traces: one task's way through a cluster of real nodes, as a real collector receives it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from codeq_cluster.node.compose import Node
from codeq_cluster.settings import LimitSettings, OtlpProtocol, TracingSettings
from codeq_cluster.telemetry.exporters import LOGS
from codeq_cluster.telemetry.spans import FLUSH_S, Spans
from codeq_cluster.webhooks.circuit_breaker import CircuitBreaker
from tests.harness.accounting import RecordedOutcome
from tests.harness.certificates import Authority
from tests.harness.client import RecordingClient, answered
from tests.harness.cluster import LocalCluster
from tests.harness.node_process import PRODUCER_TOKEN, WORKER_TOKENS
from tests.integration.http.client import Client, single
from tests.integration.telemetry.collector import Collector, Seen, collecting_by_grpc
from tests.integration.webhooks.target import listening, sending

pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).resolve().parents[3]
CREATE = "POST /v1/codeq/tasks"
CLAIM = "POST /v1/codeq/tasks/claim"
RESULT = "POST /v1/codeq/tasks/{id}/result"
_TRIES = 5  # The most repetitions of a story during which the leader changed.
_WORKER = WORKER_TOKENS["worker-0"]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def collector() -> AsyncIterator[Collector]:
    """Run a collector for the cluster."""
    async with Collector() as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(
    collector: Collector, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[LocalCluster]:
    """Run three nodes with one shard that send their spans to the collector."""
    tracing = {"otlpEndpoint": collector.url, "headers": "x-key=of%20ours"}
    async with LocalCluster(
        tmp_path_factory.mktemp("traced"), shards=1, settings={"tracing": tracing}
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(cluster: LocalCluster) -> AsyncIterator[RecordingClient]:
    """Yield a client."""
    async with RecordingClient(cluster.urls) as made:
        yield made


async def follower(cluster: LocalCluster) -> tuple[str, str]:
    """Return the ids of a follower and of the leader."""
    leader = await cluster.leader_of(0)
    return next(name for name in cluster.nodes if name != leader), leader


async def posted(
    client: RecordingClient, node: str, path: str, token: str, body: object = None, **headers: str
) -> Any:
    """Post a request that must succeed, and return the answer's body."""
    answer = await answered(partial(client.call, "POST", node, path, token, body, **headers))
    assert answer.outcome is RecordedOutcome.OK, answer
    return answer.body


async def under_one_leader(cluster: LocalCluster, story: Callable[[], Awaitable[None]]) -> None:
    """Run a story under one leader; repeat it if the leader changed meanwhile."""

    async def leadership() -> tuple[str, int]:
        leader = await cluster.leader_of(0)
        shards = await cluster.status(leader)
        return leader, shards[0].term if shards is not None else 0

    for tries_left in reversed(range(_TRIES)):
        before = await leadership()
        try:
            await story()
        except (AssertionError, TimeoutError):
            if not tries_left or await leadership() == before:
                raise
        else:
            return


def new_trace(flags: str = "01") -> tuple[str, str, str]:
    """Return a new trace id, a span id, and the header with both."""
    trace_id, span_id = secrets.token_hex(16), secrets.token_hex(8)
    return trace_id, span_id, f"00-{trace_id}-{span_id}-{flags}"


def of_trace(spans: Sequence[Seen], trace_id: str) -> Counter[str]:
    """Return the numbers of a trace's spans by name."""
    return Counter(span.name for span in spans if span.trace_id == trace_id)


async def test_a_task_made_through_a_follower_leaves_one_trace(
    cluster: LocalCluster, collector: Collector, client: RecordingClient
) -> None:
    """Create, forward and commit, claim, result and callback: each a child of its cause."""
    await under_one_leader(cluster, partial(_one_trace, cluster, collector, client))


async def _one_trace(cluster: LocalCluster, collector: Collector, client: RecordingClient) -> None:
    here, leader = await follower(cluster)
    trace_id, cause, header = new_trace()
    command = f"traced-{cause}"

    async with listening() as target:
        # The delay lets a timer change the task too, and that change belongs to no request.
        task = {"command": command, "payload": 1, "delaySeconds": 1, "webhook": target.url}
        headers = {"traceparent": header, "tracestate": "v=1", "X-Request-Id": "r1"}
        created = await posted(client, here, "/tasks", PRODUCER_TOKEN, task, **headers)
        task_id = created["id"]
        wanted = {"commands": [command], "waitSeconds": 20}
        claimed = await posted(client, here, "/tasks/claim", _WORKER, wanted)
        result, path = {"status": "COMPLETED", "result": {}}, f"/tasks/{task_id}/result"
        await posted(client, here, path, _WORKER, result, traceparent=claimed["traceParent"])
        await target.arrived(1)

    expected = {CREATE: 1, "claim": 1, RESULT: 1, "forward": 2, "commit": 2, "webhook": 1}
    spans = await collector.until(
        lambda spans: (
            of_trace(spans, trace_id) >= Counter(expected)
            and any(span.name == CLAIM for span in spans)
        )
    )
    assert expected == of_trace(spans, trace_id)
    assert (header, "v=1") == (claimed["traceParent"], claimed["traceState"])
    ours = [span for span in spans if span.trace_id == trace_id]
    for name in (CREATE, RESULT):
        [serving] = [span for span in ours if span.name == name]
        [forward] = [span for span in ours if span.parent_id == serving.span_id]
        [commit] = [span for span in ours if span.parent_id == forward.span_id]
        assert (cause, here) == (serving.parent_id, serving.node)
        assert ("forward", here) == (forward.name, forward.node)
        assert (leader, 0) == (forward.attributes["codeq.peer"], forward.attributes["codeq.shard"])
        assert ("commit", leader) == (commit.name, commit.node)
        assert (1, 0) == (commit.attributes["codeq.operations"], commit.attributes["codeq.shard"])
        assert commit.attributes["codeq.entry.ordinal"]
    [creating] = [span for span in ours if span.name == CREATE]
    [claim] = [span for span in ours if span.name == "claim"]
    [claiming] = [span for span in spans if span.name == CLAIM and span.span_id in claim.links]
    assert 202 == creating.attributes["http.response.status_code"]
    assert "r1" == creating.attributes["codeq.request_id"]
    assert (cause, task_id) == (claim.parent_id, claim.attributes["codeq.task.id"])
    assert ("", False) == (claiming.parent_id, claiming.trace_id == trace_id)
    [called] = [span for span in ours if span.name == "webhook"]
    [heard] = target.heard
    assert (cause, leader, False) == (called.parent_id, called.node, called.failed)
    assert "task_result" == called.attributes["codeq.webhook.kind"]
    assert "127.0.0.1" == called.attributes["server.address"]
    assert f"00-{trace_id}-{called.span_id}-01" == heard.headers["traceparent"]
    assert "v=1" == heard.headers["tracestate"]
    assert "of ours" == collector.headers["x-key"]


async def test_a_task_without_a_trace_is_given_the_one_of_its_request(
    cluster: LocalCluster, collector: Collector, client: RecordingClient
) -> None:
    """A worker that claims it can continue the trace."""
    here, _ = await follower(cluster)

    task, none = {"command": "untraced", "payload": 1}, f"00-{'0' * 32}-{'0' * 16}-01"
    created = await posted(client, here, "/tasks", PRODUCER_TOKEN, task, traceparent=none)
    header = created["traceParent"]

    _, trace_id, span_id, flags = header.split("-")
    spans = await collector.until(lambda spans: of_trace(spans, trace_id)[CREATE])
    [creating] = [span for span in spans if span.trace_id == trace_id and span.name == CREATE]
    assert (span_id, "") == (creating.span_id, creating.parent_id)
    assert int(flags, 16) & 1


async def test_a_caller_that_does_not_sample_is_followed(
    cluster: LocalCluster, collector: Collector, client: RecordingClient
) -> None:
    """The caller's trace leaves no span on any node; a later trace shows that spans do arrive."""
    await under_one_leader(cluster, partial(_unsampled, cluster, collector, client))


async def _unsampled(cluster: LocalCluster, collector: Collector, client: RecordingClient) -> None:
    here, _ = await follower(cluster)
    silent, _, unsampled = new_trace("00")
    loud, _, sampled = new_trace()

    for header in (unsampled, sampled):
        task = {"command": "sampled", "payload": 1}
        await posted(client, here, "/tasks", PRODUCER_TOKEN, task, traceparent=header)

    spans = await collector.until(
        lambda spans: of_trace(spans, loud) >= Counter({CREATE: 1, "forward": 1, "commit": 1})
    )
    assert not of_trace(spans, silent)


async def test_a_webhook_continues_the_trace_of_its_task(collector: Collector) -> None:
    """The receiver gets the attempt's context, and a failed attempt records no text."""
    spans = Spans(TracingSettings(otlp_endpoint=collector.url), node_id="n9")
    trace_id, cause, header = new_trace()

    with spans.webhook(
        "result", trace_parent=header, trace_state="v=1", host="hook.example", attempt=1
    ) as good:
        told = (good.trace_parent, good.trace_state)
        good.answered(204)
    with (
        pytest.raises(ConnectionError),
        spans.webhook(
            "result", trace_parent=header, trace_state="", host="hook.example", attempt=2
        ),
    ):
        raise ConnectionError("a secret")
    await spans.stop()

    seen = await collector.until(lambda spans: of_trace(spans, trace_id)["webhook"] == 2)
    first, second = [span for span in seen if span.trace_id == trace_id]
    assert (cause, cause) == (first.parent_id, second.parent_id)
    assert (f"00-{trace_id}-{first.span_id}-01", "v=1") == told
    assert (False, True) == (first.failed, second.failed)
    assert "ConnectionError" == second.attributes["error.type"]
    assert "a secret" not in str(seen)


async def test_each_attempt_at_a_callback_is_a_span_with_its_outcome(
    cluster: LocalCluster, collector: Collector, client: RecordingClient
) -> None:
    """The receiver gets each attempt's own context; a refused attempt is no success."""
    here, _ = await follower(cluster)
    trace_id, cause, header = new_trace()
    answers = iter([404, 200])

    async def serve(request: web.Request) -> web.StreamResponse:
        return web.Response(status=next(answers))

    async with listening(serve) as target:
        task = {"command": "retold", "payload": 1, "webhook": f"{target.url}/?key=secret"}
        created = await posted(client, here, "/tasks", PRODUCER_TOKEN, task, traceparent=header)
        await posted(client, here, f"/tasks/{created['id']}/cancel", PRODUCER_TOKEN)
        await target.arrived(2)

    spans = await collector.until(lambda spans: of_trace(spans, trace_id)["webhook"] == 2)
    calls = [span for span in spans if span.trace_id == trace_id and span.name == "webhook"]
    assert [cause, cause] == [call.parent_id for call in calls]
    assert [(1, 404), (2, 200)] == [
        (call.attributes["codeq.attempt"], call.attributes["http.response.status_code"])
        for call in calls
    ]
    assert [True, False] == [call.failed for call in calls]
    assert [f"00-{trace_id}-{call.span_id}-01" for call in calls] == [
        each.headers["traceparent"] for each in target.heard
    ]
    assert "secret" not in str(calls)


async def test_a_call_that_is_not_made_leaves_no_span(collector: Collector) -> None:
    """A host with an open circuit and a forbidden URL get no call, and so no span."""
    spans = Spans(TracingSettings(otlp_endpoint=collector.url), node_id="n9")
    trace_id, _, header = new_trace()
    span = partial(
        spans.webhook, "result", trace_parent=header, trace_state="", host="away", attempt=1
    )
    async with listening() as target:
        away = target.url
    breaker = CircuitBreaker(now_s=lambda: 0.0, failures_max=1)

    async with sending(breaker=breaker) as sender:
        silent = await sender.post(away, b"{}", tenant="acme", delivery="d1", span=span)
        deferred = await sender.post(away, b"{}", tenant="acme", delivery="d2", span=span)
        refused = await sender.post("ftp://away/", b"{}", tenant="acme", delivery="d3", span=span)
    await spans.stop()

    seen = await collector.until(lambda spans: of_trace(spans, trace_id)["webhook"])
    [only] = [each for each in seen if each.trace_id == trace_id]
    assert (
        0,
        False,
        True,
        False,
    ) == (silent.status, silent.deferred, deferred.deferred, refused.ok)
    assert (True, "no answer") == (only.failed, only.attributes["error.type"])
    assert "http.response.status_code" not in only.attributes


async def test_work_outside_of_requests_makes_no_spans(collector: Collector) -> None:
    """The node's own work starts no traces."""
    spans = Spans(TracingSettings(otlp_endpoint=collector.url), node_id="n9")

    with (
        spans.forward("operate", shard=0, peer="n1") as forwarded,
        spans.commit(shard=0, term=1, ordinal=1, operations=1) as committed,
    ):
        current = spans.current()
    await spans.stop()

    assert (None, None, ("", "")) == (forwarded, committed, current)


@pytest.mark.parametrize("trace", ["", "x", "00-zz", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_peer_that_carries_nothing_sound_causes_nothing(
    collector: Collector, trace: str
) -> None:
    """Its trace header is read like any other."""
    spans = Spans(TracingSettings(otlp_endpoint=collector.url), node_id="n9")

    with spans.carried(trace, "=,=;=" * 400), spans.forward("read", shard=0, peer="n") as forwarded:
        pass
    await spans.stop()

    assert forwarded is None


async def test_a_collector_that_does_not_answer_disturbs_no_task(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tasks work as usual, and the node's own stop does not wait for it."""
    async with Collector() as collector:
        collector.open.clear()
        tracing = TracingSettings(otlp_endpoint=collector.url)
        node = Node(replace(single(tmp_path / "node", LimitSettings()), tracing=tracing))
        await node.start()
        client = Client(node.port)
        while (await client.get("/readyz")).status != 200:
            pass
        task_id = await client.create("dark")
        await collector.asked()
        claimed = await client.claim("dark")
        done = await client.post(f"tasks/{task_id}/result", {"status": "COMPLETED", "result": {}})
        for writer in client.open:
            writer.close()
        with caplog.at_level(logging.WARNING, "codeq_cluster.telemetry.spans"):
            await node.stop()
        unanswered = list(collector.spans)

    assert (task_id, 200) == (claimed["id"], done.status)
    ours = [each.message for each in caplog.records if each.name == "codeq_cluster.telemetry.spans"]
    assert ["the last spans were not sent"] == ours
    assert not unanswered


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
async def test_a_node_sends_its_spans_by_grpc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    """The spans reach a collector that speaks only gRPC, with the configured headers."""
    authority = Authority()
    pair = authority.issue("collector", "127.0.0.1")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
    async with collecting_by_grpc((pair.key, pair.certificate) if tls else None) as collector:
        tracing = TracingSettings(
            otlp_endpoint=collector.url, otlp_protocol=OtlpProtocol.GRPC, headers="X-Key=of%20ours"
        )
        node = Node(replace(single(tmp_path / "node", LimitSettings()), tracing=tracing))
        await node.start()
        client = Client(node.port)
        while (await client.get("/readyz")).status != 200:
            pass
        trace_id, cause, header = new_trace()
        await client.post("tasks", {"command": "called", "payload": 1}, traceparent=header)
        seen = await collector.until(lambda spans: of_trace(spans, trace_id)[CREATE])
        for writer in client.open:
            writer.close()
        await node.stop()

    [creating] = [each for each in seen if each.trace_id == trace_id and each.name == CREATE]
    assert cause == creating.parent_id
    assert "of ours" == collector.headers["x-key"]


async def test_a_grpc_collector_that_is_away_disturbs_no_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A stop waits for it no longer than its bound, and one line reports it."""
    async with collecting_by_grpc() as collector:
        pass
    tracing = TracingSettings(otlp_endpoint=collector.url, otlp_protocol=OtlpProtocol.GRPC)
    spans = Spans(tracing, node_id="n9")
    loop = asyncio.get_running_loop()

    with spans.serving("GET", "/r", {}):
        pass
    began_s = loop.time()
    await spans.stop()
    took_s = loop.time() - began_s
    logging.getLogger(LOGS[OtlpProtocol.GRPC]).error("away still")
    said = [each for each in caplog.records if each.name == LOGS[OtlpProtocol.GRPC]]

    assert took_s < FLUSH_S + 5
    assert [True] == ["UNAVAILABLE" in each.getMessage() for each in said]


_OFF = """
import asyncio, pathlib, sys
from codeq_cluster.settings import LimitSettings
from tests.integration.http.client import running

async def main():
    async with running(pathlib.Path(sys.argv[1]), LimitSettings()) as client:
        await client.create("plain", traceparent="x")
        await client.claim("plain")

asyncio.run(main())
libraries = ("opentelemetry", "google", "grpc", "requests", "urllib3")
print(sorted(name for name in sys.modules if name.split(".")[0] in libraries))
"""


async def test_a_node_without_a_collector_never_loads_the_library(tmp_path: Path) -> None:
    """Off is the default, and costs nothing."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _OFF, str(tmp_path / "node")),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
    )
    said, _ = await process.communicate()

    assert (0, b"[]\n") == (process.returncode, said)


@pytest.mark.parametrize(
    ("protocol", "library", "other"),
    [(OtlpProtocol.HTTP, "requests", "grpc"), (OtlpProtocol.GRPC, "grpc", "requests")],
)
async def test_a_node_loads_only_its_collectors_protocol(
    protocol: OtlpProtocol, library: str, other: str
) -> None:
    """Each protocol has its own network libraries."""
    script = (
        "import sys\n"
        "from codeq_cluster.settings import OtlpProtocol, TracingSettings\n"
        "from codeq_cluster.telemetry.exporters import exporter_of\n"
        "exporter_of(TracingSettings(otlp_endpoint='http://127.0.0.1:1',"
        f" otlp_protocol=OtlpProtocol({protocol.value!r})))\n"
        "print(sorted({'grpc', 'requests'} & set(sys.modules)))\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), cwd=ROOT, stdout=subprocess.PIPE
    )
    said, _ = await process.communicate()

    assert (0, str([library])) == (process.returncode, said.decode().strip())
    assert other not in said.decode()
