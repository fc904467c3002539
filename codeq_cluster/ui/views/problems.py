"""Problems: current faults as sentences for the person who mends them, the worst first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from typing import NamedTuple

from msgspec import Struct

from codeq_cluster.broker.polls import Poll
from codeq_cluster.broker.values import ShardStatus
from codeq_cluster.membership.node_report import NodeReport
from codeq_cluster.portions import in_portions
from codeq_cluster.ui.views.queues import QueueRow
from codeq_cluster.ui.views.serving_node import ServingNode

# Per kind; one line says how many more there are.
SHOWN_MAX = 5
# An idle worker polls again within half a minute.
_UNPOLLED_S = 60
# Tasks ready for longer than this are late: five minutes are the default lease.
_BEHIND_S = 300
_DISK_LOW = 0.1  # Of the whole disk.


class Severity(StrEnum):
    """How urgent a problem is."""

    BAD = "bad"
    WARN = "warn"


class Problem(Struct, rename="camel"):
    """A current fault.

    Attributes:
        id: Its kind and its subject. It is unique, and stays the same while the problem lasts even
            if the figures in its text change.
        link: The part of the page with details, relative to its root; empty for none.
    """

    id: str
    severity: Severity
    text: str
    link: str = ""


class Polled(NamedTuple):
    """The queues that workers polled lately, and whether a worker polls all of them."""

    queues: set[str]
    everything: bool


async def polled(polls: Mapping[str, Sequence[Poll]], *, now_ms: int) -> Polled:
    """Return the queues that a tenant's workers polled lately; `polls` are by node."""
    since_ms = now_ms - _UNPOLLED_S * 1000
    queues: set[str] = set()
    everything = False
    async for poll in in_portions(chain.from_iterable(polls.values())):
        if poll.waiting or poll.last_ms >= since_ms:
            queues.update(poll.commands)
            everything |= not poll.commands
    return Polled(queues, everything)


def of_node(serving: ServingNode) -> Iterator[Problem]:
    """Yield the faults that the serving node sees."""
    for reason in serving.missing:
        name = f"not-ready/{serving.node}/{reason.partition(':')[0]}"
        text = f"Node {serving.node} is not ready: {reason}"
        yield Problem(name, Severity.BAD, text, "cluster")
    for node in serving.nodes:
        if not node.connected:
            text = f"Node {node.id} is not connected with {serving.node}"
            yield Problem(f"away/{node.id}", Severity.BAD, text, "cluster")


def of_cluster(reports: Mapping[str, NodeReport]) -> Iterator[Problem]:
    """Yield the faults in the nodes' own reports."""
    for report in reports.values():
        if report.disk_free_bytes < _DISK_LOW * report.disk_bytes:
            free = report.disk_free_bytes / report.disk_bytes
            text = f"The disk of {report.id} is {1 - free:.0%} full"
            yield Problem(f"disk/{report.id}", Severity.WARN, text, "cluster")
    versions = sorted({report.version for report in reports.values()})
    if len(versions) > 1:
        text = f"Nodes run releases {' and '.join(versions)}: an upgrade is under way"
        yield Problem("releases", Severity.WARN, text, "cluster")


def of_queues(
    rows: Sequence[QueueRow], asked: Polled, died: Mapping[str, int]
) -> Iterator[Problem]:
    """Yield the reasons a tenant's tasks wait or die.

    Args:
        asked: The tenant's queues that workers polled lately.
        died: New dead letters by queue.
    """
    waiting = sorted((row for row in rows if row.ready), key=lambda row: -row.oldest_ready_seconds)
    old = [row for row in waiting if not row.paused and row.oldest_ready_seconds >= _UNPOLLED_S]
    unpolled, late = [], []
    for row in old:
        if not asked.everything and row.command not in asked.queues:
            unpolled.append(row)
        elif row.oldest_ready_seconds >= _BEHIND_S:
            late.append(row)
    yield from _each(
        "unpolled",
        [(row.command, f"No worker asks for {row.command}: {_waits(row)}") for row in unpolled],
        Severity.BAD,
    )
    by_number = sorted(died.items(), key=lambda each: -each[1])
    yield from _each(
        "dead-letters",
        [
            (queue, f"Dead letters of {queue}: {n:,} more in a quarter of an hour")
            for queue, n in by_number
        ],
        Severity.BAD,
        page="dead-letters",
    )
    yield from _each("behind", [(row.command, _behind(row)) for row in late], Severity.WARN)
    yield from _each(
        "paused",
        [
            (row.command, f"Queue {row.command} is paused: {_waits(row)}")
            for row in waiting
            if row.paused
        ],
        Severity.WARN,
    )


def of_webhooks(dead: int) -> Iterator[Problem]:
    """Yield a problem if result callbacks were given up."""
    if dead:
        text = f"Dead webhook deliveries: {dead}"
        yield Problem("webhooks", Severity.WARN, text, "webhooks")


def of_asides(count: int) -> Iterator[Problem]:
    """Yield a problem if something of the tenant is set aside."""
    if count:
        text = f"Set aside after a failure of the broker: {count}; codeq-cluster aside ls"
        yield Problem("aside", Severity.WARN, text)


def of_shards(shards: Sequence[ShardStatus]) -> Iterator[Problem]:
    """Yield a problem for each shard with something set aside, of any tenant."""
    for shard in shards:
        if shard.aside:
            items = _counted(shard.aside, "item")
            text = f"Shard {shard.shard_idx} has set aside {items} after a failure of the broker"
            yield Problem(f"aside/{shard.shard_idx}", Severity.WARN, text, "cluster")


def _each(
    kind: str, found: Sequence[tuple[str, str]], severity: Severity, *, page: str = "queues"
) -> Iterator[Problem]:
    """Yield a problem for each (queue, text); those beyond the bound share one line."""
    for queue, text in found[:SHOWN_MAX]:
        yield Problem(f"{kind}/{queue}", severity, text, f"{page}/{queue}")
    more = len(found) - SHOWN_MAX
    if more > 0:
        text = f"The same of {more} more {'queue' if more == 1 else 'queues'}"
        yield Problem(kind, severity, text, "queues")


def _behind(row: QueueRow) -> str:
    flows = f"{row.rates.created:g}/s come, {row.rates.started:g}/s are claimed"
    return f"Queue {row.command} is behind: {_waits(row)}, {flows}"


def _waits(row: QueueRow) -> str:
    """Return how many tasks wait in a queue, and for how long."""
    return f"{_counted(row.ready, 'task')}, the oldest for {_span(row.oldest_ready_seconds)}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _span(seconds: int) -> str:
    """Return a span of time in the largest unit that fits twice."""
    for unit_s, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s} {name}"
    return f"{seconds} s"
