"""Artifacts over HTTP: sent with a result or before it, read again, and refused."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from codeq_cluster.settings import BudgetSettings, LimitSettings
from tests.integration.http.artifacts import LIMITS, Keeping, files_below, inline, keeping, local
from tests.integration.http.client import (
    Answer,
    Client,
    eventually,
    read_answer,
    running,
    serving,
    single,
)

BAD_NAMES = ("..", "../a", "a/../b", "a/./b", "/a", "a/", "a//b", "a\\b", "a\nb", "", "x" * 256)


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Keeping]:
    """Run a node that keeps artifacts in a directory."""
    root = tmp_path / "artifacts"
    async with keeping(tmp_path / "data", local(root), files_below(root)) as node:
        yield node


def urls(result: dict[str, Any]) -> list[str]:
    """Return the URLs of a result's artifacts."""
    return [artifact["url"] for artifact in result["artifacts"]]


async def test_artifacts_of_every_kind_keep_their_order_and_can_be_read(node: Keeping) -> None:
    """Stored elsewhere, inline or uploaded before, all are listed in order and readable."""
    task = await node.leased()
    large = bytes(range(256)) * 4096
    sent = await node.put(task, "dir/large.bin", large, Content_Type="image/png")
    done = await node.finish(
        task,
        sent.json,
        {"name": "there", "url": "https://example.com/x"},
        inline("a b/ü.txt", b"hello", contentType="text/plain; charset=utf-8"),
    )
    shown = await node.client.get(f"tasks/{task['id']}/result")
    first, there, third = urls(done.json)
    whole = await node.client.get(first, token="mate")
    small = await node.client.get(third)

    assert (201, len(large), "dir/large.bin") == (sent.status, sent.json["size"], sent.json["name"])
    assert first == sent.headers["location"] == sent.json["url"]
    assert 200 == done.status
    names = [each["name"] for each in done.json["artifacts"]]  # type: ignore[attr-defined]
    assert ["dir/large.bin", "there", "a b/ü.txt"] == names
    assert "https://example.com/x" == there
    assert done.json == shown.json["result"]
    assert (200, large, sent.json["etag"]) == (whole.status, whole.body, whole.headers["etag"])
    assert "image/png" == whole.headers["content-type"]
    assert (200, b"hello") == (small.status, small.body)
    assert "text/plain; charset=utf-8" == small.headers["content-type"]
    assert "nosniff" == small.headers["x-content-type-options"]
    assert "sandbox; default-src 'none'" == small.headers["content-security-policy"]
    assert ("attachment; filename=\"_.txt\"; filename*=UTF-8''%C3%BC.txt") == small.headers[
        "content-disposition"
    ]
    assert 2 == len(node.kept())


async def test_an_artifact_is_read_in_part_and_under_conditions(node: Keeping) -> None:
    """Ranges and conditions work as in RFC 9110; HEAD has the same headers and no body."""
    task = await node.leased()
    [url] = urls((await node.finish(task, inline("a", b"0123456789"))).json)
    part = await node.client.get(url, Range="bytes=2-4")
    etag = part.headers["etag"]
    same = await node.client.get(url, If_None_Match=etag)
    other = await node.client.get(url, If_Match='"another"')
    beyond = await node.client.get(url, Range="bytes=10-")
    reader, writer = await node.client.connect()
    writer.write(node.client.head("HEAD", url, 0))
    head = await reader.readuntil(b"\r\n\r\n")
    writer.write(node.client.head("GET", url, 0, Range="bytes=-3"))
    tail = await read_answer(reader)

    assert (206, b"234") == (part.status, part.body)
    assert "bytes 2-4/10" == part.headers["content-range"]
    assert (304, b"") == (same.status, same.body)
    assert (412, "precondition-failed") == (other.status, other.json["code"])
    assert (416, "range-not-satisfiable") == (beyond.status, beyond.json["code"])
    assert "bytes */10" == beyond.headers["content-range"]
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"content-length: 10\r\n" in head.lower()
    assert (206, b"789") == (tail.status, tail.body)


async def test_an_artifact_is_its_tenants_alone_and_only_under_its_results_name(
    node: Keeping,
) -> None:
    """An artifact is readable only if its own tenant's result names it, whatever is stored."""
    task = await node.leased()
    unnamed = (await node.put(task, "unnamed", b"x")).json["url"]
    before = await node.client.get(str(unnamed))
    [url] = urls((await node.finish(task, inline("a", b"x"))).json)

    for path, token in (
        (url, "other"),
        (str(unnamed), "acme"),
        (f"{url}b", "acme"),
        (url.replace(task["id"], "unheard-of"), "acme"),
    ):
        refused = await node.client.get(path, token=token)

        assert (404, "artifact not found") == (refused.status, refused.error), path
    assert 404 == before.status
    assert 401 == (await node.client.get(url, token="")).status


async def test_a_result_sent_again_is_answered_with_the_stored_one(node: Keeping) -> None:
    """A repeat gets the stored answer, not new URLs; other content is refused."""
    task = await node.leased()
    sent = await node.put(task, "s", b"streamed")
    first = await node.finish(task, inline("a", b"x"), sent.json)
    kept = node.kept()
    again = await node.finish(task, inline("a", b"x"), sent.json)
    other = [
        await node.finish(task, inline("a", b"y"), sent.json),
        await node.finish(task, inline("b", b"x"), sent.json),
        await node.finish(task, inline("a", b"x", contentType="text/plain"), sent.json),
        await node.finish(task, inline("a", b"x")),
        await node.finish(task, inline("a", b"x"), sent.json, token="mate"),
    ]

    assert (200, 200) == (first.status, again.status)
    assert first.body == again.body
    assert ["not-in-progress"] * 5 == [each.error for each in other]
    assert kept == node.kept()


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", b""),
        ("QQ==", b"A"),
        ("QQ=", b"A"),
        ("QQ", b"A"),
        ("QUI", b"AB"),
        ("+/+/", b"\xfb\xff\xbf"),
        ("QUJD\r\nREVG", b"ABCDEF"),
    ],
)
async def test_base64_is_read_as_the_reference_reads_it(
    node: Keeping, text: str, content: bytes
) -> None:
    """The standard alphabet is read, with or without line breaks and padding."""
    task = await node.leased()
    done = await node.finish(task, {"name": "a", "contentBase64": text})

    assert 200 == done.status, done.body
    assert content == (await node.client.get(urls(done.json)[0])).body


@pytest.mark.parametrize(
    ("artifact", "status", "code"),
    [
        ({"name": "a", "contentBase64": "Q"}, 400, "invalid-artifact-content"),
        ({"name": "a", "contentBase64": "QQ==="}, 400, "invalid-artifact-content"),
        ({"name": "a", "contentBase64": "QUJD="}, 400, "invalid-artifact-content"),
        ({"name": "a", "contentBase64": "Q=Q="}, 400, "invalid-artifact-content"),
        ({"name": "a", "contentBase64": "_-_-"}, 400, "invalid-artifact-content"),
        ({"name": "a", "contentBase64": "ü"}, 400, "invalid-artifact-content"),
        ({"name": "a", "contentBase64": 1}, 400, "invalid-body"),
        ({"name": "a"}, 400, "artifact-url-required"),
        ({"contentBase64": "QQ=="}, 400, "invalid-artifact-name"),
        (inline("ok", b"x"), 400, "duplicate-artifact-name"),
        (inline("a", b"x", contentType="text"), 400, "invalid-artifact-content-type"),
        (inline("a", b"x", contentType="a/b\r\nX: y"), 400, "invalid-artifact-content-type"),
        *((inline(name, b"x"), 400, "invalid-artifact-name") for name in BAD_NAMES),
    ],
)
async def test_a_result_with_an_artifact_that_cannot_be_taken_stores_nothing(
    node: Keeping, artifact: object, status: int, code: str
) -> None:
    """All artifacts are judged before any is stored, and the worker keeps the task."""
    task = await node.leased()
    refused = await node.finish(task, inline("ok", b"x"), artifact)

    assert (status, code) == (refused.status, refused.json["code"]), refused.body
    assert [] == node.kept()
    assert 200 == (await node.finish(task)).status


async def test_an_incomplete_result_is_refused_before_anything_is_stored(
    node: Keeping,
) -> None:
    """A result without its required fields is refused before its artifacts are stored."""
    task = await node.leased()
    body = {"status": "COMPLETED", "artifacts": [inline("a", b"x")]}
    refused = await node.client.post(f"tasks/{task['id']}/result", body)

    assert (400, "result-required") == (refused.status, refused.json["code"])
    assert [] == node.kept()


@pytest.mark.parametrize(
    "path", ["..", "%2e%2e", "a/../b", "a/%2e%2e/b", "..%2fa", "a%5cb", "a%0ab", "a//b", "x" * 256]
)
async def test_a_path_leads_nowhere_else(node: Keeping, path: str) -> None:
    """No spelling of a path leads outside of the artifacts."""
    task = await node.leased()
    put = await node.put(task, path, b"x")
    got = await node.client.get(f"tasks/{task['id']}/artifacts/{'0' * 16}/{path}")

    for refused in (put, got):
        assert refused.status in {400, 404, 405}, refused.body
        assert refused.json["code"] in {"invalid-artifact-name", "not-found", "no-such-route"}
    assert [] == node.kept()


async def test_only_the_holder_of_the_lease_may_store(node: Keeping) -> None:
    """An upload without the lease is refused before a byte is stored."""
    task = await node.leased()
    another = str(task["leaseToken"] + 1)
    unleased = {"id": await node.client.create("other")}
    for refused, status, code in (
        (await node.put(task, "a", b"x", token="mate"), 403, "not-owner"),
        (await node.finish(task, inline("a", b"x"), token="mate"), 403, "not-owner"),
        (await node.put(task, "a", b"x", token="other"), 404, "not-found"),
        (await node.finish(task, inline("a", b"x"), token="other"), 404, "not-found"),
        (await node.put(task, "a", b"x", X_CodeQ_Lease_Token=another), 409, "lease-lost"),
        (
            await node.finish(task, inline("a", b"x"), X_CodeQ_Lease_Token=another),
            409,
            "lease-lost",
        ),
        (await node.put(task, "a", b"x", X_CodeQ_Lease_Token="x"), 400, "invalid-lease-token"),
        (await node.put(unleased, "a", b"x"), 409, "not-in-progress"),
        (await node.finish(unleased, inline("a", b"x")), 409, "not-in-progress"),
        (await node.put({"id": "unheard-of"}, "a", b"x"), 404, "not-found"),
        (await node.put(task, "a", b"x", token="narrow"), 403, "forbidden"),
        (await node.put(task, "a", b"x", Content_Type="?"), 400, "invalid-artifact-content-type"),
    ):
        assert (status, code) == (refused.status, refused.json["code"])
    assert [] == node.kept()
    assert (
        201 == (await node.put(task, "a", b"x", X_CodeQ_Lease_Token=str(task["leaseToken"]))).status
    )


async def test_a_result_that_names_a_missing_upload_is_refused(node: Keeping) -> None:
    """Otherwise the result would name an artifact that does not exist."""
    task = await node.leased()
    url = f"/v1/codeq/tasks/{task['id']}/artifacts/{'0' * 16}/a"
    refused = await node.finish(task, {"name": "a", "url": url})

    assert (409, "lease-lost") == (refused.status, refused.error)
    assert 200 == (await node.finish(task)).status


async def test_each_item_of_a_batch_is_judged_on_its_own(node: Keeping) -> None:
    """One bad item does not affect the good ones beside it, each with artifacts."""
    tasks = [await node.leased() for _ in range(5)]
    await node.client.post(f"tasks/{tasks[3]['id']}/cancel")
    artifacts = [
        [inline("a", b"0"), {"name": "u", "url": "https://example.com"}],
        [inline("a/../b", b"1")],
        [],
        [inline("a", b"3")],
        [inline("b", b"4"), inline("a", b"44")],
    ]
    answer = await node.client.post(
        "tasks/batch/results",
        {
            "results": [
                {"taskId": task["id"], "status": "COMPLETED", "result": {}, "artifacts": items}
                for task, items in zip([*tasks, tasks[0]], [*artifacts, artifacts[0]], strict=True)
            ]
        },
    )
    items: Any = answer.json["results"]

    assert [
        None,
        "invalid-artifact-name",
        None,
        "lease-lost",
        None,
        "not-in-progress",
    ] == [item.get("code") for item in items]
    assert ["b", "a"] == [each["name"] for each in items[4]["result"]["artifacts"]]
    assert b"44" == (await node.client.get(urls(items[4]["result"])[1])).body
    assert 3 == len(node.kept())


async def test_artifacts_have_a_limit_however_they_come(tmp_path: Path) -> None:
    """The limit holds for announced lengths, inline content and the bytes that arrive."""
    limits = replace(LIMITS, max_artifact_bytes=100_000, max_body_bytes=20_000)
    root = tmp_path / "artifacts"
    async with keeping(tmp_path / "data", local(root), files_below(root), limits=limits) as node:
        task = await node.leased()
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (100_001, bytes(100_001))
        head = node.client.head("PUT", f"tasks/{task['id']}/artifacts/a", 0)
        reader, writer = await node.client.connect()
        writer.write(head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + body)
        refused = [
            await node.put(task, "a", bytes(100_001)),
            await read_answer(reader),
            await node.finish(task, inline("a", bytes(100_001))),
        ]
        beyond = await node.finish(task, inline("a", bytes(200_000)))
        text = await node.client.post(f"tasks/{task['id']}/heartbeat", b" " * 20_001)
        lines = base64.encodebytes(bytes(100_000)).decode()
        many = [
            b'{"status":"COMPLETED","result":{},"artifacts":[' + b"1," * 20_000 + b"1]}",
            b"{" + b",".join(b'"%d":1' % n for n in range(10_000)) + b"}",
        ]
        values = [await node.client.post(f"tasks/{task['id']}/result", each) for each in many]

        assert ["artifact exceeds 100000 bytes"] * 3 == [each.error for each in refused]
        assert {413} == {each.status for each in refused}
        assert (413, "body-too-large") == (beyond.status, beyond.json["code"])
        assert 413 == text.status
        assert ["request body exceeds 20000 bytes beside the content of artifacts"] * 2 == [
            each.error for each in values
        ]
        assert [] == node.kept()
        assert 201 == (await node.put(task, "a", bytes(100_000))).status
        assert 200 == (await node.finish(task, {"name": "a", "contentBase64": lines})).status


async def test_without_a_provider_artifacts_are_refused_in_words_that_say_what_to_do(
    tmp_path: Path,
) -> None:
    """URLs are taken as they are, and the limit on bodies is not raised."""
    async with running(tmp_path / "node", LimitSettings(max_body_bytes=10_000)) as client:
        task = {"id": await client.create()}
        await client.claim()
        body = {"status": "COMPLETED", "result": {}, "artifacts": [inline("a", b"x")]}
        path = f"tasks/{task['id']}/result"
        refused = await client.post(path, body)
        put = await client.send("PUT", f"tasks/{task['id']}/artifacts/a", b"x")
        got = await client.get(f"tasks/{task['id']}/artifacts/{'0' * 16}/a")
        large = await client.post(path, body | {"artifacts": [inline("a", bytes(10_000))]})
        done = await client.post(path, body | {"artifacts": [{"name": "a", "url": "s3://b/k"}]})

        assert (400, "artifacts-not-configured") == (refused.status, refused.json["code"])
        assert "artifacts.provider" in str(refused.error)
        assert (400, refused.error) == (put.status, put.error)
        assert (404, "artifact not found") == (got.status, got.error)
        assert "request body exceeds 10000 bytes" == large.error
        assert 200 == done.status


async def test_urls_are_absolute_when_the_nodes_have_a_public_one(tmp_path: Path) -> None:
    """A result may name an upload by its absolute URL or by its path."""
    root = tmp_path / "artifacts"
    settings = local(root, public_url="https://codeq.example.com/q/")
    async with keeping(tmp_path / "data", settings, files_below(root)) as node:
        task = await node.leased()
        sent = str((await node.put(task, "s", b"1")).json["url"])
        base, slash, path = sent.partition("/v1")
        done = await node.finish(task, {"name": "s", "url": slash + path}, inline("a", b"2"))
        kept, stored = urls(done.json)
        prefix = f"https://codeq.example.com/q/v1/codeq/tasks/{task['id']}/artifacts/"

        assert "https://codeq.example.com/q" == base
        assert stored.startswith(prefix)
        assert b"1" == (await node.client.get(kept)).body
        assert b"2" == (await node.client.get(stored.removeprefix(base))).body


async def test_artifacts_count_in_the_budget_of_stored_bytes(tmp_path: Path) -> None:
    """One that would exceed it is refused before any of it is stored; an unstored one is free."""
    root = tmp_path / "artifacts"
    settings = replace(
        single(tmp_path / "data", LIMITS),
        artifacts=local(root),
        budgets=BudgetSettings(stored_bytes=200_000),
    )
    kept = files_below(root)
    async with serving(settings) as client:
        node = Keeping(client, kept)
        task, other = await node.leased(), await node.leased()
        first = await node.put(task, "first", b"x" * 150_000)
        refused = await node.put(other, "second", b"x" * 150_000)
        inlined = await node.finish(other, inline("third", b"x" * 100_000))
        stored = kept()
        unsized = await _chunked(client, task["id"], b"x" * 1000)
        done = await node.finish(task, first.json)
        full = await client.post("tasks", {"command": "c", "payload": "x" * 60_000})

    over = (429, "budget-exceeded", "tenant budget exceeded: storedBytes")
    assert (201, 200) == (first.status, done.status)
    for answer in (refused, inlined, full, unsized):
        assert over == (answer.status, answer.json["code"], answer.error)
    assert 1 == len(stored)


async def test_uploads_without_a_budget_are_bounded_too(tmp_path: Path) -> None:
    """The bound is for uploads alone, and a tenant with a budget has that one."""
    root = tmp_path / "artifacts"
    settings = replace(
        single(tmp_path / "data", LIMITS),
        artifacts=replace(local(root), tenant_bytes_max=200_000),
    )
    kept = files_below(root)
    async with serving(settings) as client:
        node = Keeping(client, kept)
        task = await node.leased()
        first = await node.put(task, "first", b"x" * 150_000)
        refused = await node.put(task, "second", b"x" * 60_000)
        stored = kept()
        created = await client.post("tasks", {"command": "c", "payload": "x" * 60_000})
    async with serving(replace(settings, budgets=BudgetSettings(stored_bytes=300_000))) as client:
        node = Keeping(client, kept)
        budgeted = await node.put(await node.leased(), "third", b"x" * 60_000)

    assert (201, 202, 201) == (first.status, created.status, budgeted.status)
    assert (429, "budget-exceeded") == (refused.status, refused.json["code"])
    assert 1 == len(stored)


async def test_an_upload_that_breaks_off_gives_its_announced_size_back(tmp_path: Path) -> None:
    """Otherwise a worker with a bad line could use its tenant's budget up."""
    root = tmp_path / "artifacts"
    settings = replace(
        single(tmp_path / "data", LIMITS),
        artifacts=local(root),
        budgets=BudgetSettings(stored_bytes=200_000),
    )
    async with serving(settings) as client:
        node = Keeping(client, files_below(root))
        task = await node.leased()
        _, writer = await client.connect()
        path = f"tasks/{task['id']}/artifacts/broken"
        writer.write(client.head("PUT", path, 150_000) + b"x" * 1000)
        await writer.drain()

        async def refused() -> bool:
            return (await node.put(task, "probe", b"x" * 100_000)).status == 429

        await eventually(refused)
        writer.close()
        again = await eventually(
            lambda: node.put(task, "again", b"x" * 150_000), lambda answer: answer.status == 201
        )

    assert 150_000 == again.json["size"]


async def _chunked(client: Client, task_id: str, content: bytes) -> Answer:
    """Upload an artifact without saying its size before."""
    reader, writer = await client.connect()
    head = client.head("PUT", f"tasks/{task_id}/artifacts/unsized", 0)
    writer.write(head.replace(b"Content-Length: 0", b"Transfer-Encoding: chunked"))
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))
    return await read_answer(reader)
