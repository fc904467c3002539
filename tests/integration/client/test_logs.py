"""Logs of tasks in handlers: written from coroutines and threads, read by whoever asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from codeq_cluster.client import Retry, Task
from codeq_cluster.testing.broker import LocalBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run one broker for every test here."""
    with LocalBroker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.mark.parametrize("is_async", [True, False])
def test_a_log_has_what_each_attempt_has_said(broker: LocalBroker, is_async: bool) -> None:
    """Up to its last line, whether the attempt failed or not."""
    worker = broker.worker()
    command = f"logged-{is_async}"

    def work(task: Task) -> int:
        for page in range(1, 31):
            task.log(f"page {page}")
        if task.attempt == 1:
            task.log("the bank is closed")
            raise Retry("later")
        return 30

    async def awaited(task: Task) -> int:
        return work(task)

    worker.task(command)(awaited if is_async else work)
    with broker.working(worker), broker.sync_client() as client:
        task = client.create(command, {})
        broker.advance(minutes=10)
        result = client.wait(task.id)
        log = client.log(task.id)
        rest = client.log(task.id, after=60)
        two = client.log(task.id, after=3, limit=2)

    pages = [f"page {page}" for page in range(1, 31)]
    assert 30 == result.value
    assert [*pages, "the bank is closed", *pages] == [line.text for line in log.lines]
    assert [1] * 31 + [2] * 30 == [line.attempt for line in log.lines]
    assert (61, 0) == (log.written, log.dropped)
    assert ["page 30"] == [line.text for line in rest.lines]
    assert [4, 5] == [line.number for line in two.lines]
