"""Simulated uniques: what the routes of tasks do with unique keys, without HTTP."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.questions import BrowseTags
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import NewResult
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.task import State
from codeq_cluster.core.unique import On, UniqueTerms, unique_key
from jepsen_lite.history import Args, F, Made, Out, Part
from jepsen_lite.taken import taken
from jepsen_lite.uniques import TAG_NAME

TENANT = ""
_PAGE = 50  # So small that lists have several.


class SimUniques:
    """Operations on tasks with unique keys of a simulated cluster."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, worker: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        match f:
            case F.MERGE:
                return await self._merge(broker, args)
            case F.TAGGED:
                return await self._tagged(broker, args)
            case F.TAKE:
                return await self._take(broker, args, worker)
            case _:
                return await self._finish(broker, args, worker)

    async def _merge(self, broker: Broker, args: Args) -> Out:
        merging = args.merging
        assert merging is not None
        new = Create(
            command=args.command,
            payload=args.content,
            max_attempts=args.attempts_max,
            idempotency_key=args.idempotency_key,
            unique=UniqueTerms(
                key=merging.key,
                on=On(merging.on),
                debounce_ms=merging.debounce_ms,
                max_wait_ms=merging.max_wait_ms,
            ),
            tags=((TAG_NAME, merging.tag),),
        )
        [answered] = await broker.create(TENANT, (new,), timeout_s=self._timeout_s)
        made = taken(answered)
        task = made.task
        return Out(
            http=202,
            task=task.id,
            attempt=task.attempts,
            location="HELD_SET" if task.state is State.HELD else "",
            replayed=made.replay,
            made=Made(
                how=made.unique,
                created_ms=task.created_ms,
                changed_ms=task.updated_ms,
                start_ms=task.due_ms if task.state is State.DELAYED else 0,
            ),
        )

    async def _tagged(self, broker: Broker, args: Args) -> Out:
        """List the tasks with a tag, page by page."""
        parts: list[Part] = []
        asked = BrowseTags(
            tenant=TENANT,
            tags=((TAG_NAME, args.tag),),
            queue=args.command,
            places=tuple(QueuePlace),
            after=b"",
            count=_PAGE,
        )
        while True:
            deadline = deadline_in(self._timeout_s)
            found, edge = await broker.operators.tasks(asked, deadline=deadline)
            parts += [
                Part(
                    task=each.task.id,
                    group=unique_key(each.task),
                    content=each.payload,
                    status=each.task.state.name,
                    created_ms=each.task.created_ms,
                    changed_ms=each.task.updated_ms,
                )
                for each in found
            ]
            if not edge:
                return Out(http=200, parts=tuple(parts))
            asked = replace(asked, after=edge)

    async def _take(self, broker: Broker, args: Args, worker: str) -> Out:
        claimed = await broker.claim(
            TENANT,
            worker,
            commands=(args.command,),
            count=1,
            lease_ms=args.lease_ms,
            wait_s=0,
            timeout_s=self._timeout_s,
        )
        if not claimed.tasks:
            return Out(http=204)
        [task] = claimed.tasks
        return Out(
            http=200,
            task=task.id,
            token=task.lease_token,
            attempt=task.attempts,
            content=claimed.payloads[0],
        )

    async def _finish(self, broker: Broker, args: Args, worker: str) -> Out:
        new = NewResult(task_id=args.task, status=args.status, body=args.content, token=args.token)
        [done] = await broker.submit(TENANT, worker, (new,), timeout_s=self._timeout_s)
        taken(done)
        return Out(http=200)
