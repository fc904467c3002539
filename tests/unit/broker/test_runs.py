"""Runs: the engine decides operations together as it would decide each one alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from codeq_cluster.broker.scanning import every_row
from codeq_cluster.core.groups import CreateGroup, Group
from codeq_cluster.core.new_task import Create, CreateTagged
from codeq_cluster.core.operations import Claim, Operation, Submit
from codeq_cluster.core.outcomes import Claimed, Created, Outcome, Submitted
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import OperationTooLarge, OutcomeUnknown
from tests.fakes.memory_store import MemoryShard

from .conftest import Shard, TestClock, claim, create, make_shard, submit

_IDS = [f"t{number}" for number in range(6)]
_LATER = st.sampled_from((0, 0, 5_000))


_creates = st.builds(
    create,
    st.sampled_from(_IDS),
    command=st.sampled_from(("render", "resize")),
    idempotency_key=st.sampled_from(("", "", "k1", "k2")),
    fingerprint=st.sampled_from(("f1", "f2")),
    webhook=st.sampled_from(("", "http://example.com/")),
    delay_ms=_LATER,
)
_submits = st.builds(
    submit,
    st.sampled_from(_IDS),
    request=st.sampled_from(("s1", "s2")),
    token=st.sampled_from((0, 0, 1)),
)
_claims = st.builds(
    claim, st.sampled_from(("r1", "r2", "r3")), count=st.integers(1, 4), commands=st.just(())
)
_tagged = st.builds(lambda create: CreateTagged(replace(create, tags=(("env", "test"),))), _creates)
_operations = st.lists(_creates | _creates | _tagged | _submits | _claims, max_size=12)


def _leading(*, entry_bytes_max: int = 2**20) -> Shard:
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=entry_bytes_max)
    shard.log.lead()
    return shard


async def _decided(
    parts: Sequence[Sequence[Operation]],
) -> tuple[list[Outcome], dict[bytes, bytes]]:
    """Return the outcomes of calls on a new shard, and the shard's rows afterwards."""
    shard = _leading()
    outcomes: list[Outcome] = []
    for operations in parts:
        outcomes += await shard.engine.operate(list(operations))
    shard.engine.stop()
    return outcomes, dict(every_row(shard.store.state, b"", b"\xff"))


_KEYED: dict[str, str] = {"idempotency_key": "k1", "fingerprint": "f1"}


@example(before=[], together=[create("t0", **_KEYED), create("t1", **_KEYED)])
@example(
    before=[create("t0", **_KEYED), claim("r1")],
    together=[submit("t0"), create("t1", **_KEYED)],
)
@given(before=_operations, together=_operations)
def test_operations_sent_together_end_as_one_after_another(
    before: list[Create | Submit | Claim], together: list[Create | Submit | Claim]
) -> None:
    """Outcomes and rows are the same, whatever the operations have in common."""
    alone = [[operation] for operation in before]

    async def both() -> None:
        apart = await _decided([*alone, *([operation] for operation in together)])
        assert apart == await _decided([*alone, together])

    asyncio.run(both())


@pytest.mark.asyncio
async def test_a_run_is_one_change_of_its_queue() -> None:
    """The counters are right, and every task is in its place."""
    shard = _leading()
    created = await shard.engine.operate([create(each) for each in _IDS])
    [claimed] = await shard.engine.operate([claim("r", count=6)])
    assert isinstance(claimed, Claimed)
    ended = await shard.engine.operate(
        [submit(task.id, token=task.lease_token) for task in claimed.tasks]
    )
    counters = shard.engine.view.counters["render", "acme"]
    shard.engine.stop()

    assert [Created] * 6 == [type(outcome) for outcome in created]
    assert _IDS == [task.id for task in claimed.tasks]
    assert [Submitted] * 6 == [type(outcome) for outcome in ended]
    assert (0, 0, 6) == (counters.ready, counters.leased, counters.done)


@pytest.mark.asyncio
async def test_the_members_of_a_group_that_end_together_all_count() -> None:
    """Each end changes the group's row, so each decision needs the one before."""
    shard = _leading()
    part, report = Create(command="render", payload="1"), Create(command="report", payload="{}")
    group = CreateGroup(
        tenant="acme", id="g", digest="d", then=report, tasks=(part,) * 3, seal=True
    )
    await shard.engine.operate([group])
    [claimed] = await shard.engine.operate([claim("r", count=3)])
    assert isinstance(claimed, Claimed)
    await shard.engine.operate([submit(task.id, token=task.lease_token) for task in claimed.tasks])
    found = shard.engine.view.item(ItemKind.GROUP, "acme", "g")
    ready = shard.engine.view.queues("acme")
    shard.engine.stop()

    assert isinstance(found, Group)
    assert (3, 3, 0) == (found.total, found.completed, found.live)
    assert {"report"} == ready


@pytest.mark.asyncio
async def test_a_run_that_fits_no_entry_is_decided_in_parts() -> None:
    """All its operations are done in order; one that is too large for any entry fails its call."""
    shard = _leading(entry_bytes_max=20_000)
    large = '"%s"' % ("x" * 6_000)
    outcomes = await shard.engine.operate([create(each, payload=large) for each in _IDS])
    seqs = [outcome.task.seq for outcome in outcomes if isinstance(outcome, Created)]
    too_large = '"%s"' % ("x" * 20_000)
    with pytest.raises(OperationTooLarge):
        await shard.engine.operate([create("t6", payload=too_large), create("t7")])
    with pytest.raises(OutcomeUnknown):
        await shard.engine.operate([create("t8"), create("t9", payload=too_large)])
    shard.engine.stop()

    assert 6 == len(seqs)
    assert sorted(seqs) == seqs
    assert len(shard.seen.entries) > 1
