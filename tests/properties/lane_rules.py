"""Lane rules: tasks with keys, the rules of their queues, and rules that other shards relay."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from codeq_cluster.core.gate import PerQueue
from codeq_cluster.core.holds import HoldKey, Nack
from codeq_cluster.core.lane import (
    FlowRule,
    OnRetry,
    Order,
    OwnRule,
    PerKey,
    SetFlow,
    SetKey,
    WhenDead,
)
from codeq_cluster.core.new_task import Create, CreateKeyed
from codeq_cluster.core.operations import PutFlow, PutTopic
from codeq_cluster.core.rate import Rate

from .machine import Caller, callers, commands, tenants
from .work_rules import Work, hooks

SHARDS = 2

rules = st.one_of(
    st.none(),
    st.builds(
        PerKey,
        max_running=st.sampled_from([1, 1, 2, 3]),
        order=st.sampled_from(Order),
        on_retry=st.sampled_from(OnRetry),
        when_dead=st.sampled_from(WhenDead),
        rate=st.sampled_from([None, None, Rate(100, 1), Rate(150, 1, 2), Rate(1, 1, 5)]),
    ),
)

queue_rules = st.builds(
    PerQueue,
    max_running=st.sampled_from([0, 1, 2, 3]),
    rate=st.sampled_from([None, None, Rate(1), Rate(3, 1, 2), Rate(2, 1, 3), Rate(7, 2)]),
).filter(lambda each: each != PerQueue())
own_rules = st.one_of(
    st.none(),
    st.builds(
        OwnRule,
        max_running=st.sampled_from([0, 1, 2, 4]),
        rate=st.sampled_from([None, None, None, Rate(100, 1), Rate(1, 1, 5)]),
        weight=st.sampled_from([1, 2, 3]),
        paused=st.sampled_from([False, False, False, True]),
    ),
)


class Lanes(Work):
    """Tasks that share limits."""

    @rule(
        many=st.integers(1, 4),
        tenant=tenants,
        command=commands,
        priority=st.sampled_from([0, 5]),
        max_attempts=st.integers(0, 2),
        key=st.sampled_from(["a", "a", "a", "b/c"]),
        cost=st.sampled_from([1, 1, 1, 2]),
        once=st.sampled_from(["", "", "", "k"]),
        delay_ms=st.sampled_from([0, 0, 0, 5]),
        ttl_ms=st.sampled_from([0, 0, 0, 10]),
        webhook=hooks,
    )
    def create_keyed(
        self,
        *,
        many: int,
        tenant: str,
        command: str,
        priority: int,
        max_attempts: int,
        key: str,
        cost: int,
        once: str,
        delay_ms: int,
        ttl_ms: int,
        webhook: str,
    ) -> None:
        """Create a few tasks of one key."""
        for _ in range(many):
            create = Create(
                id=f"task-{next(self.names)}",
                tenant=tenant,
                command=command,
                payload='"one"',
                priority=priority,
                max_attempts=max_attempts,
                idempotency_key=once,
                fingerprint='"one"' if once else "",
                delay_ms=delay_ms,
                ttl_ms=ttl_ms,
                webhook=webhook,
                key=key,
                cost=cost,
            )
            self.ask(CreateKeyed(create))

    @precondition(lambda self: self.view.tasks)
    @rule(
        caller=callers,
        delay_ms=st.sampled_from([-1, 3, 7, 100]),
        allowed=st.sampled_from([(), (), ("render",)]),
    )
    def hold_key(self, caller: Caller, delay_ms: int, allowed: tuple[str, ...]) -> None:
        """Give a task back and hold its key."""
        task, worker, token = self.meet(caller)
        nack = Nack(
            id=task.id,
            tenant=task.tenant,
            worker=worker,
            token=token,
            request=self.request(),
            delay_ms=delay_ms,
        )
        self.ask(HoldKey(nack=nack, commands=allowed))

    @rule(tenant=tenants, name=commands, per_key=rules, shards=st.sampled_from([1, 1, 1, SHARDS]))
    def put_flow(self, tenant: str, name: str, per_key: PerKey | None, shards: int) -> None:
        """Give a queue a rule of its keys, another one, or none."""
        topic = PutTopic(request=self.request(), tenant=tenant, name=name, by="op")
        self.ask(PutFlow(topic=topic, per_key=per_key, shards=shards))

    @rule(
        tenant=tenants,
        name=commands,
        key=st.sampled_from(["a", "a", "a", "b/c"]),
        own=own_rules,
    )
    def set_key(self, tenant: str, name: str, key: str, own: OwnRule | None) -> None:
        """Give a key a rule of its own, another one, or none."""
        request = self.request()
        self.ask(
            SetKey(request=request, tenant=tenant, queue=name.lower(), key=key, own=own, by="op")
        )

    @rule(
        tenant=tenants,
        name=commands,
        per_key=rules,
        step=st.sampled_from([-1, 0, None, None]),
    )
    def set_flow(self, tenant: str, name: str, per_key: PerKey | None, step: int | None) -> None:
        """Hear of a rule from another shard: a newer one, the same again, or an older one."""
        queue = name.lower()
        known = self.model.beside.flows.get((tenant, queue), {"seq": 5})["seq"]
        seq = self.view.next_seq() if step is None else known + step
        self.ask(SetFlow(FlowRule(tenant, queue, seq, per_key, 0)))
