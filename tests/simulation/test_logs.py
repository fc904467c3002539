"""Logs of tasks over the deaths of leaders, on virtual time and network."""

from __future__ import annotations

import pytest

from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.queries.logs import Logged
from codeq_cluster.broker.requests.leases import HeldLease
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import entries, keyspace, records
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.log_line import LINES_MAX, LogLine, line_id
from codeq_cluster.core.outcomes import Extended
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from tests.simulator.brokers import SimBrokers
from tests.simulator.invariants import InvariantBroken

from .moves import SHARDS, asked, at_rest, kill_leader
from .test_lanes import claimed, created


def logged(brokers: SimBrokers, node_id: str, task_id: str, *lines: str) -> None:
    """Add lines to the log of a task that is leased."""
    answer = asked(
        brokers,
        node_id,
        lambda broker: broker.heartbeat(
            "", "ann", HeldLease(id=task_id, token=0, extend_ms=60_000, log=lines), timeout_s=4
        ),
    )
    assert isinstance(answer, Extended)


def read(brokers: SimBrokers, node_id: str, task_id: str, *, after: int = 0) -> Logged:
    """Return what a node tells of a log."""

    async def ask(broker: Broker) -> Logged | None:
        return await broker.logs.of(
            Caller("", "ann", deadline_in(4)), task_id, after=after, count=LINES_MAX
        )

    told = asked(brokers, node_id, ask)
    assert told is not None
    return told


def test_a_log_goes_on_under_the_next_leaders(brokers: SimBrokers) -> None:
    """No answered line is lost but the oldest ones of a full log; the numbers have no gap."""
    task_id = created(brokers, "A", "k").id
    shard = shard_of(task_id, SHARDS)
    assert [task_id] == claimed(brokers, "B")
    written = [str(number) for number in range(1, 241)]
    for part in range(12):
        if part % 4 == 1:
            kill_leader(brokers, shard)
        logged(brokers, "ABC"[part % 3], task_id, *written[20 * part : 20 * part + 20])
    told = read(brokers, "C", task_id)
    rest = read(brokers, "A", task_id, after=238)
    at_rest(brokers)

    # A heartbeat that was sent again has added its lines again, so there may be more than 240.
    assert written[-20:] == [line.text for line in told.lines[-20:]]
    assert LINES_MAX == len(told.lines)
    assert told.written == told.lines[-1].number == told.dropped + LINES_MAX
    assert told.written >= 240
    assert [*range(239, told.written + 1)] == [line.number for line in rest.lines]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_line_that_its_task_does_not_count_is_noticed(brokers: SimBrokers, number: int) -> None:
    """W22 reads every entry: a line that is gone, another one, and one without a task."""
    task_id = created(brokers, "A", "k").id
    assert [task_id] == claimed(brokers, "B")
    logged(brokers, "A", task_id, "one")
    of = "absent" if number == 3 else task_id
    row = LogLine(tenant="", id=line_id(of, number), at_ms=1, attempt=1, text="x")
    key = keyspace.item(ItemKind.LOG, "", row.id)
    rows = {key: None if number == 1 else records.encode(row)}
    [record] = [
        value
        for state in brokers.nodes["B"].states
        for _, value in state.scan(*keyspace.prefix_range(keyspace.task(task_id)), 9)
    ]
    if number != 3:
        rows[keyspace.task(task_id)] = record
    entry = entries.encode(entries.Entry(9, 1, 1, 1, rows), level=LEVEL)

    with pytest.raises(InvariantBroken, match=r"^W22 "):
        brokers.watches[shard_of(task_id, SHARDS)].applied("A", 10_000, 9, entry)
