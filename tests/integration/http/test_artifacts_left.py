"""Leftover artifacts: those that no result names, and those of deleted tasks, are deleted."""

from __future__ import annotations

import asyncio
import contextlib
import re
import select
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from codeq_cluster.settings import ArtifactProvider, LifecycleSettings
from tests.integration.http.artifacts import LIMITS, Keeping, files_below, inline, keeping, local
from tests.integration.http.client import DEADLINE_S, eventually, read_answer


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Keeping]:
    """Run a node that keeps artifacts in a directory."""
    root = tmp_path / "artifacts"
    async with keeping(tmp_path / "data", local(root), files_below(root)) as node:
        yield node


async def swept(node: Keeping, outcome: str = "success") -> int:
    """Return how many attempts to delete artifacts had this outcome."""
    metrics = (await node.client.get("/metrics")).body.decode()
    found = re.search(rf'codeq_artifact_sweeps_total{{outcome="{outcome}"}} (\d+)', metrics)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("end", ["result", "failed", "cancelled", "abandoned", "expired"])
async def test_uploads_that_no_result_names_go_at_the_tasks_end(node: Keeping, end: str) -> None:
    """However the task ends, only uploads that its result names are kept."""
    task = await node.leased(maxAttempts=1)
    path = f"tasks/{task['id']}"
    named = (await node.put(task, "named", b"1")).json
    await node.put(task, "unnamed", b"2")
    await node.put(task, "named", b"3")
    stored = node.kept()
    match end:
        case "result":
            assert 200 == (await node.finish(task, named, inline("inline", b"4"))).status
        case "failed":
            body = {"status": "FAILED", "error": "e", "artifacts": [named]}
            assert 200 == (await node.client.post(f"{path}/result", body)).status
        case "cancelled":
            assert 200 == (await node.client.post(f"{path}/cancel")).status
        case "abandoned":
            assert "dlq" == (await node.client.post(f"{path}/abandon")).json["status"]
        case "expired":
            assert 200 == (await node.client.post(f"{path}/heartbeat", {"extendSeconds": 1})).status
    stays = {"result": 2, "failed": 1}.get(end, 0)
    left = await node.until_kept(lambda kept: len(kept) == stays)

    assert 3 == len(stored)
    assert ["inline", "named"][2 - stays :] == sorted(Path(each).name for each in left)
    for artifact in (await node.client.get(f"{path}/result")).json["result"].get("artifacts", ()):  # type: ignore[attr-defined]
        assert 200 == (await node.client.get(artifact["url"])).status
    # A deletion is counted just after the file is gone, so the counter is polled too.
    await eventually(lambda: swept(node))


async def test_a_later_holder_may_name_an_earlier_ones_uploads(node: Keeping) -> None:
    """Uploads belong to the task until it ends, whichever worker made them."""
    task = await node.leased()
    sent = (await node.put(task, "first", b"1")).json
    await node.client.post(f"tasks/{task['id']}/nack", {"delaySeconds": 0, "reason": "busy"})
    await node.client.post(f"tasks/{task['id']}/abandon")
    again = await node.client.claim(waitSeconds=20)
    done = await node.finish(again, sent)

    assert 200 == done.status, done.body
    assert b"1" == (await node.client.get(str(sent["url"]))).body


async def test_a_revived_task_cannot_use_uploads_that_its_death_released(node: Keeping) -> None:
    """A result may not name an artifact that is being swept."""
    task = await node.leased(maxAttempts=1)
    sent = (await node.put(task, "first", b"1")).json
    await node.client.post(f"tasks/{task['id']}/abandon")
    revived = await node.client.post(f"admin/queues/c/dlq/{task['id']}/requeue")
    again = await node.client.claim()
    refused = await node.finish(again, sent)
    done = await node.finish(again, inline("second", b"2"))
    left = await node.until_kept(lambda kept: len(kept) == 1)

    assert 200 == revived.status, revived.body
    assert (409, "lease-lost") == (refused.status, refused.error)
    assert 200 == done.status
    assert "second" == Path(left[0]).name


async def test_an_upload_that_outlives_its_task_is_refused_and_gone(node: Keeping) -> None:
    """The upload is refused and its bytes are deleted if its task is cancelled meanwhile."""
    task = await node.leased()
    reader, writer = await node.client.connect()
    path = f"tasks/{task['id']}/artifacts/a"
    writer.write(node.client.head("PUT", path, 100_000) + bytes(50_000))
    await node.until_kept(bool)
    await node.client.post(f"tasks/{task['id']}/cancel")
    writer.write(bytes(50_000))
    refused = await read_answer(reader)

    assert (409, "lease-lost") == (refused.status, refused.error)
    assert [] == node.kept()


async def test_a_client_that_goes_away_in_an_upload_leaves_nothing(node: Keeping) -> None:
    """The partial upload is deleted, and the task can still be finished."""
    task = await node.leased()
    _, writer = await node.client.connect()
    path = f"tasks/{task['id']}/artifacts/a"
    writer.write(node.client.head("PUT", path, 100_000) + bytes(50_000))
    await node.until_kept(bool)
    writer.close()
    await node.until_kept(lambda kept: not kept)

    assert 200 == (await node.finish(task, inline("a", b"x"))).status


async def test_a_client_that_stalls_in_an_upload_gets_an_error_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    """A stalled upload times out like any other body."""
    limits = replace(LIMITS, body_timeout_ms=200)
    root = tmp_path / "artifacts"
    async with keeping(tmp_path / "data", local(root), files_below(root), limits=limits) as node:
        task = await node.leased()
        reader, writer = await node.client.connect()
        path = f"tasks/{task['id']}/artifacts/a"
        writer.write(node.client.head("PUT", path, 100_000) + bytes(50_000))
        answer = await read_answer(reader)
        kept = node.kept()

        assert (408, "request-timeout") == (answer.status, answer.json["code"])
        assert [] == kept


async def test_a_reader_that_takes_nothing_is_cut_off(tmp_path: Path) -> None:
    """A stalled reader is cut off after the limit for any answer, plus the upload's time."""
    limits = replace(LIMITS, body_timeout_ms=3000)
    root = tmp_path / "artifacts"
    async with keeping(tmp_path / "data", local(root), files_below(root), limits=limits) as node:
        task = await node.leased()
        sent = (await node.put(task, "a", bytes(2**24))).json
        await node.finish(task, sent)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.connect(("127.0.0.1", node.client.port))
            slow.send(node.client.head("GET", str(sent["url"]), 0))
            broken = select.poll()
            broken.register(slow, 0)
            events = await asyncio.to_thread(broken.poll, DEADLINE_S * 1000)

        assert events, "the connection still stands"
        assert 2**24 == len((await node.client.get(str(sent["url"]))).body)


async def test_a_store_that_fails_leaves_nothing_and_the_task_unharmed(
    node: Keeping, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The failure can be retried, and the retry succeeds as soon as the store does."""
    task = await node.leased()
    root = tmp_path / "artifacts"
    with contextlib.suppress(FileNotFoundError):
        root.rmdir()
    root.write_bytes(b"no directory")
    answers = [
        await node.finish(task, inline("a", b"x"), inline("b", b"y")),
        await node.put(task, "a", b"x"),
        *[await node.finish(task, inline("a", b"x")) for _ in range(120)],
    ]
    batch = await node.client.post(
        "tasks/batch/results",
        {
            "results": [
                {
                    "taskId": task["id"],
                    "status": "COMPLETED",
                    "result": {},
                    "artifacts": [inline("a", b"x")],
                }
            ]
        },
    )
    status = (await node.client.get(f"tasks/{task['id']}")).json["status"]
    root.unlink()
    done = await node.finish(task, inline("a", b"x"))

    assert {(503, "artifact-store-failed")} == {
        (each.status, each.json["code"]) for each in answers
    }
    assert answers[0].json["retryable"] is True
    assert "not-applied" == answers[0].headers["x-outcome"]
    assert str(root) not in str(answers[0].body)
    assert "artifact-store-failed" == batch.json["results"][0]["code"]  # type: ignore[index]
    assert "IN_PROGRESS" == status
    # There are more failed tries than allowed uploads, so a failing store must not use any up.
    assert 200 == done.status, done.body
    assert 1 == len(node.kept())
    told = [each for each in caplog.records if each.message == "artifacts cannot be stored"]
    assert 1 == len(told)


async def test_a_task_has_a_bounded_number_of_uploads(node: Keeping) -> None:
    """An upload beyond the bound is refused; the result is still taken."""
    task = await node.leased()
    sent = [await node.put(task, "a", b"x") for _ in range(100)]
    beyond = [await node.put(task, "a", b"x"), await node.finish(task, inline("a", b"x"))]
    done = await node.finish(task, *(each.json for each in sent))

    assert {201} == {each.status for each in sent}
    assert [(409, "too-many")] * 2 == [(each.status, each.json["code"]) for each in beyond]
    assert 200 == done.status
    assert 100 == len(node.kept())


async def test_artifacts_go_with_their_task(tmp_path: Path) -> None:
    """Artifacts are deleted with their task, when its retention is over."""
    lifecycle = LifecycleSettings(retention_seconds=1)
    root = tmp_path / "artifacts"
    async with keeping(
        tmp_path / "data", local(root), files_below(root), lifecycle=lifecycle
    ) as node:
        task = await node.leased()
        sent = (await node.put(task, "s", b"1")).json
        done = await node.finish(task, sent, inline("a", b"2"))
        await node.until_kept(lambda _: not list(root.iterdir()))
        gone = await node.client.get(str(sent["url"]))

        assert 200 == done.status
        assert 404 == gone.status


async def test_a_node_without_a_provider_leaves_deletions_to_one_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The node logs the deletions once; they wait for a node that can make them."""
    root = tmp_path / "artifacts"
    data = tmp_path / "data"
    async with keeping(data, local(root), files_below(root)) as node:
        task = await node.leased()
        await node.put(task, "a", b"1")
        other = await node.leased()
        await node.put(other, "a", b"1")
    nowhere = replace(local(root, timeout_ms=100), provider=ArtifactProvider.NONE)
    limits = replace(LIMITS, request_timeout_ms=500)
    async with keeping(data, nowhere, files_below(root), limits=limits) as node:
        for each in (task, other):
            await node.client.post(f"tasks/{each['id']}/cancel")
        await eventually(lambda: swept(node, "failure"))

        assert 2 == len(node.kept())
    told = [each for each in caplog.records if each.message == "unneeded artifacts stay for now"]
    assert 1 == len(told)
    assert "artifacts.provider is none" == told[0].__dict__["error"]
