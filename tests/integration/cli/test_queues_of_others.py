"""Queues of others: `verify` and `bench` leave their tasks alone, and name their workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from codeq_cluster.cli.main import main
from codeq_cluster.cli.work.verify_load import Verification, VerifyLoad
from codeq_cluster.client import Task, TaskRecord
from codeq_cluster.errors import CodeqError
from codeq_cluster.testing.broker import TOKEN, LocalBroker

PRODUCER, WORKER = "a-producer-and-no-more", "a-worker-and-no-more"
SHORT = ("--seconds", "10", "--in-flight", "8")
PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """Run a broker with two tokens that are not an admin's."""
    works = [f"codeq:{each}" for each in ("claim", "heartbeat", "abandon", "nack", "result")]
    worker = {"subject": "worker", "eventTypes": ["*"], "scopes": works}
    every = {"token": TOKEN, **worker, "scopes": [*works, "codeq:admin"]}
    auth = {
        "producer": [_static(every, {"token": PRODUCER, "subject": "producer"})],
        "worker": [_static(every, {"token": WORKER, **worker})],
    }
    directory = tmp_path_factory.mktemp("broker")
    with LocalBroker(directory, settings={"auth": auth}) as running:
        yield running


def _static(*tokens: dict[str, object]) -> dict[str, object]:
    return {"kind": "static", "tokens": list(tokens)}


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_queue_that_has_tasks_is_refused_and_left_alone(
    command: str, broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their last attempt is not lost, and the error says what to do."""
    queue = f"busy-{command}"
    with broker.sync_client() as client:
        other = client.create(queue, {"of": "others"}, max_attempts=1)
        code = main([command, "--queue", queue, *SHORT])
        left = client.task(other.id)

    assert 1 == code
    assert "has 1 tasks, which are not touched; name an empty queue" in capsys.readouterr().err
    assert ("PENDING", 0) == (left.status, left.attempts)


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_token_that_cannot_look_costs_a_single_attempt(
    command: str,
    broker: LocalBroker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker looks first, instead of all of them."""
    queue = f"unseen-{command}"
    monkeypatch.delenv("CODEQ_TOKEN")
    monkeypatch.setenv("CODEQ_PRODUCER_TOKEN", PRODUCER)
    monkeypatch.setenv("CODEQ_WORKER_TOKEN", WORKER)
    with broker.sync_client() as client:
        others = [client.create(queue, {"of": "others"}) for _ in range(5)]
        code = main([command, "--queue", queue, *SHORT])
        attempts = sum(client.task(each.id).attempts for each in others)

    assert (1, 1) == (code, attempts)
    assert "has tasks of others (" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "bench"])
def test_a_task_of_others_that_comes_meanwhile_goes_back(
    command: str, broker: LocalBroker, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends the run, and is not ended by it."""
    queue = f"joined-{command}"
    with ThreadPoolExecutor(1) as beside:
        joining = beside.submit(_join, broker, queue)
        code = main([command, "--queue", queue, *SHORT])
        other = joining.result()
    broker.advance(seconds=5)
    with broker.sync_client() as client:
        left = client.task(other.id)

    assert 1 == code
    assert f"has tasks of others ({other.id})" in capsys.readouterr().err
    assert "PENDING" == left.status


def _join(broker: LocalBroker, queue: str) -> TaskRecord:
    """Create a task once the command has created some."""
    until_s = time.monotonic() + PATIENCE_S
    with broker.sync_client() as client, broker.sync_operator() as operator:
        while not operator.tasks(command=queue).rows:
            assert time.monotonic() < until_s
        return client.create(queue, {"of": "others"})


async def test_a_worker_of_others_is_named(broker: LocalBroker) -> None:
    """What it does is not held against the cluster, nor told as slowness."""
    worker = broker.worker(name="theirs")
    worker.task("shared")(_echo)
    load = VerifyLoad(queue="shared", tasks=40, seconds=10, drain_s=3, in_flight=4)
    with broker.working(worker):
        async with broker.client() as client, broker.leases() as leases:
            verification = Verification([client], [leases], load, on_progress=lambda _: None)
            with pytest.raises(CodeqError, match=r"has workers of others \(theirs@.+\), which got"):
                await verification.run()


async def _echo(task: Task[str]) -> str:
    return task.payload
