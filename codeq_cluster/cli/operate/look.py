"""Look: the state of a cluster at one moment, as one of its nodes shows it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from codeq_cluster.client import Live, Refused

SLOTS_MAX = 180  # Of the charts: a quarter of an hour in slots of five seconds.


class RatesLine(Struct, rename="camel"):
    """Tasks a second, over the last minute."""

    created: float = 0.0
    started: float = 0.0
    completed: float = 0.0
    failed: float = 0.0


class TotalsLine(Struct, rename="camel"):
    """The number of tasks in each state."""

    ready: int = 0
    delayed: int = 0
    in_progress: int = 0
    dlq: int = 0
    completed: int = 0
    failed: int = 0


class Queue(Struct, rename="camel"):
    """A queue."""

    command: str
    ready: int = 0
    delayed: int = 0
    in_progress: int = 0
    dlq: int = 0
    oldest_ready_seconds: int = 0
    paused: bool = False
    rates: RatesLine = msgspec.field(default_factory=RatesLine)


class Tenant(Struct, rename="camel"):
    """A tenant's share, shown to operators; an empty name is the default tenant."""

    tenant: str
    queues: int = 0
    totals: TotalsLine = msgspec.field(default_factory=TotalsLine)


class ProblemLine(Struct):
    """A problem; `bad` comes before `warn`.

    Attributes:
        id: Stays the same while the problem lasts, even if the figures in its text change.
    """

    id: str
    severity: str
    text: str


class NodeLine(Struct):
    """A node, as the one asked sees it."""

    id: str
    url: str = ""
    connected: bool = False


class ServingNodeLine(Struct, rename="camel"):
    """The node asked, and its place in the cluster."""

    node: str
    nodes: list[NodeLine] = []
    leaderless: list[int] = []


class OverviewLines(Struct, rename="camel"):
    """The first view of the page."""

    problems: list[ProblemLine] = []
    rates: RatesLine | None = None
    waiting: list[Queue] = []
    busy: list[Queue] = []
    queues: int = 0
    tenants: list[Tenant] | None = None


class Series(Struct):
    """Consecutive slots, with the number of tasks in each."""

    step: int
    first: int
    created: list[int] = []
    completed: list[int] = []


class FlowLine(Struct, frozen=True):
    """The activity of a queue, or of several, which have no name."""

    command: str = ""
    created: int = 0
    started: int = 0
    completed: int = 0
    failed: int = 0


class Flowed(Struct):
    """The activity of each queue in the slots up to the last one.

    Attributes:
        step: Seconds per slot.
        last: Number of the last slot: Unix seconds divided by the step.
        queues: The busiest first.
        more: The number of further queues, summed in `others`.
    """

    step: int
    last: int
    queues: list[FlowLine] = []
    more: int = 0
    others: FlowLine = FlowLine()


class Trouble(Struct):
    """The reason a part of the view is missing."""

    error: str


class Peer(Struct, rename="camel"):
    """Another replica of a shard; an index of 0 is unknown."""

    id: str
    connected: bool = False
    match_index: int = 0


class ShardLine(Struct, rename="camel"):
    """A shard, as the node asked sees it."""

    shard_idx: int
    self_id: str = ""
    leader_id: str | None = None
    term: int = 0
    commit_index: int = 0
    applied_index: int = 0
    peers: list[Peer] = []


class _Parts(Struct):
    serving: ServingNodeLine
    totals: TotalsLine | None = None
    view: OverviewLines | None = None
    series: Series | None = None
    trouble: Trouble | None = None


class _FlowParts(Struct):
    view: Flowed | None = None


class _Groups(Struct):
    groups: list[ShardLine] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The state of a cluster at one moment.

    Attributes:
        at_s: When it was taken, in monotonic seconds.
        cluster: The cluster's id.
        roles: The caller's scopes.
        totals: Of the caller's tenant; None for a caller without one.
        trouble: Why something is missing; empty if nothing is.
    """

    at_s: float
    cluster: str
    roles: frozenset[str] = frozenset()
    serving: ServingNodeLine
    totals: TotalsLine | None
    overview: OverviewLines
    shards: tuple[ShardLine, ...]
    trouble: str = ""


@dataclass(slots=True)
class Flows:
    """Created and completed tasks per slot, the last `SLOTS_MAX` slots."""

    step_s: int = 5
    last: int = 0
    created: deque[int] = field(default_factory=lambda: deque(maxlen=SLOTS_MAX))
    completed: deque[int] = field(default_factory=lambda: deque(maxlen=SLOTS_MAX))

    def add(self, series: Series) -> None:
        """Add the slots that follow."""
        self.step_s = series.step
        self.created.extend(series.created)
        self.completed.extend(series.completed)
        self.last = series.first + len(series.created) - 1


async def taken(live: Live, flows: Flows) -> Look:
    """Return the cluster's state, and add the activity since the last look to `flows`.

    Raises:
        Refused: The token has nothing to see, or the answer has another form.
        Unreachable: No node answers.
    """
    session = await live.session()
    parts = _as(_Parts, await live.look("overview", since=flows.last))
    groups = _as(_Groups, await live.raft_status())
    if parts.series is not None:
        flows.add(parts.series)
    return Look(
        at_s=time.monotonic(),
        cluster=str(session.get("cluster", "")),
        roles=frozenset(map(str, session.get("roles", ()))),
        serving=parts.serving,
        totals=parts.totals,
        overview=parts.view or OverviewLines(),
        shards=tuple(sorted(groups.groups, key=lambda shard: shard.shard_idx)),
        trouble=parts.trouble.error if parts.trouble else "",
    )


async def flowed(live: Live, *, since: int) -> Flowed | None:
    """Return the activity of the queues after a slot; for slot 0 only the last slot's number.

    None if the node cannot tell now, or its release does not have it.

    Raises:
        Refused: The token has no tenant to look at.
        Unreachable: No node answers.
    """
    try:
        parts = await live.look("flows", since=since)
    except Refused as refused:
        if refused.code != "invalid-query":
            raise
        return None
    flow: _FlowParts = _as(_FlowParts, parts)
    return flow.view


def _as(kind: type[Any], answer: Mapping[str, Any]) -> Any:
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        text = f"the node shows its state in an unknown form: {error}; is it of another release?"
        raise Refused(text, status=200) from error
