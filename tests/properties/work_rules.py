"""Work: the requests of producers and workers, and the passing of time."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec.structs import replace

from codeq_cluster.core.handling import Handling
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Heartbeat,
    Staging,
    Submit,
)
from codeq_cluster.core.reject import Reject
from codeq_cluster.core.task import State

from .machine import (
    Caller,
    Machine,
    callers,
    commands,
    handlings,
    indexes,
    spans_ms,
    tenants,
    workers,
)

uploads = st.sampled_from(["upload-1", "upload-2", "upload-3"])
hooks = st.sampled_from(["", "https://hooks.example/", "https://hooks.example/"])


class Work(Machine):
    """The life of tasks."""

    @rule(
        many=st.integers(1, 3),
        tenant=tenants,
        command=commands,
        payload=st.sampled_from(['"one"', '"two"']),
        priority=st.sampled_from([0, 5, 9]),
        max_attempts=st.integers(0, 3),
        key=st.sampled_from(["", "", "", "", "k", "k/2"]),
        delay_ms=st.sampled_from([0, 0, 0, 0, 5, 30]),
        run_at_ms=st.sampled_from([0, 0, 0, 0, 40]),
        ttl_ms=st.sampled_from([0, 0, 0, 10, 30]),
        webhook=hooks,
        handling=handlings,
    )
    def create(
        self,
        *,
        many: int,
        tenant: str,
        command: str,
        payload: str,
        priority: int,
        max_attempts: int,
        key: str,
        delay_ms: int,
        run_at_ms: int,
        ttl_ms: int,
        webhook: str,
        handling: Handling | None,
    ) -> None:
        """Create a few equal tasks; with a key, the second create is a replay."""
        for _ in range(many):
            operation = Create(
                id=f"task-{next(self.names)}",
                tenant=tenant,
                command=command,
                payload=payload,
                priority=priority,
                max_attempts=max_attempts,
                idempotency_key=key,
                fingerprint=payload,
                run_at_ms=run_at_ms,
                delay_ms=delay_ms,
                ttl_ms=ttl_ms,
                webhook=webhook,
                handling=handling,
            )
            self.ask(operation)

    @rule(
        tenant=tenants,
        worker=workers,
        wanted=st.one_of(st.just([]), st.lists(commands, max_size=3)),
        most=st.integers(1, 4),
        lease_ms=spans_ms,
        worker_name=st.sampled_from(["", "host:1"]),
    )
    def claim(
        self,
        *,
        tenant: str,
        worker: str,
        wanted: list[str],
        most: int,
        lease_ms: int,
        worker_name: str,
    ) -> None:
        """Claim from some queues, or from all."""
        self.ask(
            Claim(
                request=self.request(),
                tenant=tenant,
                worker=worker,
                commands=tuple(wanted),
                count=most,
                lease_ms=lease_ms,
                worker_name=worker_name,
            )
        )

    @rule(
        tenant=tenants,
        command=commands,
        webhook=hooks,
        uploads=st.sets(uploads, max_size=3),
        kept=st.sets(uploads, max_size=1),
        end=st.sampled_from(["submit", "submit", "fail", "nack", "abandon", "cancel", "hold"]),
        handling=handlings,
    )
    def work_off(
        self,
        *,
        tenant: str,
        command: str,
        webhook: str,
        uploads: set[str],
        kept: set[str],
        end: str,
        handling: Handling | None,
    ) -> None:
        """Take a task through its whole life in one step, so that histories get beyond it."""
        self.create(
            many=1,
            tenant=tenant,
            command=command,
            payload='"one"',
            priority=9,
            max_attempts=1,
            key="",
            delay_ms=0,
            run_at_ms=0,
            ttl_ms=0,
            webhook=webhook,
            handling=handling,
        )
        self.claim(
            tenant=tenant, worker="ann", wanted=[command], most=1, lease_ms=20, worker_name=""
        )
        held = {"tenant": tenant, "worker": "ann", "token": 0}
        for task_id in self.view.claimed_under(self.last_request):
            for upload in sorted(uploads):
                self.ask(Staging(id=task_id, upload=upload, **held))
            again = {"id": task_id, "request": self.request()}
            match end:
                case "submit":
                    refers = tuple(sorted(kept & uploads))
                    self.ask(Submit(status="COMPLETED", body="{}", uploads=refers, **again, **held))
                case "fail":
                    self.ask(Submit(status="FAILED", error="broken", **again, **held))
                case "nack":
                    self.ask(Nack(reason="busy", **again, **held))
                case "abandon":
                    self.ask(Abandon(**again, **held))
                case "cancel":
                    self.ask(Cancel(tenant=tenant, **again))
                case "hold":
                    self.ask(Heartbeat(id=task_id, extend_ms=40, **held))

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, extend_ms=spans_ms)
    def heartbeat(self, caller: Caller, extend_ms: int) -> None:
        """Extend a lease."""
        task, worker, token = self.meet(caller)
        self.ask(
            Heartbeat(
                id=task.id, tenant=task.tenant, worker=worker, token=token, extend_ms=extend_ms
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, undelivered=st.booleans())
    def abandon(self, caller: Caller, undelivered: bool) -> None:
        """Abandon a task, or undo its claim."""
        task, worker, token = self.meet(caller)
        self.ask(
            Abandon(
                id=task.id,
                tenant=task.tenant,
                worker=worker,
                token=token,
                request=self.request(),
                undelivered=undelivered and token > 0,
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(
        caller=callers,
        delay_ms=st.sampled_from([-1, 0, 0, 7, 100]),
        reason=st.sampled_from(["", "busy"]),
        rejects=st.sampled_from([False, False, False, True]),
    )
    def nack(self, caller: Caller, delay_ms: int, reason: str, rejects: bool) -> None:
        """Nack a task, sometimes for good."""
        task, worker, token = self.meet(caller)
        held = {"id": task.id, "tenant": task.tenant, "worker": worker, "token": token}
        said = {"request": self.request(), "reason": reason}
        self.ask(Reject(**held, **said) if rejects else Nack(**held, **said, delay_ms=delay_ms))

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, upload=uploads)
    def stage(self, caller: Caller, upload: str) -> None:
        """Announce artifacts."""
        task, worker, token = self.meet(caller)
        self.ask(
            Staging(
                id=task.id,
                tenant=task.tenant,
                worker=worker,
                token=token,
                upload=upload,
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(caller=callers, done=st.booleans(), uploads=st.sets(uploads, max_size=2))
    def submit(self, caller: Caller, done: bool, uploads: set[str]) -> None:
        """End a task, with staged artifacts or with some that may never have been staged."""
        self.ask(replace(self.result(caller, done=done), uploads=tuple(sorted(uploads))))

    def result(self, caller: Caller, *, done: bool) -> Submit:
        """Return a caller's result of a task, under a request of its own."""
        task, worker, token = self.meet(caller)
        return Submit(
            id=task.id,
            tenant=task.tenant,
            worker=worker,
            token=token,
            request=self.request(),
            status="COMPLETED" if done else "FAILED",
            body="{}" if done else "",
            error="" if done else "broken",
        )

    @precondition(lambda self: self.view.tasks)
    @rule(index=indexes, stranger=st.booleans(), held=st.booleans())
    def cancel(self, index: int, stranger: bool, held: bool) -> None:
        """Cancel a task, or try to from another tenant."""
        task = self.pick(index, prefer=State.LEASED if held else State.DEAD)
        tenant = "stranger" if stranger else task.tenant
        self.ask(Cancel(request=self.request(), id=task.id, tenant=tenant))

    @rule(
        passed_ms=st.sampled_from([0, 1, 3, 10, 40]),
        most=st.integers(1, 5),
        leases_too=st.booleans(),
    )
    def let_time_pass(self, passed_ms: int, most: int, leases_too: bool) -> None:
        """Move the clock, and let time act on some of the due tasks and items."""
        self.view.now_ms += passed_ms
        self.model.pass_ms(passed_ms)
        self.ask(Advance(count=most, leases_too=leases_too))
