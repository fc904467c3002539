"""Simulated rejects: what the routes of rejects and of logs do, without HTTP."""

from __future__ import annotations

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller, new_request
from codeq_cluster.core.reject import Reject
from jepsen_lite.history import Args, F, Out
from jepsen_lite.rejects import LINES_MAX
from jepsen_lite.taken import taken

TENANT = ""


class SimRejects:
    """Rejects, and reads of logs, of a simulated cluster."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, worker: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        if f is F.LOG:
            reader = Caller(TENANT, worker, deadline_in(self._timeout_s))
            logged = await broker.logs.of(reader, args.task, after=0, count=LINES_MAX)
            lines = () if logged is None else logged.lines
            return Out(http=200, lines=tuple(line.text for line in lines))
        asked = Reject(
            request=new_request(),
            id=args.task,
            tenant=TENANT,
            worker=worker,
            reason=args.content,
            token=args.token,
        )
        return Out(http=200, dead=taken(await broker.give_back(asked, self._timeout_s)).dead)
