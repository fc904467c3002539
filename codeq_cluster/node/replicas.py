"""Replicas: this node's copy of every shard: its engine, and the Raft group that drives it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from functools import partial

from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.from_settings import limits_of, rules_of
from codeq_cluster.broker.engine.state import EngineSetup
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.membership import Membership
from codeq_cluster.core.loops import Loop
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.open_storage import OpenStorage, naming_remedy
from codeq_cluster.node.replica_events import ReplicaEvents
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.io_adapters import GroupLink, LoopTimers
from codeq_cluster.raft.ports import Beat, Ports
from codeq_cluster.raft.replica import ReplicaId
from codeq_cluster.raft.rest import NODE, Rest
from codeq_cluster.telemetry.history import History
from codeq_cluster.telemetry.tasks import TaskObserver
from codeq_cluster.wire import Mesh


class Replicas:
    """The replicas of a node, and what connects them.

    Attributes:
        engines: By shard.
        groups: By shard.
        rest: Beats for the groups that have nothing to do.
        catalogue: Every shard's policies, subscriptions and counts.
        waiters: Callers on this node that wait for entries.
        history: What happened lately, for the page.

    Raises:
        DataDirectoryRefused: A shard's rows are damaged.
    """

    def __init__(
        self, base: NodeBase, storage: OpenStorage, mesh: Mesh, events: ReplicaEvents
    ) -> None:
        self._base = base
        self._storage = storage
        self._mesh = mesh
        self._events = events
        self._timers, self._beat = LoopTimers(asyncio.get_running_loop()), Beat()
        settings = base.settings
        self.catalogue = catalogue = Catalogue(
            [store.state for store in storage.shards],
            failed=partial(base.metrics.item_failures.inc, Loop.CATALOGUE),
        )
        self.history = History(catalogue.counters, base.now_s)
        self.waiters = waiters = Waiters(
            waiters_max=settings.limits.waiters_max, claimable=catalogue.newly_claimable
        )
        self.groups: list[RaftGroup] = []
        self.rest = Rest(
            self.groups,
            incarnation=storage.directory.incarnation,
            period_s=settings.raft.heartbeat_ms / 1000,
            link=GroupLink(mesh, NODE),
            timers=self._timers,
            beat=self._beat,
        )
        self.engines = self._make_engines()
        catalogue.reload()
        catalogue.on_open(
            lambda tenant, queue, most: waiters.work(
                tenant,
                queue,
                catalogue.claimable(tenant, queue, min(most, catalogue.ready(tenant, queue))),
            )
        )

    def start(self) -> None:
        """Start the groups, which read their logs; no leader is known yet.

        Raises:
            DataDirectoryRefused: A log and its state are damaged or do not fit.
            ReleaseTooOld: A group uses formats that this release does not know.
        """
        stack, data_dir = self._base.stack, self._base.settings.data_dir
        for shard, (group, engine) in enumerate(zip(self.groups, self.engines, strict=True)):
            with naming_remedy(data_dir, shard=shard):
                group.start()
            stack.callback(group.stop)
            stack.callback(engine.stop)

    def _make_engines(self) -> Sequence[Engine]:
        base, settings = self._base, self._base.settings
        catalogue, waiters = self.catalogue, self.waiters
        setup = EngineSetup(
            node_id=settings.node_id,
            shards=settings.shards,
            rules=rules_of(settings),
            limits=limits_of(settings),
            clock=base.clock,
            observer=TaskObserver(base.metrics, self.history),
            catalogue=catalogue,
            tracing=base.tracing,
            awaited=waiters.awaited,
        )
        engines = []
        for shard, store in enumerate(self._storage.shards):
            with naming_remedy(settings.data_dir, shard=shard):
                engine = Engine(
                    setup,
                    shard=shard,
                    store=store.state,
                    fraction=random.SystemRandom().random,
                    open_log=self._open_group,
                )
            # The catalogue first: woken callers rely on it.
            engine.on_rows(catalogue.rows)
            engine.on_rows(waiters.rows, Family.STATS, Family.RESULT)
            engine.on_reload(catalogue.reload)
            engine.on_reload(waiters.all)
            engine.on_leader(partial(base.metrics.leader_changes.inc, shard))
            engines.append(engine)
        return engines

    def _open_group(self, engine: Engine) -> RaftGroup:
        """Return the group that drives an engine."""
        settings, shard = self._base.settings, engine.shard
        directory, store = self._storage.directory, self._storage.shards[shard]
        group = RaftGroup(
            ReplicaId(shard=shard, node_id=settings.node_id, incarnation=directory.incarnation),
            bootstrap=directory.bootstrap or Membership(),
            ports=Ports(
                store=store.log,
                writer=store.log,
                machine=engine,
                source=engine,
                link=GroupLink(self._mesh, shard),
                timers=self._timers,
                random=random.Random(),  # noqa: S311 - spreads elections, guards nothing
                beat=self._beat,
                rest=self.rest,
            ),
            events=self._events.of(shard),
            settings=settings.raft,
        )
        self.groups.append(group)
        return group
