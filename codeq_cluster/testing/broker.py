"""Broker: a real broker of one node inside a test's process, with a clock the test can advance.

It serves HTTP on loopback, keeps its tasks in RocksDB, and every write goes through its Raft log,
as in production. Only its clock differs. Public: programs that use codeq-cluster test with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Coroutine, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import yaml

from codeq_cluster.api.http.virtual_time import Fired, Upcoming
from codeq_cluster.auth.identity import WORKER_SCOPES, Role
from codeq_cluster.client import Client, Leases, Operator, SyncClient, SyncOperator, Worker
from codeq_cluster.config import load
from codeq_cluster.testing.ports import free_ports
from codeq_cluster.virtual_time.clock_stepper import ClockStepper
from codeq_cluster.virtual_time.movable_time import MovableLoop, MovableTime
from codeq_cluster.virtual_time.virtual_node import virtual_node

TOKEN: Final = "test-token"  # noqa: S105 - opens a broker that lives as long as a test
START_WITHIN_S: Final = 30.0

_T = TypeVar("_T")

_SCOPES = (*sorted(WORKER_SCOPES), Role.ADMIN.value, Role.OPERATOR.value)


class LocalBroker:
    """A broker of one node in a thread of this process; a context manager, used once.

    `advance` moves its clock. It stops at every instant at which a delayed task is due, a lease
    ends, a schedule fires, a key or queue may go on, a throttle ends or a callback is retried, and
    lets workers act. So a week of retries runs in order. Only the broker's clock moves; workers and
    tests keep the machine's.

    Attributes:
        url: Base URL of its node.
        token: Has every role: producer, worker for all commands, admin and operator.
    """

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        now: datetime | None = None,
        patience_s: float = 1.0,
    ) -> None:
        """Prepare a broker.

        Args:
            directory: Its files; empty, or those of an earlier broker, whose tasks it then has, and
                whose clock shows at least what it would show by now.
            settings: Keys of a configuration file, merged into its sections.
            now: What its clock shows at first, with a time zone; None for the machine's time.
            patience_s: How long `advance` waits at a stop for a slow handler.

        Raises:
            ConfigInvalid: A setting is unknown or out of range.
            ValueError: `now` has no time zone.
        """
        if now is not None and now.tzinfo is None:
            raise ValueError(f"now={now}: needs a time zone, such as tzinfo=UTC")
        port, link_port = free_ports(2)
        self.url = f"http://127.0.0.1:{port}"
        self.token = TOKEN
        directory.mkdir(parents=True, exist_ok=True)
        file = directory / "node.yaml"
        document = _document(directory / "data", self.url, port=port, link_port=link_port)
        file.write_text(yaml.safe_dump(_merged(document, settings or {})))
        self._settings = load(file=file).settings
        self._time = MovableTime(now)
        self._thread = threading.Thread(target=self._run, name="codeq broker", daemon=True)
        self._stepper: Future[ClockStepper] = Future()
        self._stop = asyncio.Event()
        self._workers: list[Worker] = []
        self._patience_s = patience_s

    def __enter__(self) -> Self:
        self._thread.start()
        self._stepper.result(START_WITHIN_S)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def now(self) -> datetime:
        """The broker's clock."""
        return self._time.now

    def advance(
        self,
        *,
        days: float = 0,
        hours: float = 0,
        minutes: float = 0,
        seconds: float = 0,
        until: str = "",
        only: Collection[str] | None = None,
    ) -> list[Fired]:
        """Advance the broker's clock, and return when everything due by then has happened.

        At each stop on the way workers can act. A handler that takes longer than `patience_s` stays
        running over the jump, and its lease may end. For a worker that was not made by `worker`,
        the wait is 50 ms without a change.

        Args:
            days: How far to advance, with the others.
            hours: The same.
            minutes: The same.
            seconds: The same.
            until: The id of a task at whose end to stop; empty for none.
            only: The ids of the schedules that fire meanwhile; the others are paused, and go on
                from then. None for all.

        Returns:
            The instants of schedules that have fired, in order.

        Raises:
            ValueError: The clock would stand still or run backwards.
            RuntimeError: There were 10,000 stops, the task has not ended by then, or there is no
                such schedule; or it is
                called in a coroutine and would block the workers of its loop; use `await
                asyncio.to_thread(broker.advance, days=7)`.
            TimeoutError: At one stop, workers did not come to rest within 30 s.
        """
        by = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        if by <= timedelta():
            raise ValueError(f"advance by {by}: must be more than nothing")
        return self._wait(self._stepper.result().advance(by, until=until, only=only))

    def upcoming(self) -> list[Upcoming]:
        """Return what `advance` would stop at now, the earliest first.

        Raises:
            RuntimeError: As for `advance`.
            TimeoutError: As for `settle`, which it calls.
        """
        return list(self._wait(self._stepper.result().settle()).due)

    def settle(self) -> None:
        """Return when workers have done everything they can now; the clock does not move.

        Raises:
            RuntimeError: As for `advance`.
            TimeoutError: They did not come to rest within 30 s.
        """
        self._wait(self._stepper.result().settle())

    def client(self, **options: Any) -> Client:
        """Return a client of the broker; `options` as for `Client`."""
        return Client([self.url], token=self.token, **options)

    def sync_client(self, **options: Any) -> SyncClient:
        """Return a client for a test without an event loop."""
        return SyncClient(self.client(**options))

    def worker(self, **options: Any) -> Worker:
        """Return a worker of the broker; `options` as for `Worker`, with a grace of a second.

        `advance` waits for the work this worker has yet to do; for other workers it only sees
        changes.
        """
        worker = Worker([self.url], token=self.token, **{"grace_s": 1.0, **options})
        self._workers.append(worker)
        return worker

    def leases(self, **options: Any) -> Leases:
        """Return the requests of a hand-written worker loop; `options` as for `Leases`."""
        return Leases([self.url], token=self.token, **options)

    @contextmanager
    def working(self, worker: Worker) -> Iterator[Worker]:
        """Run a worker in a thread within the block, and stop it at the end.

        Raises:
            CodeqError: The worker could not go on; see `Worker.serve`.
        """
        with ThreadPoolExecutor(1, thread_name_prefix="codeq worker") as threads:
            served = threads.submit(asyncio.run, worker.serve())
            try:
                yield worker
            finally:
                worker.stop()
            served.result()

    def operator(self, **options: Any) -> Operator:
        """Return an operator of the broker; `options` as for `Operator`."""
        return Operator([self.url], token=self.token, **options)

    def sync_operator(self, **options: Any) -> SyncOperator:
        """Return an operator for a test without an event loop."""
        return SyncOperator(self.operator(**options))

    def _wait(self, waiting: Coroutine[Any, Any, _T]) -> _T:
        if _within_a_loop():
            waiting.close()
            raise RuntimeError(
                "time is moved from outside of an event loop, where workers can run meanwhile: "
                "await asyncio.to_thread(broker.advance, days=7)"
            )
        return asyncio.run_coroutine_threadsafe(waiting, self._loop).result()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: MovableLoop(self._time)) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._stepper.done():
                raise
            self._stepper.set_exception(error)  # Raised again in the thread that enters the broker.

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with virtual_node(
            self._settings,
            self._time,
            token=self.token,
            workers=self._workers,
            patience_s=self._patience_s,
        ) as stepper:
            self._stepper.set_result(stepper)
            await self._stop.wait()


def _within_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _document(data: Path, url: str, *, port: int, link_port: int) -> dict[str, object]:
    """Return the configuration of a node that starts and stops fast."""
    token = {"token": TOKEN, "subject": "test", "scopes": list(_SCOPES), "eventTypes": ["*"]}
    provider = [{"kind": "static", "tokens": [token]}]
    return {
        "port": port,
        "host": "127.0.0.1",
        "clusterId": "test",
        "clusterSecret": "of a cluster without other nodes, on loopback",
        "durability": "os",
        "raft": {
            "selfId": "n1",
            "peers": {"n1": f"127.0.0.1:{link_port}"},
            "peerHTTPAddrs": {"n1": url},
            "heartbeatMS": 20,
            "electionMS": 60,
            "fallbackMS": 60,
        },
        "persistenceConfig": {"path": str(data), "numShards": 1},
        "store": {"blockCacheBytes": 2**20, "memtableBytes": 2**20},
        "limits": {"drainMs": 0},
        "webhooks": {"allowPrivate": True},
        "webhookHmacSecret": "of the callbacks of a test",
        "auth": {"tenantFallback": "default", "producer": provider, "worker": provider},
    }


def _merged(document: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    merged = dict(document)
    for key, value in settings.items():
        section = merged.get(key)
        both = isinstance(section, dict) and isinstance(value, dict)
        merged[key] = {**section, **value} if both else value  # type: ignore[dict-item]
    return merged
