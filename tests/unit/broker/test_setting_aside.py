"""Setting aside: a task or item that the broker fails at, among neighbours that it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.bulk import STEP_MS, ActionKind, BulkAction, BulkJob, StartBulk
from codeq_cluster.core.items import KIND_OF, NO_OWNER, Aside, Audit, Delivery, Item, Subscription
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.operations import Cancel, Retry, Staging
from codeq_cluster.core.outcomes import Cancelled, Changed
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.selecting import Selection
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import UPLOADS_MAX, State, Task
from tests.fakes.memory_store import MemoryShard

from .conftest import GRACE_MS, Shard, TestClock, claim, create, make_shard, submit, subscribe

pytestmark = pytest.mark.asyncio

_AHEAD = 300  # More tasks than one advance takes.


async def _until(shard: Shard, happened: Callable[[], bool], *, step_ms: int = 0) -> None:
    """Wait for timers and applied entries, each a step later, until the condition holds."""
    applied = asyncio.Event()
    shard.engine.on_rows(lambda _: applied.set())
    async with asyncio.timeout(10):
        while not happened():
            await applied.wait()
            applied.clear()
            shard.clock.pass_ms(step_ms)


def _asides(shard: Shard) -> list[Aside]:
    start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.ASIDE))
    found = [records.decode_item(value) for _, value in shard.store.state.scan(start, end, 100)]
    return [each for each in found if isinstance(each, Aside)]


def _stored(shard: Shard, task_id: str) -> Task:
    record = shard.store.state.get(keyspace.task(task_id))
    assert record is not None
    return records.decode_task(record)


def _poison(shard: Shard, task_id: str, record: bytes) -> None:
    """Put another record under a task's key, as a bug or a damaged import would."""
    shard.store.state._put(keyspace.task(task_id), record)


def _ready(shard: Shard) -> int:
    return shard.engine.ready("acme", "render")


def _followed(store: MemoryShard, clock: TestClock, term: int) -> Shard:
    """Return the engine of the next leader."""
    made = make_shard(store, clock)
    made.log.term = term
    made.log.lead()
    return made


def _cannot_be_placed(task: Task) -> bytes:
    """Return the task with a dead-letter queue that no key can hold."""
    return records.encode(replace(task, dead_queue="a/b"))


def _unreadable(_task: Task) -> bytes:
    return b"\x07 no record"


@pytest.mark.parametrize("poison", [_unreadable, _cannot_be_placed])
async def test_one_task_in_a_thousand_does_not_stop_time(
    shard: Shard, poison: Callable[[Task], bytes]
) -> None:
    """The task in the middle cannot be acted on; all others become ready at their instant."""
    ids = [f"t{number:03}" for number in range(2 * _AHEAD + 1)]
    await shard.engine.operate([create(each, delay_ms=5) for each in ids])
    bad = _stored(shard, ids[_AHEAD])
    if poison is _cannot_be_placed:
        bad = replace(bad, state=State.DEAD, retain_until_ms=bad.due_ms, due_ms=0)
    _poison(shard, bad.id, poison(bad))
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(5)
    await _until(shard, lambda: _ready(shard) == 2 * _AHEAD and bool(_asides(shard)))

    [aside] = _asides(shard)
    assert ("task", bad.id, keyspace.ttl(bad.created_ms + 5, bad.id)) == (
        aside.kind,
        aside.subject,
        aside.timer,
    )
    assert (NO_OWNER if poison is _unreadable else "acme") == aside.tenant
    assert [Loop.TIMERS] == shard.seen.failures


async def test_every_one_of_many_is_set_aside(shard: Shard) -> None:
    """A tenant with nothing else delays its neighbours by no more than one entry for each."""
    bad = [f"b{number:03}" for number in range(_AHEAD // 3)]
    await shard.engine.operate([create(each, delay_ms=5, tenant="evil") for each in bad])
    await shard.engine.operate([create("good", delay_ms=6)])
    for each in bad:
        _poison(shard, each, b"")
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(6)
    await _until(shard, lambda: _ready(shard) == 1)

    assert set(bad) == {each.subject for each in _asides(shard)}


async def test_the_next_leader_knows_what_is_set_aside() -> None:
    """It does not try again, and its view says what waits."""
    store, clock = MemoryShard(), TestClock()
    old = _followed(store, clock, term=0)
    await old.engine.operate([create("bad", delay_ms=5), create("good", delay_ms=60_000)])
    _poison(old, "bad", b"")
    old.log.depose()
    old.log.lead()
    clock.pass_ms(5)
    await _until(old, lambda: bool(_asides(old)))
    old.log.depose()
    clock.pass_ms(60_000)
    new = _followed(store, clock, term=old.log.term)
    assert {(NO_OWNER, "task.bad")} == new.engine.view.asides
    await _until(new, lambda: _ready(new) == 1)

    assert [] == new.seen.failures
    new.engine.stop()


async def _set_aside(shard: Shard, task_id: str, poisoned: bytes) -> Task:
    """Set a delayed task aside, and mend it; return it."""
    await shard.engine.operate([create(task_id, delay_ms=5)])
    whole = _stored(shard, task_id)
    _poison(shard, task_id, poisoned)
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(5)
    await _until(shard, lambda: bool(_asides(shard)))
    _poison(shard, task_id, records.encode(whole))
    return whole


async def test_a_retry_makes_it_due_again(shard: Shard) -> None:
    """Its record was mended meanwhile, so it becomes ready; the retry is on record."""
    await _set_aside(shard, "t1", b"")
    retry = Retry(request="r1", tenant=NO_OWNER, ids=("task.t1", "task.none"), by="op")

    assert [Changed(1)] == await shard.engine.operate([retry])
    await _until(shard, lambda: _ready(shard) == 1)
    assert [] == _asides(shard)
    assert set() == shard.engine.view.asides
    start, end = keyspace.prefix_range(keyspace.item_prefix(ItemKind.AUDIT, NO_OWNER))
    assert 1 == len(shard.store.state.scan(start, end, 10))


async def test_a_retry_that_fails_is_set_aside_again(shard: Shard) -> None:
    """It costs its neighbours as little as the first time."""
    await _set_aside(shard, "t1", b"")
    _poison(shard, "t1", b"")
    shard.log.depose()
    shard.log.lead()
    await shard.engine.operate([Retry(request="r1", tenant=NO_OWNER, ids=("task.t1",), by="op")])
    await _until(shard, lambda: bool(_asides(shard)))

    assert [Loop.TIMERS] * 2 == shard.seen.failures


async def test_an_ordinary_change_ends_it(shard: Shard) -> None:
    """A cancelled task has the timer of its retention, and no other; rows stay net."""
    task = await _set_aside(shard, "t1", b"")
    [outcome] = await shard.engine.operate([Cancel(request="c", id="t1", tenant="acme")])

    assert isinstance(outcome, Cancelled)
    assert [] == _asides(shard)
    timers = shard.store.state.scan(*keyspace.prefix_range(keyspace.TTL_PREFIX), 10)
    assert [keyspace.ttl(outcome.task.retain_until_ms, task.id)] == [key for key, _ in timers]


async def test_a_change_that_keeps_the_instant_puts_the_timer_back(shard: Shard) -> None:
    """A heartbeat that extends nothing is no change; a staged upload leaves the lease's row."""
    shard.clock.pass_ms(GRACE_MS)
    await shard.engine.operate([create("t1"), claim("r", lease_ms=5)])
    whole = _stored(shard, "t1")
    _poison(shard, "t1", b"")
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(GRACE_MS)
    await shard.engine.operate([create("t2", delay_ms=1)])  # The clock of decisions passes, too.
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(GRACE_MS)
    lease = keyspace.lease(whole.lease_until_ms, "t1")
    await _until(shard, lambda: shard.store.state.get(lease) is None)
    _poison(shard, "t1", records.encode(whole))
    shard.log.depose()
    shard.log.lead()

    await shard.engine.operate([Staging(id="t1", tenant="acme", worker="ann", upload="u")])

    assert [] == _asides(shard)
    assert b"" == shard.store.state.get(lease)


async def test_what_fits_no_entry_is_set_aside() -> None:
    """A task whose deletion is larger than an entry stays; its neighbour is deleted in time."""
    shard = make_shard(MemoryShard(), TestClock(), entry_bytes_max=20_000)
    shard.log.lead()
    await shard.engine.operate([create("bad"), create("good"), claim("r", count=2)])
    await shard.engine.operate([submit("bad"), submit("good")])
    uploads = tuple(f"{number:040}" for number in range(UPLOADS_MAX))
    bad = replace(_stored(shard, "bad"), uploads=uploads, upload_bytes=(0,) * UPLOADS_MAX)
    _poison(shard, "bad", records.encode(bad))
    shard.log.depose()
    shard.clock.pass_ms(LifetimeRules().retention_ms)
    shard.log.lead()
    await _until(shard, lambda: shard.store.state.get(keyspace.task("good")) is None)

    assert "bad" == _stored(shard, "bad").id
    [aside] = _asides(shard)
    assert "OperationTooLarge" in aside.reason
    shard.engine.stop()


async def test_an_item_that_cannot_be_read_is_set_aside(shard: Shard) -> None:
    """A subscription's end is not seen; tasks and other items go on."""
    await shard.engine.operate([subscribe(ttl_ms=5)])
    key = keyspace.item(ItemKind.SUBSCRIPTION, "acme", "s1")
    other = keyspace.item(ItemKind.SUBSCRIPTION, "acme", "s2")
    item = records.decode_item(shard.store.state.get(key) or b"")
    assert isinstance(item, Subscription)
    shard.store.state._put(key, b"\x07")
    later = replace(item, id="s2", expires_ms=item.expires_ms + 1)
    shard.store.state._put(other, records.encode(later))
    [expiry] = keyspace.item_index_keys(later)
    shard.store.state._put(expiry, b"")
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(10)
    await _until(shard, lambda: shard.store.state.get(other) is None)

    assert [("acme", "sub.s1")] == [(each.tenant, each.id) for each in _asides(shard)]


async def test_a_bulk_job_goes_on_past_a_task_that_cannot_be_read(shard: Shard) -> None:
    """Another tenant's, or one of its own: the job counts it, and acts on all others."""
    ids = [f"t{number}" for number in range(4)]
    action = BulkAction(kind=ActionKind.CANCEL)
    select = Selection(queue="render")
    job = StartBulk(request="r", tenant="acme", id="j", by="ops", select=select, action=action)
    tasks = [create(each, tenant="other" if each == "t0" else "acme") for each in ids]
    await shard.engine.operate([*tasks, job])
    for each in ids[:2]:
        _poison(shard, each, b"\x07 no record")
    decided = set(shard.engine.view.bulk)
    shard.log.depose()
    shard.log.lead()
    read = set(shard.engine.view.bulk)
    shard.clock.pass_ms(2 * STEP_MS)

    def done() -> bool:
        return all(_stored(shard, each).state is State.FAILED for each in ids[2:])

    await _until(shard, done, step_ms=STEP_MS)
    record = shard.store.state.get(keyspace.item(ItemKind.BULK, "acme", "j"))
    assert record is not None
    found = records.decode_item(record)
    assert isinstance(found, BulkJob)

    assert (4, 2, 2, 2) == (found.looked, found.selected, found.changed, found.unreadable)
    assert found.ended_ms
    assert [{("acme", "j")}, {("acme", "j")}, set()] == [decided, read, shard.engine.view.bulk]
    assert [] == _asides(shard)
    assert [Loop.BULK] * 2 == shard.seen.failures


def _record(name: str, expires_ms: int) -> Item:
    return Audit(
        tenant="acme",
        id=name,
        at_ms=1,
        actor="op",
        action="topic.put",
        target="render",
        expires_ms=expires_ms,
    )


def _dead(name: str, expires_ms: int) -> Item:
    return Delivery(
        tenant="acme",
        id=f"{name}.1",
        task_id=name,
        command="render",
        url="http://swift/",
        created_ms=1,
        died_ms=1,
        expires_ms=expires_ms,
    )


@pytest.mark.parametrize("made", [_record, _dead])
async def test_an_audit_record_or_dead_delivery_that_cannot_be_read_is_set_aside(
    shard: Shard, made: Callable[[str, int], Item]
) -> None:
    """Its neighbour behind it is deleted at its end."""
    store, now_ms = shard.store.state, shard.clock.wall
    bad, good = made("bad", now_ms + 5), made("good", now_ms + 6)
    keys = [keyspace.item(KIND_OF[type(each)], each.tenant, each.id) for each in (bad, good)]
    for key, item, record in zip(keys, (bad, good), (b"\x07", records.encode(good)), strict=True):
        store._put(key, record)
        for index_key in keyspace.item_index_keys(item):
            store._put(index_key, b"")
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(10)
    await _until(shard, lambda: store.get(keys[1]) is None and bool(_asides(shard)))

    assert b"\x07" == store.get(keys[0])
    assert [(KIND_OF[type(bad)], bad.id)] == [(each.kind, each.subject) for each in _asides(shard)]
    assert [Loop.TIMERS] == shard.seen.failures


async def test_what_cannot_even_be_set_aside_is_passed_over(shard: Shard) -> None:
    """Its owner's name fits no key, so no row of it can be written; the others go on."""
    await shard.engine.operate([create("bad", delay_ms=5), create("good", delay_ms=5)])
    _poison(
        shard,
        "bad",
        records.encode(replace(_stored(shard, "bad"), tenant="a/b")),
    )
    shard.log.depose()
    shard.log.lead()
    shard.clock.pass_ms(5)
    await _until(shard, lambda: _ready(shard) == 1)

    assert [] == _asides(shard)
    view = shard.engine.view
    assert view.time.first(now_ms=view.now_ms, leases_too=True) is None
