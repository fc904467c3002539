"""Simulated keys: what the route of one key does, without HTTP."""

from __future__ import annotations

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.core.lane import OwnRule
from codeq_cluster.core.rate import Rate
from jepsen_lite.history import Args, F, Out
from jepsen_lite.keys import OWN
from jepsen_lite.sim_schedules import TENANT


class SimKeys:
    """What an admin says of the keys of a simulated cluster."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, _f: F, args: Args, _node: str) -> Out:
        """Give a key limits of its own, pause it, or let it follow its topic again."""
        admin = Caller(TENANT, "operator", deadline_in(self._timeout_s))
        await broker.queue_policies.set_key(admin, args.command, args.key, _own(args))
        return Out(http=200)


def _own(args: Args) -> OwnRule | None:
    own = OWN.get(args.key)
    if own is None:
        return OwnRule(paused=True) if args.paused else None
    rate = Rate(own.per_second, 1, own.burst)
    return OwnRule(max_running=own.running, rate=rate, paused=args.paused)
