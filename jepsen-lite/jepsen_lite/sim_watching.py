"""Simulated watching: pages of events, without HTTP and without entries of other nodes."""

from __future__ import annotations

from codeq_cluster.api.routes.events import EXPIRED, OTHER
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.feed.cursor import CursorExpired, OtherHistory
from codeq_cluster.broker.feed.events import EventFilter
from codeq_cluster.broker.feed.feed import Feed
from codeq_cluster.broker.service import Broker
from codeq_cluster.errors import NoLeader
from jepsen_lite.history import Args, F, Out, Told
from jepsen_lite.sim_schedules import TENANT
from tests.simulator.broker import SimBroker
from tests.simulator.brokers import SimBrokers


class SimWatching:
    """Pages of events of a simulated cluster.

    Args:
        brokers: The cluster.
        timeout_s: Of a request, its wait not counted.
    """

    def __init__(self, brokers: SimBrokers, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s
        self._feeds: dict[SimBroker, Feed] = {}

    async def serve(self, broker: Broker, f: F, args: Args, node: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        del broker, f
        asked = self._brokers.nodes[node]
        feed = self._feeds.setdefault(asked, Feed(asked.forwarder, failed=_failed))
        only = EventFilter(tenant=TENANT, queues=frozenset((args.command,)))
        with feed.watched():
            if feed.isolated:
                raise NoLeader("this node may not get every entry now: ask another node")
            try:
                deadline = deadline_in(self._timeout_s)
                reader = await feed.reader(only, args.after, deadline=deadline)
                found = await reader.next(args.wait_ms / 1000)
            except CursorExpired as expired:
                raise EXPIRED from expired
            except OtherHistory as other:
                raise OTHER from other
        told = (
            Told(task=each.task_id, kind=each.kind, shard=each.shard, index=each.index)
            for each in found
        )
        return Out(http=200, told=tuple(told), cursor=reader.cursor)


def _failed() -> None:
    raise AssertionError("a task cannot be read")
