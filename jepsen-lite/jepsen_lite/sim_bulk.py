"""Simulated bulk: what the routes of bulk jobs do, without HTTP."""

from __future__ import annotations

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.bulk_jobs import Job
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.bulk import ActionKind, BulkAction
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.selecting import Selection
from jepsen_lite.bulk import TAG_NAME
from jepsen_lite.history import Args, F, Out, Swept
from jepsen_lite.taken import taken

TENANT = ""


class SimBulk:
    """Operations on bulk jobs and their tasks in a simulated cluster."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, _: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        caller = Caller(TENANT, "operator", deadline_in(self._timeout_s))
        match f:
            case F.SOW:
                return await self._sow(broker, args)
            case F.SWEEP:
                tags = ((TAG_NAME, args.tag),) if args.tag else ()
                select = Selection(tags=tags, queue=args.command)
                action = BulkAction(kind=ActionKind.CANCEL)
                job = await broker.bulk.start(caller, args.command, select, action)
                return Out(http=202, swept=_swept(taken(job)))
            case _:
                found = await broker.bulk.get(caller, args.command)
                if found is None:
                    return Out(http=404, absent=True)
                return Out(http=200, swept=_swept(found))

    async def _sow(self, broker: Broker, args: Args) -> Out:
        new = Create(command=args.command, payload=args.content, tags=((TAG_NAME, args.tag),))
        [made] = await broker.create(TENANT, (new,), timeout_s=self._timeout_s)
        return Out(http=202, task=taken(made).task.id)


def _swept(job: Job) -> Swept:
    return Swept(
        status="RUNNING" if job.is_live else "DONE",
        selected=sum(part.selected for part in job.parts),
        changed=sum(part.changed for part in job.parts),
        parts=len(job.parts),
        shards=job.shards,
    )
