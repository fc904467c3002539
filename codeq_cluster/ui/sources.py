"""Sources: the data of the page's views that the API's routes do not have."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeVar, cast

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.polls import Poll, Polls
from codeq_cluster.broker.queries.depths import LocalDepths
from codeq_cluster.kept import Kept
from codeq_cluster.membership.node_report import NodeReport
from codeq_cluster.routing.ask_all import AskAll, Fact
from codeq_cluster.telemetry.history import FINE_S, Flow, History, Slice, merged
from codeq_cluster.telemetry.history import SLOTS as SLOTS_KEPT

# Nodes of different releases ask each other, so a fact whose question or answer changes its form
# needs a new name.
RATES = Fact("rates", str, dict[str, list[int]])
FLOWS = Fact("flows", tuple[str, int, int], dict[str, list[int]])
SLOTS = Fact("slots", tuple[str | None, str, int, int, int], Slice)
POLLS = Fact("polls", str, list[Poll])
REPORT = Fact("report", NoneType, NodeReport)

# Answers kept at once. Those for charts are the most, with up to 12 KB each.
ANSWERS_MAX = 1000

# Each node closes a slot by its own clock; the margin lets the others close it too.
_SETTLED_S = 2

_T = TypeVar("_T")


class Shared:
    """Gives callers that ask for the same thing within a moment one shared answer.

    Of `ANSWERS_MAX` answers, the tenant with the most loses its oldest.

    Args:
        background: Owns the tasks that compute answers.
        clock: Monotonic seconds.
    """

    def __init__(self, background: Background, clock: Callable[[], float] = time.monotonic) -> None:
        self._background = background
        self._clock = clock
        self._made: Kept[str | None, tuple[float, asyncio.Task[Any]]] = Kept(ANSWERS_MAX)

    async def of(
        self,
        tenant: str | None,
        name: Hashable,
        keep_s: float,
        make: Callable[[], Coroutine[Any, Any, _T]],
    ) -> _T:
        """Return the result of `make` for this name of a tenant, at most `keep_s` old.

        A name of no tenant, None, is the same for all.
        """
        now_s = self._clock()
        made = self._made.get(tenant, name)
        if made is None or made[0] <= now_s:
            self._forget(now_s)
            made = (now_s + keep_s, self._background.spawn(make()))
            self._made.put(tenant, name, made)
        try:
            # Shielded: a caller that leaves must not cancel the answer for the others.
            return cast("_T", await asyncio.shield(made[1]))
        except Exception:
            self._made.drop(tenant, name)
            raise

    def _forget(self, now_s: float) -> None:
        for tenant, name, (until_s, _) in self._made.every():
            if until_s <= now_s:
                self._made.drop(tenant, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The data of this node, and requests to the others.

    Attributes:
        depths: Of this node's replicas.
        history: Of this node.
        polls: Of this node.
        gathering: Asks every node, and answers the other nodes once `offer` was called.
        now_ms: Unix milliseconds.
        shared: Answers shared by several pages.
    """

    depths: LocalDepths
    history: History
    polls: Polls
    gathering: AskAll
    now_ms: Callable[[], int]
    shared: Shared

    def offer(self, report: Callable[[], Awaitable[NodeReport]]) -> None:
        """Start answering the other nodes."""

        async def rates(tenant: str) -> dict[str, list[int]]:
            return self.history.rates(tenant)

        async def flows(asked: tuple[str, int, int]) -> dict[str, list[int]]:
            tenant, since, until = asked
            return self.history.flows(tenant, since=since, until=until)

        async def slots(asked: tuple[str | None, str, int, int, int]) -> Slice:
            tenant, queue, step_s, since, until = asked
            return self.history.slots(tenant, queue, step_s=step_s, since=since, until=until)

        async def polls(tenant: str) -> list[Poll]:
            return self.polls.of(tenant)

        async def reported(_nothing: None) -> NodeReport:
            return await report()

        self.gathering.register(RATES, rates)
        self.gathering.register(FLOWS, flows)
        self.gathering.register(SLOTS, slots)
        self.gathering.register(POLLS, polls)
        self.gathering.register(REPORT, reported)

    async def rates(self, tenant: str) -> dict[str, list[int]]:
        """Return the flows of the last minute over all nodes, by queue: one number per `Flow`."""
        return await self.shared.of(tenant, RATES, 2, lambda: self._summed(RATES, tenant))

    async def flows(self, tenant: str, *, since: int) -> tuple[int, dict[str, list[int]]]:
        """Return the flows after a slot over all nodes, by queue, and the last slot in them.

        Each list holds one number per `Flow`. With `since` 0 only the last slot's number is
        returned.
        """
        settled = (self.now_ms() // 1000 - _SETTLED_S) // FINE_S
        until = min(settled, self.history.current)  # A busy node ends its slots late.
        if not 0 < since < until - 1:
            return until - 1, {}
        asked = (tenant, _kept_since(since, until), until)
        made = self.shared.of(tenant, (FLOWS, asked), FINE_S, lambda: self._summed(FLOWS, asked))
        return until - 1, await made

    async def slots(self, tenant: str | None, queue: str, *, step_s: int, since: int) -> Slice:
        """Return the slots after `since` over all nodes; 0 for all slots there are."""
        until = (self.now_ms() // 1000 - _SETTLED_S) // step_s
        asked = (tenant, queue, step_s, _kept_since(since, until), until)

        async def make() -> Slice:
            said = await self.gathering.ask(SLOTS, asked)
            return merged(list(said.values()))

        return await self.shared.of(tenant, (SLOTS, asked), step_s, make)

    async def workers(self, tenant: str) -> dict[str, list[Poll]]:
        """Return the workers that claimed on each node."""
        return await self.shared.of(tenant, POLLS, 2, lambda: self.gathering.ask(POLLS, tenant))

    async def reports(self) -> dict[str, NodeReport]:
        """Return the status of every node that can be reached."""
        return await self.shared.of(None, REPORT, 1, lambda: self.gathering.ask(REPORT, None))

    async def _summed(
        self, fact: Fact[_T, dict[str, list[int]]], asked: _T
    ) -> dict[str, list[int]]:
        """Return the sums of all nodes' counts, by queue."""
        sums: dict[str, list[int]] = {}
        for counted in (await self.gathering.ask(fact, asked)).values():
            for queue, flows in counted.items():
                before = sums.get(queue, [0] * len(Flow))
                sums[queue] = [a + b for a, b in zip(before, flows, strict=True)]
        return sums


def _kept_since(since: int, until: int) -> int:
    """Return a slot with the same slots after it that are kept: each is asked for by few names."""
    return min(max(since, until - SLOTS_KEPT - 1), until)
