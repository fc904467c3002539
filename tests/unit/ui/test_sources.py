"""Sources: answers that several pages share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.engine.catalogue import Catalogue
from codeq_cluster.broker.polls import Polls
from codeq_cluster.broker.queries.depths import LocalDepths
from codeq_cluster.routing.ask_all import AskAll
from codeq_cluster.telemetry.history import FINE_S, SLOTS, History, Slice
from codeq_cluster.ui import sources as ui
from codeq_cluster.ui.sources import ANSWERS_MAX, Shared, Sources

_UNTIL = 100_000
_NOW_S = _UNTIL * FINE_S + 4


@pytest_asyncio.fixture
async def background() -> AsyncIterator[Background]:
    """Yield an owner of tasks."""
    made = Background()
    yield made
    await made.stop()


async def test_a_flood_of_names_is_forgotten_and_other_tenants_answers_are_not(
    background: Background,
) -> None:
    """A viewer chooses part of the names of its answers."""
    shared = Shared(background, clock=lambda: 0.0)
    made: list[str] = []

    async def ask(tenant: str, name: str) -> None:
        async def make() -> None:
            made.append(name)

        await shared.of(tenant, name, 60, make)

    await ask("other", "before")
    for number in range(ANSWERS_MAX + 1):
        await ask("acme", f"a{number}")
    made.clear()
    for tenant, name in (("other", "before"), ("acme", f"a{ANSWERS_MAX}"), ("acme", "a0")):
        await ask(tenant, name)

    assert ["a0"] == made


async def test_slots_are_asked_for_by_few_names_whatever_a_page_has(
    background: Background,
) -> None:
    """Before the first slot that is kept and after the last there is nothing to tell apart."""
    history = History(list, lambda: _NOW_S - SLOTS * FINE_S)
    await history.end_slots(_UNTIL)
    gathering = AskAll(node_id="n1", peers=lambda: (), calls=None)  # type: ignore[arg-type]
    asked = []

    async def slots(each: tuple[str | None, str, int, int, int]) -> Slice:
        tenant, queue, step_s, since, until = each
        asked.append(each)
        return history.slots(tenant, queue, step_s=step_s, since=since, until=until)

    gathering.register(ui.SLOTS, slots)
    sources = Sources(
        depths=LocalDepths(stores=[], catalogue=Catalogue([])),
        history=history,
        polls=Polls(lambda: _NOW_S * 1000),
        gathering=gathering,
        now_ms=lambda: _NOW_S * 1000,
        shared=Shared(background),
    )
    firsts = [
        (await sources.slots("acme", "", step_s=FINE_S, since=since)).first
        for since in (0, *range(_UNTIL - 2 * SLOTS, _UNTIL + SLOTS), 10**18, -(10**18))
    ]

    assert [_UNTIL - SLOTS] * (SLOTS + 1) == firsts[: SLOTS + 1]
    assert list(range(_UNTIL - SLOTS, _UNTIL)) == firsts[SLOTS : 2 * SLOTS]
    assert SLOTS + 2 == len(asked)
