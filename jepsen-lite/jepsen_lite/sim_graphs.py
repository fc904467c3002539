"""Simulated graphs: what the routes do that make them, without HTTP."""

from __future__ import annotations

from hashlib import blake2b

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.graphs import Asked, AskedNode
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.dependencies import OnDead, Otherwise, RunIf, Terms
from codeq_cluster.core.new_task import Create
from jepsen_lite.graphs import ATTEMPTS_MAX, ref_of
from jepsen_lite.history import Args, F, Follow, Need, Out
from jepsen_lite.sim_groups import TENANT
from jepsen_lite.taken import taken


class SimGraphs:
    """Operations that make tasks which wait for others, on a simulated cluster."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, _node: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        caller = Caller(TENANT, "producer", deadline_in(self._timeout_s))
        places = {ref_of(place): place for place in range(len(args.next))}
        key = args.idempotency_key
        nodes = [
            AskedNode(
                Create(
                    command=args.command,
                    payload=each.content,
                    max_attempts=ATTEMPTS_MAX,
                    idempotency_key=key if f is F.DEPEND else "",
                    key=each.lane,
                ),
                tuple(_asked(need, places) for need in each.needs),
            )
            for each in args.next
        ]
        if f is F.DEPEND:
            one = await broker.graphs.create_one(caller, nodes[0])
            return Out(http=202, next=(Follow(task=taken(one).task.id),))
        digest = blake2b(repr(args.next).encode(), digest_size=16).hexdigest()
        stands = await broker.graphs.create(caller, nodes, key=key, digest=digest)
        return Out(http=202, next=tuple(Follow(task=each.id) for each in taken(stands).tasks))


def _asked(need: Need, places: dict[str, int]) -> Asked:
    terms = Terms(
        run_if=RunIf(need.run_if),
        otherwise=Otherwise(need.otherwise),
        on_dead=OnDead(need.on_dead),
    )
    return Asked(need.parent, terms, places.get(need.parent))
