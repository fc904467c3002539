"""Operators: their actions on queues and on ended tasks."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from codeq_cluster.core.handling import Handling
from codeq_cluster.core.items import Delivery
from codeq_cluster.core.operations import (
    Delete,
    DeleteTopic,
    PauseQueue,
    Purge,
    PutTopic,
    Record,
    Replay,
    Requeue,
    ResumeQueue,
    Revise,
    RotateWebhookKey,
    UndoRequeue,
)
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State

from .machine import Machine, commands, handlings, indexes, tenants

some = st.lists(indexes, min_size=1, max_size=3)


class Operators(Machine):
    """Topics, pauses, purges, dead letters, dead deliveries, records."""

    def __init__(self) -> None:
        super().__init__()
        self.requeues: list[str] = []

    @rule(
        tenant=tenants,
        name=commands,
        tiers=st.sampled_from([(), (), (0, 5), (5, 9), (0, 10)]),
        max_attempts=st.integers(0, 2),
        dead_letter=st.sampled_from(["", "Graves", "scan"]),
        retention_s=st.sampled_from([0, 0, 1]),
        max_consumers=st.sampled_from([0, 1, 2]),
        weight=st.sampled_from([1, 2, 7]),
        handling=handlings,
    )
    def put_topic(
        self,
        *,
        tenant: str,
        name: str,
        tiers: tuple[int, ...],
        max_attempts: int,
        dead_letter: str,
        retention_s: int,
        max_consumers: int,
        weight: int,
        handling: Handling | None,
    ) -> None:
        """Create or change a topic."""
        self.ask(
            PutTopic(
                request=self.request(),
                tenant=tenant,
                name=name,
                by="op",
                priority_tiers=tiers,
                max_attempts=max_attempts,
                dead_letter=dead_letter,
                retention_s=retention_s,
                max_consumers=max_consumers,
                weight=weight,
                handling=handling,
            )
        )

    @rule(tenant=tenants, name=commands)
    def delete_topic(self, tenant: str, name: str) -> None:
        """Delete a topic, which may be missing."""
        self.ask(DeleteTopic(request=self.request(), tenant=tenant, name=name, by="op"))

    @rule(tenant=tenants, queue=commands)
    def pause(self, tenant: str, queue: str) -> None:
        """Pause a queue."""
        self.ask(PauseQueue(request=self.request(), tenant=tenant, queue=queue, by="op"))

    @rule(tenant=tenants, queue=commands, index=indexes)
    def resume(self, tenant: str, queue: str, index: int) -> None:
        """Resume a paused queue, or one that is not paused."""
        pauses = self.items_of(ItemKind.PAUSE)
        if pauses:
            found = pauses[index % len(pauses)]
            tenant, queue = found.tenant, found.id.upper()
        self.ask(ResumeQueue(request=self.request(), tenant=tenant, queue=queue, by="op"))

    @rule(tenant=tenants, overlap_s=st.integers(0, 9))
    def rotate_webhook_key(self, tenant: str, overlap_s: int) -> None:
        """Begin the next version of a tenant's webhook key."""
        request, overlap_ms = self.request(), overlap_s * 1000
        self.ask(RotateWebhookKey(request=request, tenant=tenant, overlap_ms=overlap_ms, by="op"))

    @precondition(lambda self: self.view.tasks)
    @rule(some=some, stranger=st.sampled_from([False, False, True]))
    def requeue(self, some: list[int], stranger: bool) -> None:
        """Revive dead letters, and try the same with other tasks."""
        ids, tenant = self._meant(some, prefer=State.DEAD)
        tenant = "stranger" if stranger else tenant
        self.ask(Requeue(request=self.request(), tenant=tenant, ids=ids, by="op"))

    @precondition(lambda self: self.view.tasks)
    @rule(some=some, part=st.integers(0, 1))
    def requeue_in_parts(self, some: list[int], part: int) -> None:
        """Revive dead letters in several requests that can be taken back together."""
        ids, tenant = self._meant(some, prefer=State.DEAD)
        self.requeues.append(self.request())
        request = f"{self.requeues[-1]}.{part}"
        self.ask(Requeue(request=request, tenant=tenant, ids=ids, by="op"))

    @precondition(lambda self: self.view.tasks and self.requeues)
    @rule(some=some, index=indexes, stranger=st.sampled_from([False, False, True]))
    def undo_requeue(self, some: list[int], index: int, stranger: bool) -> None:
        """Take a requeue back, for tasks that it revived and for others."""
        ids, tenant = self._meant(some, prefer=State.READY)
        tenant = "stranger" if stranger else tenant
        requeue = self.requeues[index % len(self.requeues)]
        self.ask(
            UndoRequeue(request=self.request(), tenant=tenant, ids=ids, by="op", requeue=requeue)
        )

    @precondition(lambda self: self.view.tasks)
    @rule(
        index=indexes,
        payload=st.sampled_from(['"a longer one"', "1"]),
        late=st.sampled_from([0, 0, 1]),
        stranger=st.sampled_from([False, False, True]),
    )
    def revise(self, index: int, payload: str, late: int, stranger: bool) -> None:
        """Revive a dead letter with another payload, as seen now or before."""
        task = self.pick(index, prefer=State.DEAD)
        self.ask(
            Revise(
                request=self.request(),
                tenant="stranger" if stranger else task.tenant,
                id=task.id,
                by="op",
                payload=payload,
                endings=task.endings - late,
            )
        )

    @precondition(lambda self: self.view.tasks)
    @rule(some=some, queue=commands, stranger=st.sampled_from([False, False, True]))
    def purge(self, some: list[int], queue: str, stranger: bool) -> None:
        """Cancel waiting tasks of a queue, and try the same with others."""
        ids, tenant = self._meant(some, prefer=State.READY)
        tenant = "stranger" if stranger else tenant
        self.ask(
            Purge(request=self.request(), tenant=tenant, queue=queue.lower(), ids=ids, by="op")
        )

    @precondition(lambda self: self.view.tasks)
    @rule(
        some=some,
        dead_only=st.booleans(),
        stranger=st.sampled_from([False, False, True]),
        state=st.sampled_from([State.DEAD, State.DONE, State.FAILED]),
    )
    def delete(self, some: list[int], dead_only: bool, stranger: bool, state: State) -> None:
        """Delete ended tasks, and try the same with others; one of the ids does not exist."""
        ids, tenant = self._meant(some, prefer=state)
        tenant = "stranger" if stranger else tenant
        ids = (*ids, "task-nobody")
        request = self.request()
        self.ask(Delete(request=request, tenant=tenant, ids=ids, by="op", dead_only=dead_only))

    @precondition(lambda self: self.items_of(ItemKind.DELIVERY))
    @rule(some=some)
    def replay(self, some: list[int]) -> None:
        """Revive dead deliveries, or try the same with others; one may be named twice."""
        every = [item for item in self.items_of(ItemKind.DELIVERY) if isinstance(item, Delivery)]
        deliveries = [item for item in every if item.died_ms] or every
        chosen = [deliveries[index % len(deliveries)] for index in some]
        ids = tuple(delivery.id for delivery in chosen)
        tenant = chosen[0].tenant
        self.ask(Replay(request=self.request(), tenant=tenant, ids=ids, by="op"))

    @rule(tenant=tenants)
    def record(self, tenant: str) -> None:
        """Add an audit record."""
        self.ask(
            Record(
                request=self.request(),
                tenant=tenant,
                by="op",
                action="cluster.transfer",
                target="n2",
                detail="shard 0",
            )
        )

    def _meant(self, some: list[int], *, prefer: State) -> tuple[tuple[str, ...], str]:
        tasks = [self.pick(index, prefer=prefer) for index in some]
        return tuple(task.id for task in tasks), tasks[0].tenant
