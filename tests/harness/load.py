"""Load: producers and workers over HTTP that record every call for the accounting."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from tests.harness.accounting import (
    FinalTask,
    RecordedCall,
    RecordedOperation,
    RecordedOutcome,
    repair_seconds,
)
from tests.harness.client import ClientAnswer, RecordingClient, content_of
from tests.harness.cluster import LocalCluster
from tests.harness.http import ANSWER_WITHIN_S
from tests.harness.waiting import until

CREATES_IN_FLIGHT_MAX = 1000
# Bounds tasks that are acknowledged and not finished. A broker that is too slow then shows as shed
# creates instead of an endless queue.
BACKLOG_MAX = 1000
TRIES_MAX = 40
RETRY_PAUSE_S = 0.05
CLAIM_WAIT_S = 1
READS_IN_FLIGHT = 48
# Longer than the last claims and results take on a healthy cluster.
SETTLE_S = 2.0

_encode = msgspec.json.encode


class Load:
    """Open-loop producers and a pool of workers, running while the context is entered.

    Every create has a unique payload and an idempotency key, and is retried through another node
    until it is acknowledged. Every claimed task is finished with a content unique to that lease.
    Nodes are asked in turn, except those given up by `avoid`.

    Args:
        urls: Base URL by node id.
        producer_token: For the producers, and for the reads at the end.
        worker_tokens: One worker each, by name; their number is the claims in flight.
        command: Of every task; must be new for each run, since it identifies the run's tasks.
        cycles_per_s: Creates are planned at this rate, independent of the answers. With too many
            unanswered or unfinished ones, a planned create is not sent but counted as `shed`.
        lease_s: Of every claim. A task whose claim's answer was lost waits this long.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        *,
        producer_token: str,
        worker_tokens: Mapping[str, str],
        command: str,
        cycles_per_s: float,
        lease_s: int = 8,
    ) -> None:
        self.calls: list[RecordedCall] = []
        self.planned = 0
        self.shed = 0
        self._client = RecordingClient(urls, timeout_s=ANSWER_WITHIN_S)
        self._standing = list(urls)
        self._any_standing = asyncio.Event()
        self._any_standing.set()
        self._faults = dict.fromkeys(urls, 0)
        self._turn = itertools.count()
        self._producer_token = producer_token
        self._worker_tokens = dict(worker_tokens)
        self._command = command
        self._cycles_per_s = cycles_per_s
        self._lease_s = lease_s
        self._creating = 0
        self._unfinished: set[str] = set()
        self._finished: set[str] = set()
        self._enough = asyncio.Event()
        self._settled = asyncio.Event()
        self._over = False
        self._resources = AsyncExitStack()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        """Start producing and working."""
        await self._resources.__aenter__()
        await self._resources.enter_async_context(self._client)
        group = await self._resources.enter_async_context(asyncio.TaskGroup())
        self._running = [
            group.create_task(self._produce(group)),
            *(group.create_task(self._work(name)) for name in self._worker_tokens),
        ]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything that still runs."""
        self._enough.set()
        self._over = True
        for task in self._running:
            task.cancel()
        await self._resources.__aexit__(kind, error, trace)

    @property
    def begun(self) -> int:
        """Creates that were planned and not shed."""
        return self.planned - self.shed

    def avoid(self, node: str) -> None:
        """Stop asking this node; its calls in flight are excused.

        With no node left, producers and workers wait until one is allowed again.
        """
        self._standing.remove(node)
        self._faults[node] += 1
        if not self._standing:
            self._any_standing.clear()

    def allow(self, node: str) -> None:
        """Ask this node again."""
        self._standing.append(node)
        self._any_standing.set()

    async def drain(self, *, within_s: float) -> bool:
        """Stop producing and wait until every acknowledged task is finished.

        Returns:
            Whether that happened in time; unfinished tasks show up in the accounting.
        """
        self._enough.set()
        self._check_settled()
        try:
            async with asyncio.timeout(within_s):
                while not await self._settles():
                    await self._read_unfinished()
        except TimeoutError:
            return False
        finally:
            self._over = True
        # A worker may be about to finish a task that another one has finished meanwhile: let it
        # try.
        await asyncio.gather(*self._running)
        return True

    async def final_tasks(self) -> dict[str, FinalTask]:
        """Read every acknowledged task through the running nodes."""
        ids = sorted(
            {
                call.task_id
                for call in self.calls
                if call.operation is RecordedOperation.CREATE and call.outcome is RecordedOutcome.OK
            }
        )
        found: dict[str, FinalTask] = {}
        waiting = iter(ids)

        async def read() -> None:
            for task_id in waiting:
                found[task_id] = await self._final(task_id)

        await asyncio.gather(*(read() for _ in range(READS_IN_FLIGHT)))
        return found

    async def _settles(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(SETTLE_S):
                await self._settled.wait()
        return self._settled.is_set()

    async def _read_unfinished(self) -> None:
        """Find tasks whose result was stored although its answer was lost."""
        for task_id in sorted(self._unfinished)[:READS_IN_FLIGHT]:
            if (await self._final(task_id)).status == "COMPLETED":
                self._finish_once(task_id)

    def _finish_once(self, task_id: str) -> None:
        self._finished.add(task_id)
        self._unfinished.discard(task_id)
        self._check_settled()

    # Producers.

    async def _produce(self, group: asyncio.TaskGroup) -> None:
        begun_s = time.monotonic()
        for n in itertools.count():
            wait_s = begun_s + n / self._cycles_per_s - time.monotonic()
            if wait_s > 0:
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await self._enough.wait()
            if self._enough.is_set():
                return
            self.planned += 1
            if self._creating >= CREATES_IN_FLIGHT_MAX or len(self._unfinished) >= BACKLOG_MAX:
                self.shed += 1
                continue
            self._creating += 1
            group.create_task(self._create(f"{self._command}-{n}"))

    async def _create(self, key: str) -> None:
        payload = {"key": key}
        body = {"command": self._command, "payload": payload, "idempotencyKey": key}
        try:
            for _ in range(TRIES_MAX):
                node, faults, started_s = await self._pick()
                answer = await self._client.call("POST", node, "/tasks", self._producer_token, body)
                task = answer.body if answer.outcome is RecordedOutcome.OK else {}
                self._record(
                    RecordedOperation.CREATE,
                    answer,
                    node=node,
                    excused=self._excused(node, faults),
                    started_s=started_s,
                    key=key,
                    task_id=task.get("id", ""),
                    content=_encode(payload).decode(),
                    shard=task.get("shard", -1),
                )
                if answer.outcome is RecordedOutcome.OK:
                    if task["id"] not in self._finished:
                        self._unfinished.add(task["id"])
                    return
                await asyncio.sleep(RETRY_PAUSE_S)
        finally:
            self._creating -= 1
            self._check_settled()

    # Workers.

    async def _work(self, name: str) -> None:
        token = self._worker_tokens[name]
        body = {
            "commands": [self._command],
            "leaseSeconds": self._lease_s,
            "waitSeconds": CLAIM_WAIT_S,
        }
        while not self._over:
            node, faults, started_s = await self._pick()
            answer = await self._client.call("POST", node, "/tasks/claim", token, body)
            task = answer.body if answer.outcome is RecordedOutcome.OK and answer.body else {}
            self._record(
                RecordedOperation.CLAIM,
                answer,
                node=node,
                excused=self._excused(node, faults),
                started_s=started_s,
                key=_key(task.get("payload", "")),
                task_id=task.get("id", ""),
                worker=name,
                content=task.get("payload", ""),
                shard=task.get("shard", -1),
            )
            if task:
                await self._finish(name, token, task, lease_end_s=started_s + self._lease_s)
            elif answer.outcome is not RecordedOutcome.OK:
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _finish(
        self, name: str, token: str, task: Mapping[str, Any], *, lease_end_s: float
    ) -> None:
        result = {"by": name, "lease": task["leaseToken"], "of": task["id"]}
        body = {"status": "COMPLETED", "result": result, "leaseToken": task["leaseToken"]}
        path = f"/tasks/{task['id']}/result"
        for _ in range(TRIES_MAX):
            node, faults, started_s = await self._pick()
            answer = await self._client.call("POST", node, path, token, body)
            # After its lease has ended, a worker may be refused because another one has the task.
            late = time.monotonic() > lease_end_s
            self._record(
                RecordedOperation.RESULT,
                answer,
                node=node,
                excused=late or self._excused(node, faults),
                started_s=started_s,
                key=_key(task["payload"]),
                task_id=task["id"],
                worker=name,
                content=content_of(result),
                shard=task.get("shard", -1),
            )
            if answer.outcome is RecordedOutcome.OK:
                self._finish_once(task["id"])
                return
            if late or 400 <= answer.status < 500:
                return
            await asyncio.sleep(RETRY_PAUSE_S)

    # Both.

    async def _pick(self) -> tuple[str, int, float]:
        await self._any_standing.wait()
        node = self._standing[next(self._turn) % len(self._standing)]
        return node, self._faults[node], time.monotonic()

    def _excused(self, node: str, faults: int) -> bool:
        return self._faults[node] != faults

    def _record(
        self,
        operation: RecordedOperation,
        answer: ClientAnswer,
        *,
        node: str,
        excused: bool,
        started_s: float,
        key: str,
        task_id: str,
        content: str,
        shard: int,
        worker: str = "",
    ) -> None:
        self.calls.append(
            RecordedCall(
                operation=operation,
                node=node,
                key=key,
                task_id=task_id,
                worker=worker,
                content=content,
                started_s=started_s,
                ended_s=time.monotonic(),
                outcome=answer.outcome,
                status=answer.status,
                detail=answer.detail,
                excused=excused,
                shard=shard,
            )
        )

    def _check_settled(self) -> None:
        if self._enough.is_set() and not self._creating and not self._unfinished:
            self._settled.set()

    async def _final(self, task_id: str) -> FinalTask:
        result = await self._read(f"/tasks/{task_id}/result")
        if result.outcome is RecordedOutcome.OK:
            return FinalTask(
                status=result.body["task"]["status"],
                content=content_of(result.body["result"].get("result")),
            )
        task = await self._read(f"/tasks/{task_id}")
        status = task.body["status"] if task.outcome is RecordedOutcome.OK else ""
        return FinalTask(status=status, content="")

    async def _read(self, path: str) -> ClientAnswer:
        for _ in range(TRIES_MAX):
            node, _, _ = await self._pick()
            answer = await self._client.call("GET", node, path, self._producer_token)
            if answer.outcome is RecordedOutcome.OK or answer.status == 404:
                return answer
            await asyncio.sleep(RETRY_PAUSE_S)
        return answer


async def outlived(load: Load, cluster: LocalCluster, shard: int, *, within_s: float) -> float:
    """Kill the leader of a shard under load, with the load kept to other nodes, and restart it.

    Returns:
        Seconds from the kill to the first acknowledged create on the shard that was sent after it.

    Raises:
        ClusterError: There was none in time, or the node did not come back.
    """
    victim = await cluster.leader_of(shard)
    load.avoid(victim)
    mark, struck_s = len(load.calls), time.monotonic()
    await cluster.kill(victim)

    async def repaired() -> float | None:
        return repair_seconds(load.calls[mark:], struck_s=struck_s, shard=shard)

    what = f"a write on shard {shard} after the death of {victim}"
    seconds = await until(repaired, within_s=within_s, what=what)
    cluster.start(victim)
    await cluster.wait_ready([victim])
    load.allow(victim)
    return seconds


def _key(payload: str) -> str:
    """Return the key in a payload, empty for a payload of somebody else."""
    try:
        value = msgspec.json.decode(payload or "null")
    except msgspec.DecodeError:
        return ""
    return str(value.get("key", "")) if isinstance(value, dict) else ""


def workers(tokens: Mapping[str, str], count: int) -> dict[str, str]:
    """Return the first `count` of `tokens`, by name."""
    return dict(itertools.islice(tokens.items(), count))


def answer_seconds(calls: Sequence[RecordedCall], operation: RecordedOperation) -> list[float]:
    """Return the durations of the successful calls of one operation."""
    return [
        call.ended_s - call.started_s
        for call in calls
        if call.operation is operation and call.outcome is RecordedOutcome.OK
    ]
