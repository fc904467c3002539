"""Fast reader: which requests of the SDK are read without the library."""

from __future__ import annotations

import pytest

from codeq_cluster.api.http.whole_requests import Whole, WholeRoutes
from codeq_cluster.client import Task, Worker
from codeq_cluster.testing.broker import LocalBroker

_TASKS = 20


def test_nearly_every_request_of_producers_and_workers_takes_the_fast_reader(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creates, claims and results do, on connections that are kept."""
    read, found = WholeRoutes.read, []

    def counted(routes: WholeRoutes[object], data: bytes) -> tuple[object, Whole] | None:
        found.append(read(routes, data))
        return found[-1]

    monkeypatch.setattr(WholeRoutes, "read", counted)
    with LocalBroker(tmp_path_factory.mktemp("broker")) as broker:
        worker = Worker([broker.url], token=broker.token)

        @worker.task("double")
        async def double(task: Task[int]) -> int:
            return 2 * task.payload

        with broker.sync_client() as client:
            for number in range(_TASKS):
                client.create("double", number)
        worker.run(tasks_max=_TASKS)
    whole = sum(each is not None for each in found)

    assert whole >= 2 * _TASKS
    assert whole >= 0.8 * len(found)
