"""Simulated broker: one life of one node, the real broker on virtual time, network and disk.

It wires a node as `node/parts.py` does, except for sockets, threads and files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.engine.engine import Engine
from codeq_cluster.broker.engine.from_settings import limits_of, rules_of
from codeq_cluster.broker.engine.state import EngineSetup
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.waiters import Waiters
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.membership import Membership
from codeq_cluster.core.changes import Change
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.schedules import Fire
from codeq_cluster.firing.firer import ScheduleFirer
from codeq_cluster.raft.group import RaftGroup
from codeq_cluster.raft.io_adapters import GroupLink, LoopTimers
from codeq_cluster.raft.ports import Beat, Events, Ports
from codeq_cluster.raft.replica import ReplicaId
from codeq_cluster.raft.rest import NODE, Rest
from codeq_cluster.raft.safety_switches import SafetySwitches as GuardRules
from codeq_cluster.relays.dispatcher import RelayDispatcher
from codeq_cluster.routing.leaders import Leaders
from codeq_cluster.routing.router import Router
from codeq_cluster.routing.shard_calls import ShardCalls
from codeq_cluster.settings import LifecycleSettings, NodeSettings, RaftSettings
from codeq_cluster.storage.node_storage import NodeStorage
from codeq_cluster.storage.syncers import ThreadSyncer
from codeq_cluster.wire.rpc import Slot
from tests.simulator.database import SimDatabase
from tests.simulator.disk import SimDisk, SimExecutor
from tests.simulator.invariants import ShardWatch
from tests.simulator.link import SimLink
from tests.simulator.loop import SimLoop
from tests.simulator.network import SimNetwork

_EPOCH_MS = 1_700_000_000_000
_SEGMENT_BYTES = 2**16  # Small enough that a run fills several.
_SPILL_S = 0.25  # Often, so that a crash comes between many spills.


def simulated_settings(*, shards: int, raft: RaftSettings | None = None) -> NodeSettings:
    """Return the settings of every node of a simulated cluster."""
    return NodeSettings(
        shards=shards,
        raft=raft or RaftSettings(),
        # Work that takes minutes by default completes within a run.
        lifecycle=LifecycleSettings(
            backoff_base_seconds=1, backoff_max_seconds=5, lease_grace_seconds=1.0
        ),
        # Nothing simulated reads these.
        cluster_secret="",
        data_dir=Path("/nowhere"),
        peers=(),
    )


class SimClocks:
    """One node's clocks.

    Attributes:
        off_ms: The offset of its wall clock from the others'.
    """

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.off_ms = 0

    def wall_ms(self) -> int:
        """Return Unix milliseconds."""
        return _EPOCH_MS + self.monotonic_ms() + self.off_ms

    def monotonic_ms(self) -> int:
        """Return milliseconds that never jump."""
        return int(self._loop.time() * 1000)


class _Nobody:
    """An observer of commits that does nothing."""

    def changed(self, change: Change) -> None:
        """Do nothing."""

    def committed(self, *, shard: int, mutations: int, commit_s: float) -> None:
        """Do nothing."""

    def item_failed(self, loop: Loop) -> None:
        """Do nothing."""


class _WatchedEngine:
    """A state machine that reports each entry before it is applied, and the result."""

    def __init__(self, engine: Engine, node_id: str, watch: ShardWatch) -> None:
        self._engine = engine
        self._node_id = node_id
        self._watch = watch

    @property
    def applied_index(self) -> int:
        return self._engine.applied_index

    @property
    def stored_index(self) -> int:
        return self._engine.stored_index

    @property
    def seen_index(self) -> int:
        return self._engine.seen_index

    @property
    def digest(self) -> bytes:
        return self._engine.digest

    @property
    def awaited(self) -> bool:
        return self._engine.awaited

    def apply(self, index: int, term: int, payload: bytes | None) -> None:
        self._watch.applied(self._node_id, index, term, payload)
        self._engine.apply(index, term, payload)
        self._watch.stands(self._node_id, index, self._engine.digest)


class SimBroker:
    """One life of one node.

    Attributes:
        fatal: Why a replica stopped the node, or None.
        fetching: Shards whose snapshot is being fetched.
    """

    def __init__(
        self,
        node_id: str,
        *,
        bootstrap: Membership,
        incarnation: int,
        settings: NodeSettings,
        guard: GuardRules,
        disks: Sequence[SimDisk],
        loop: SimLoop,
        clocks: SimClocks,
        network: SimNetwork,
        random: Random,
        watches: Sequence[ShardWatch],
        flush_s: Callable[[], float],
        on_fatal: Callable[[int, BaseException], None],
        on_behind: Callable[[int], None],
        on_storage_failed: Callable[[int, BaseException], None],
        on_database_failed: Callable[[int, BaseException], None],
    ) -> None:
        """Wire the node; nothing happens before `start`."""
        self.id = node_id
        self.loop = loop
        self.clocks = clocks
        self.fatal: BaseException | None = None
        self.fetching: set[int] = set()
        self.out: set[int] = set()
        timers, beat = LoopTimers(loop), Beat()
        self.executor = SimExecutor(timers, flush_s)
        self.syncs = SimExecutor(timers, flush_s)
        self.databases = [SimDatabase(disk, random) for disk in disks]
        self.storage = NodeStorage(
            self.databases,
            disks[0],
            executor=self.executor,
            syncer=ThreadSyncer(self.syncs),
            timers=timers,
            on_synced=lambda _seconds, _shard: None,
            on_failed=on_database_failed,
            segment_bytes=_SEGMENT_BYTES,
            spill_s=_SPILL_S,
        )
        self.storage.start()
        self.states = [shard.state for shard in self.storage.shards]
        self.engines: list[Engine] = []
        self.groups: list[RaftGroup] = []
        self._settings = settings
        catalogue = Catalogue(self.states)
        waiters = Waiters(
            waiters_max=settings.limits.waiters_max, claimable=catalogue.newly_claimable
        )
        catalogue.on_open(
            lambda tenant, queue, most: waiters.work(
                tenant,
                queue,
                catalogue.claimable(tenant, queue, min(most, catalogue.ready(tenant, queue))),
            )
        )
        self.link = SimLink(
            node_id,
            network,
            on_raft=self._on_raft,
            serve=self._serve,
            quick={"operate": self._serve_operate},
        )
        self._rest = rest = Rest(
            self.groups,
            incarnation=incarnation,
            period_s=settings.raft.heartbeat_ms / 1000,
            link=GroupLink(self.link, NODE),
            timers=timers,
            beat=beat,
        )
        # Drawn in this order, so that a seed plays the same run whoever is made first.
        fractions = [Random(random.random()) for _ in watches]
        elections = [Random(random.random()) for _ in watches]

        def open_group(engine: Engine) -> RaftGroup:
            shard = engine.shard
            group = RaftGroup(
                ReplicaId(shard=shard, node_id=node_id, incarnation=incarnation),
                bootstrap=bootstrap,
                ports=Ports(
                    store=self.storage.shards[shard].log,
                    writer=self.storage.shards[shard].log,
                    machine=_WatchedEngine(engine, node_id, watches[shard]),
                    source=engine,
                    link=GroupLink(self.link, shard),
                    timers=timers,
                    random=elections[shard],
                    beat=beat,
                    rest=rest,
                ),
                events=Events(
                    on_fatal=partial(on_fatal, shard),
                    on_behind=partial(on_behind, shard),
                    on_diverged=partial(_diverged, partial(on_behind, shard)),
                    on_storage_failed=partial(on_storage_failed, shard),
                ),
                settings=settings.raft,
                rules=guard,
            )
            self.groups.append(group)
            return group

        self._make_engines(fractions, catalogue, waiters, open_group)
        catalogue.reload()
        self._shard_calls = ShardCalls(self.engines)
        leaders = Leaders(
            self.engines, replaced=lambda shard, leader: self.link.give_up(leader, shard)
        )
        leaders.ask_peers(while_out=self.out.__contains__, peers=lambda: sorted(self.link.up))
        self.forwarder = Router(
            node_id=node_id,
            engines=self.engines,
            leaders=leaders,
            calls=self.link,
            on_answered=lambda _method, _seconds: None,
        )
        self._start_relays()
        self._start_schedules()
        self.broker = Broker(
            shards=self.forwarder,
            clock=clocks,
            waiters=waiters,
            background=Background(),
            status=list,
            missing=_nothing,
        )

    def start(self) -> None:
        """Start; called on the node's own loop."""
        self.loop.create_task(self.link.run())
        for group in self.groups:
            group.start()

    def peer_up(self, peer: str) -> None:
        """Note that the connection with a peer is up."""
        self.link.up.add(peer)
        for group in self.groups:
            group.peer_up(peer)

    def peer_down(self, peer: str, refused: bool) -> None:
        """Note that the connection with a peer is broken."""
        self.link.lost(peer)
        for group in self.groups:
            group.peer_down(peer, refused=refused)

    def reload(self, shard: int) -> None:
        """Continue with a shard's state, freshly read."""
        self.engines[shard].reload()
        self.groups[shard].resume()
        self.out.discard(shard)

    def _make_engines(
        self,
        fractions: Sequence[Random],
        catalogue: Catalogue,
        waiters: Waiters,
        open_group: Callable[[Engine], RaftGroup],
    ) -> None:
        settings = self._settings
        setup = EngineSetup(
            node_id=self.id,
            shards=settings.shards,
            rules=rules_of(settings),
            limits=limits_of(settings),
            clock=self.clocks,
            observer=_Nobody(),
            catalogue=catalogue,
            awaited=waiters.awaited,
        )
        for shard, state in enumerate(self.states):
            engine = Engine(
                setup,
                shard=shard,
                store=state,
                fraction=fractions[shard].random,
                open_log=open_group,
            )
            engine.on_rows(catalogue.rows)
            engine.on_rows(waiters.rows, Family.STATS, Family.RESULT)
            engine.on_reload(catalogue.reload)
            engine.on_reload(waiters.all)
            self.engines.append(engine)

    def _start_relays(self) -> None:
        background = Background()
        for engine, state in zip(self.engines, self.states, strict=True):
            dispatcher = RelayDispatcher(
                engine, state, self.forwarder, background=background, failed=_nobody_counts
            )
            engine.on_rows(dispatcher.rows, Family.FORWARD)
            engine.on_reload(dispatcher.look)
            engine.on_leader(dispatcher.look)

    def _start_schedules(self) -> None:
        background = Background()
        for engine, state in zip(self.engines, self.states, strict=True):
            firer = ScheduleFirer(
                engine,
                state,
                wall_ms=self.clocks.wall_ms,
                wait_s=_no_limit,
                background=background,
                fired=_nobody_looks,
                failed=_nobody_counts,
            )
            engine.on_rows(firer.rows, Family.FIRE)
            engine.on_reload(firer.look)
            engine.on_leader(firer.look)

    def _on_raft(self, peer: str, shard: int, message: bytes) -> None:
        receive = self._rest.receive if shard == NODE else self.groups[shard].receive
        receive(peer, message)

    def _serve_operate(self, body: bytes, slot: Slot) -> None:
        self._shard_calls.serve_operate(body, slot)

    async def _serve(self, peer: str, method: str, body: object, timeout_s: float) -> object:
        return await self._shard_calls.serve(peer, method, body, timeout_s)


def _nothing(*, in_full: bool) -> list[str]:
    return []


def _nobody_counts() -> None:
    """Do nothing: the watches see what is set aside."""


def _nobody_looks(_operation: Fire, _due_ms: int, _missed: int) -> None:
    """Do nothing: the watches see what fires."""


async def _no_limit(_tenant: str, _count: int) -> float:
    """Let every tenant create as many tasks as it likes."""
    return 0.0


def _diverged(on_behind: Callable[[], None], _index: int) -> None:
    on_behind()
