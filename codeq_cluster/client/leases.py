"""Leases: the requests of workers; each request about a task carries its lease token."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Raw, Struct

from codeq_cluster.client.connection import BASE, Connection, as_json, part, query
from codeq_cluster.client.records import CancelRecord, StepRecord, TaskRecord
from codeq_cluster.client.refusals import TOO_EARLY, Refused
from codeq_cluster.client.scheduling import Applied, ScheduleLike, set_of
from codeq_cluster.client.transport import Request

R = TypeVar("R")

_DEAD = "dlq"
_NOTHING: Mapping[str, Any] = {}


class _Claimed(Struct):
    tasks: tuple[TaskRecord, ...] = ()


class _Returned(Struct):
    status: str = ""
    next: tuple[Raw, ...] = ()


class KeptLease(Struct, frozen=True):
    """What became of one lease of a batch.

    Attributes:
        error: Why it is not extended; empty if it is.
        code: Of the error.
        cancel: Set if the task is to end.
        retryable: Whether the same heartbeat may succeed later.
        detail: What is wrong with the heartbeat, where `error` does not say.
    """

    error: str = ""
    code: str = ""
    cancel: CancelRecord | None = None
    retryable: bool = False
    detail: str = ""


class _Kept(Struct):
    leases: tuple[KeptLease, ...] = ()


class SubmittedResult(Struct, frozen=True):
    """What became of one result of a batch.

    Attributes:
        error: Why it was not taken; empty if it was.
        code: Of the error.
        retryable: Whether the same result may be taken later.
        detail: What is wrong with the result, where `error` does not say.
    """

    error: str = ""
    code: str = ""
    retryable: bool = False
    detail: str = ""


class _Submitted(Struct):
    results: tuple[SubmittedResult, ...] = ()


class _Extended(Struct):
    cancel: CancelRecord | None = None


class _Stepped(Struct):
    step: StepRecord


class Leases(Connection):
    """The routes of workers, for a hand-written loop; each raises as `Connection._call` does.

    A request that ends or extends a lease can be repeated: its lease token lets it take effect only
    once.
    """

    async def claim(
        self,
        commands: Sequence[str],
        *,
        count: int = 1,
        lease_s: int,
        wait_s: int = 0,
        within_s: float | None = None,
        worker_name: str = "",
    ) -> Sequence[TaskRecord]:
        """Claim tasks; if the answer is lost, the tasks come back when their leases end.

        Args:
            commands: The commands to claim; empty for every command the token allows.
            count: Claim at most so many, from 1 to the broker's bound, 100 by default.
            lease_s: How long the leases last without a heartbeat.
            wait_s: How long to wait for the first task, 0 to 30.
            within_s: The deadline of this call, in place of the connection's.
            worker_name: This worker among those of the token, for people.
        """
        asked = {
            "commands": list(commands),
            "count": count,
            "leaseSeconds": lease_s,
            "waitSeconds": wait_s,
            "workerName": worker_name,
        }
        request = Request(
            method="POST", path=f"{BASE}/tasks/claim/batch", body=as_json(asked), wait_s=wait_s
        )
        return (await self._call(request, _Claimed, within_s=within_s)).tasks

    async def heartbeat(
        self,
        task: TaskRecord,
        *,
        extend_s: int,
        report: Mapping[str, object] = _NOTHING,
        within_s: float | None = None,
    ) -> CancelRecord | None:
        """Extend a lease to `extend_s` seconds from now; report what `report` says.

        Returns:
            What a cancel with a grace has said of the task; None if it may go on.
        """
        fields = {"extendSeconds": extend_s, **report}
        return (await self._on(task, "heartbeat", fields, within_s, _Extended)).cancel

    async def heartbeats(
        self,
        held: Sequence[tuple[TaskRecord, int]],
        *,
        reports: Mapping[str, Mapping[str, object]] = _NOTHING,
        known: Container[str] = (),
        wait_s: int = 0,
        within_s: float | None = None,
    ) -> Sequence[KeptLease]:
        """Extend many leases, each to so many seconds from now, and wait for the loss of one.

        Args:
            held: At most 1,000; with 0 seconds a lease keeps its end.
            reports: By task id, what else to say of tasks whose leases are extended.
            known: Ids of the tasks that are to end, as the worker has heard already.
            wait_s: How long to wait, 0 to 30; a loss ends the wait, and so does an error, and a
                task that is to end. With a wait, a request that may have had an effect is not
                repeated: the repetition would wait once more.
            within_s: The deadline of this call, in place of the connection's.

        Returns:
            What became of each lease, in their order.
        """
        leases = [
            {"id": task.id, "leaseToken": task.lease_token}
            | ({"extendSeconds": extend_s} if extend_s else {"watchOnly": True})
            | ({"knowsCancel": True} if task.id in known else {})
            | dict(reports.get(task.id, _NOTHING))
            for task, extend_s in held
        ]
        path = f"{BASE}/tasks/batch/heartbeats"
        request = Request(
            method="POST",
            path=path,
            body=as_json({"leases": leases, "waitSeconds": wait_s}),
            wait_s=wait_s,
            repeatable=not wait_s,
        )
        kept = (await self._call(request, _Kept, within_s=within_s)).leases
        if len(kept) != len(held):
            raise Refused(f"{path}: {len(kept)} answers for {len(held)} leases", status=200)
        return kept

    async def complete(
        self,
        task: TaskRecord,
        result: bytes,
        *,
        following: Sequence[bytes] = (),
        within_s: float | None = None,
    ) -> None:
        """End a task with a result, JSON text that is not null, and create its follow-ups."""
        fields = {"status": "COMPLETED", "result": Raw(result), **_next(following)}
        await self._end(task, fields, following, within_s)

    async def complete_many(
        self, ended: Sequence[tuple[TaskRecord, bytes]], *, within_s: float | None = None
    ) -> Sequence[SubmittedResult]:
        """End tasks with results in one request, independently of each other.

        Args:
            ended: Each task with its result, as `complete` takes it; from 1 to the broker's bound,
                100 by default.
            within_s: The deadline of this call, in place of the connection's.

        Returns:
            What became of each result, in their order.
        """
        results = [
            {
                "taskId": task.id,
                "leaseToken": task.lease_token,
                "status": "COMPLETED",
                "result": Raw(result),
            }
            for task, result in ended
        ]
        path = f"{BASE}/tasks/batch/results"
        request = Request(method="POST", path=path, body=as_json({"results": results}))
        taken = (await self._call(request, _Submitted, within_s=within_s)).results
        if len(taken) != len(ended):
            raise Refused(f"{path}: {len(taken)} answers for {len(ended)} results", status=200)
        return taken

    async def fail(
        self,
        task: TaskRecord,
        error: str,
        *,
        following: Sequence[bytes] = (),
        within_s: float | None = None,
    ) -> None:
        """End a task with an error; it is not retried. Create its follow-ups."""
        fields = {"status": "FAILED", "error": _sent(error), **_next(following)}
        await self._end(task, fields, following, within_s)

    async def record_step(
        self,
        task: TaskRecord,
        name: str,
        *,
        value: Raw,
        position: int = 0,
        extend_s: int,
        within_s: float | None = None,
    ) -> StepRecord:
        """Record what a step has returned, JSON, and extend the lease as a heartbeat does."""
        fields = {"name": name, "value": value, "position": position, "extendSeconds": extend_s}
        return (await self._on(task, "steps", fields, within_s, _Stepped)).step

    async def park(
        self,
        task: TaskRecord,
        step: str,
        *,
        position: int = 0,
        extend_s: int,
        within_s: float | None = None,
        **wait: object,
    ) -> StepRecord:
        """Return a task until an instant or a signal; if one has come, the lease goes on.

        Args:
            task: As claimed.
            step: The name of the wait; it is recorded as a step.
            position: Its place among the steps of the function.
            extend_s: Of the lease, if it goes on.
            within_s: The deadline of this call, in place of the connection's.
            wait: `until`, `forSeconds`, `signal` and `keepKey`, as the API has them.
        """
        fields = {"step": step, "position": position, "extendSeconds": extend_s, **wait}
        return (await self._on(task, "park", fields, within_s, _Stepped)).step

    async def nack(
        self,
        task: TaskRecord,
        reason: str,
        *,
        delay_s: int = 0,
        hold: str = "",
        within_s: float | None = None,
    ) -> bool:
        """Return a task after a delay (0: the broker's back-off); True if it died of it.

        With `hold`, `"key"`, `"queue"` or `"limit"`, all tasks of its key, its queue, or the queues
        that share its limit wait so long. Before the cluster is upgraded that is refused at once,
        with the code `upgrade-under-way`.
        """
        fields: dict[str, object] = {"reason": _sent(reason)}
        if delay_s > 0:
            fields["delaySeconds"] = delay_s
        if not hold:
            return (await self._on(task, "nack", fields, within_s, _Returned)).status == _DEAD
        fields["hold"] = hold
        held = await self._on(task, "nack", fields, within_s, _Returned, final=TOO_EARLY)
        return held.status == _DEAD

    async def reject(
        self, task: TaskRecord, reason: str = "", *, within_s: float | None = None
    ) -> None:
        """Make a task a dead letter, whatever attempts it has left: no attempt can finish it.

        Before the cluster is upgraded that is refused at once, with the code `upgrade-under-way`.
        """
        fields = {"reason": _sent(reason)}
        await self._on(task, "reject", fields, within_s, _Returned, final=TOO_EARLY)

    async def abandon(self, task: TaskRecord, *, within_s: float | None = None) -> bool:
        """Return a task at once; True if this was its last attempt and it died."""
        return (await self._on(task, "abandon", {}, within_s, _Returned)).status == _DEAD

    async def apply_schedules(
        self,
        owner: str,
        schedules: Iterable[ScheduleLike],
        *,
        revision: int = 0,
        dry_run: bool = False,
    ) -> Applied:
        """Make an owner's schedules exactly these, as `Operator.apply_schedules` does.

        The token needs the scope `codeq:schedule`, and must allow every command of the set, also of
        the schedules that go.
        """
        path = f"{BASE}/workers/schedules{query(owner=owner)}"
        body = set_of(schedules, revision=revision, dry_run=dry_run)
        return await self._changed("PUT", path, body, of=Applied)

    async def _on(
        self,
        task: TaskRecord,
        verb: str,
        fields: Mapping[str, object],
        within_s: float | None,
        answer: type[R],
        *,
        final: str = "",
    ) -> R:
        request = Request(
            method="POST",
            path=f"{BASE}/tasks/{part(task.id)}/{verb}",
            body=as_json({**fields, "leaseToken": task.lease_token}),
            final=final,
        )
        return await self._call(request, answer, within_s=within_s)

    async def _end(
        self,
        task: TaskRecord,
        fields: Mapping[str, object],
        following: Sequence[bytes],
        within_s: float | None,
    ) -> None:
        answer = await self._on(task, "result", fields, within_s, _Returned)
        if len(answer.next) != len(following):
            # A node of 0.1.0 ignores what it does not know.
            raise Refused(
                f"task {task.id} has ended without its follow-ups: a node of an earlier release "
                "has answered; upgrade every node, then run codeq-cluster cluster upgrade",
                status=200,
                code=TOO_EARLY,
            )


def _next(following: Sequence[bytes]) -> dict[str, object]:
    return {"next": list(map(Raw, following))} if following else {}


def _sent(text: str) -> str:
    """Return a text without the halves of characters that JSON does not take."""
    return text.encode(errors="replace").decode()
