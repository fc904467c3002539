"""Relay wiring: sends the relays of the shards led here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from codeq_cluster.broker.background import Background
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.loops import Loop
from codeq_cluster.node.base import NodeBase
from codeq_cluster.node.parts import NodeParts
from codeq_cluster.relays.dispatcher import RelayDispatcher
from codeq_cluster.telemetry.metrics import Samples


def start_relays(base: NodeBase, parts: NodeParts) -> None:
    """Start a dispatcher for each shard; the parts run."""
    background = Background()
    base.stack.push_async_callback(background.stop)
    dispatchers: list[RelayDispatcher] = []
    for engine, store in zip(parts.replicas.engines, parts.storage.shards, strict=True):
        dispatcher = RelayDispatcher(
            engine,
            store.state,
            parts.calls.router,
            background=background,
            failed=partial(base.metrics.item_failures.inc, Loop.RELAYS),
        )
        engine.on_rows(dispatcher.rows, Family.FORWARD)
        engine.on_reload(dispatcher.reload)
        engine.on_leader(dispatcher.look)
        dispatcher.look()
        base.stack.callback(dispatcher.stop)
        dispatchers.append(dispatcher)

    def of_led(read: Callable[[RelayDispatcher], float]) -> Samples:
        return lambda: [
            ((str(engine.shard),), read(dispatcher))
            for engine, dispatcher in zip(parts.replicas.engines, dispatchers, strict=True)
            if engine.leads
        ]

    base.metrics.read_at_scrape(
        "codeq_relays_waiting",
        "Tasks that a result on this shard has made for another shard, and that are not there yet; "
        "of the shards that this node leads.",
        ("shard",),
        of_led(lambda dispatcher: float(dispatcher.waiting)),
    )
    base.metrics.read_at_scrape(
        "codeq_relays_stalled_seconds",
        "Seconds since the last of these tasks reached another shard where the next ones wait to "
        "get; the longest of all other shards, 0 if none waits.",
        ("shard",),
        of_led(lambda dispatcher: dispatcher.stalled_s),
    )
