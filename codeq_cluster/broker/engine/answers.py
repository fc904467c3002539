"""Answers: one shard's answers from its committed state, after the caller's read index."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any, assert_never

from codeq_cluster.broker.engine.explained import explain_task
from codeq_cluster.broker.engine.faults import alone
from codeq_cluster.broker.engine.state import EngineState
from codeq_cluster.broker.engine.view import seq_ms
from codeq_cluster.broker.ports import Depth, StateStore
from codeq_cluster.broker.questions import (
    END,
    Answer,
    AnyQuestion,
    Browse,
    BrowseDelayed,
    BrowseIds,
    BrowseTags,
    Counted,
    CountSelected,
    Explain,
    Explained,
    ItemPage,
    ListItems,
    ListKeys,
    Settle,
    Settled,
    ShardPage,
    Watch,
)
from codeq_cluster.broker.scanning import every_row, next_keys, walk
from codeq_cluster.broker.values import count_error
from codeq_cluster.codec import keyspace, lane_keys, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.codec.line_keys import groups_prefix
from codeq_cluster.core.items import Item
from codeq_cluster.core.lane import Lane, by_work, lane_id
from codeq_cluster.core.loops import Loop
from codeq_cluster.core.schedules import Schedule
from codeq_cluster.core.selecting import steps_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import PRIORITY_MAX, Task

# Rows read for one answer, counting those a filter drops and places without tasks: about 15 ms.
LOOKED_AT_MAX = 1000
# Leaps of a walk for one answer about all tasks with some tags, which a tenant may ask for without
# end, each with a look at rows or at a record.
LEAPS_MAX = 250
# Bytes of records read for one answer, those that a filter drops included: about 3 ms. An answer
# fits a frame of the link so, too.
BYTES_MAX = 2**20
RECORDS_AT_ONCE = 16  # Records that one scan reads before their bytes are counted.
LANES_MAX = 32  # Keys of a queue whose first task is looked up: 32 x up to 10 us.
QUEUES_AT_ONCE = 100  # Queues of which a task is looked up without a pause: 100 x up to 100 us.

_ORDER = tuple(QueuePlace)
_ENDED = (QueuePlace.DONE, QueuePlace.FAILED, QueuePlace.DLQ)


# Called for each row that is left out of a list, because its record cannot be read.
Unreadable = Callable[[], None]


async def answer(state: EngineState, question: AnyQuestion) -> Answer:
    """Answer a question from the applied state.

    Raises:
        Overloaded: Too many callers wait for another shard's entries, or on leases.
        NotLeader: The leadership has ended during a wait.
    """
    store, replica = state.store, state.replica
    unreadable = partial(state.setup.observer.item_failed, Loop.LISTS)
    match question:
        case Browse():
            return browse(store, replica.counted_queues(question.tenant), question, unreadable)
        case BrowseDelayed():
            tenant, counters = question.tenant, replica.counters
            names = replica.counted_queues(tenant)
            delayed = [queue for queue in names if counters[queue, tenant].delayed]
            return await browse_delayed(store, delayed, question, unreadable)
        case BrowseIds() | BrowseTags() | CountSelected() | ListItems() | ListKeys():
            return _OF_ROWS[type(question)](store, question, unreadable)
        case Explain():
            return Explained(explain_task(state, question))
        case Settle():
            await state.setup.catalogue.settled(question.shard, question.index)
            return Settled()
        case Watch():
            return await state.watches.wait(question)
        case _:
            assert_never(question)


async def depths(state: EngineState, tenant: str, queue: str) -> list[Depth]:
    """Return the tenant's queues, or the one named if it has tasks.

    The counters are of one instant. For many queues, the oldest tasks are looked up in portions, so
    that other work on the loop gets its turn.
    """
    replica = state.replica
    names = [queue] if queue else list(replica.counted_queues(tenant))
    found = [
        (name, replica.counters[name, tenant])
        for name in names
        if (name, tenant) in replica.counters
    ]
    answered: list[Depth] = []
    for name, counters in found:
        gate = state.view.gates.get((tenant, name))
        answered.append(
            Depth(
                name,
                counters.ready,
                counters.delayed,
                counters.leased,
                counters.dead,
                oldest_ready_ms(state.store, name, tenant) if counters.ready else 0,
                counters.held,
                oldest_held_ms(state.store, name, tenant) if counters.held else 0,
                gate.held_until_ms if gate is not None else 0,
            )
        )
        if len(answered) % QUEUES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return answered


def browse(
    store: StateStore, queues: Iterable[str], asked: Browse, unreadable: Unreadable
) -> ShardPage:
    """Return the next tasks of the tenant.

    Args:
        queues: The tenant's queues; those without tasks may be missing.
        asked: The request; its `places` must not be empty.
    """
    rows: list[tuple[bytes, Task]] = []
    looked_at = size = 0
    for queue, place in _places(queues, asked):
        prefix = keyspace.place_prefix(place, queue, asked.tenant)
        head = _position(queue, place, b"")
        looked_at += 1
        start, end = keyspace.prefix_range(prefix)
        if asked.ended_before_ms and place in _ENDED:
            start = keyspace.ended_before(place, queue, asked.tenant, asked.ended_before_ms)
        if asked.after >= head:
            if not asked.after.startswith(head):
                continue
            start = max(start, prefix + asked.after[len(head) :] + b"\0")
        while page := store.scan(start, end, min(asked.count + 1, LOOKED_AT_MAX)):
            for key, _ in page:
                position = head + key[len(prefix) :]
                with alone(unreadable, task=keyspace.last_id(key)):
                    record = _record(store, keyspace.last_id(key))
                    size += len(record)
                    task = records.decode_task(record)
                    if (not asked.error or task.error == asked.error) and asked.only.fits(task):
                        rows.append((position, task))
                looked_at += 1
                full = len(rows) == asked.count or size >= BYTES_MAX
                if full or looked_at >= LOOKED_AT_MAX:
                    return ShardPage(tuple(rows), position)
            start = page[-1][0] + b"\0"
        if looked_at >= LOOKED_AT_MAX:
            return ShardPage(tuple(rows), _beyond(queue, place))
    return ShardPage(tuple(rows), END)


async def browse_delayed(
    store: StateStore, queues: Iterable[str], asked: BrowseDelayed, unreadable: Unreadable
) -> ShardPage:
    """Return the tenant's next delayed tasks, those of all its queues in one order.

    Other work on the loop gets its turn meanwhile. A task that it moves is left out.

    Args:
        queues: The tenant's queues with delayed tasks.
    """
    wanted = [queue for queue in queues if asked.queue in ("", queue)]
    lines: list[Iterator[tuple[bytes, bytes]]] = []
    for number, queue in enumerate(wanted, 1):
        line = _delays(store, queue, asked)
        lines += [chain((head,), line) for head in islice(line, 1)]
        if number % QUEUES_AT_ONCE == 0:
            await asyncio.sleep(0)
    rows: list[tuple[bytes, Task]] = []
    size = 0
    for looked_at, (position, key) in enumerate(heapq.merge(*lines), 1):
        task_id = keyspace.last_id(key)
        record = store.get(keyspace.task(task_id))
        with alone(unreadable, task=task_id):
            if record is not None:
                size += len(record)
                task = records.decode_task(record)
                if key in keyspace.index_keys(task) and asked.only.fits(task):
                    rows.append((position, task))
        full = len(rows) == asked.count or size >= BYTES_MAX
        if full or looked_at == LOOKED_AT_MAX:
            return ShardPage(tuple(rows), position)
        if looked_at % QUEUES_AT_ONCE == 0:
            await asyncio.sleep(0)
    return ShardPage(tuple(rows), END)


def browse_ids(store: StateStore, asked: BrowseIds, unreadable: Unreadable) -> ShardPage:
    """Return the tenant's first tasks whose ids begin with the prefix; other tenants' are read too.

    Without more than `LOOKED_AT_MAX` tasks of any tenant under the prefix, and `BYTES_MAX` bytes of
    them, the list is complete.
    """
    start, end = keyspace.prefix_range(keyspace.task(asked.prefix))
    rows: list[tuple[bytes, Task]] = []
    size = 0
    found = every_row(store, start, end, page=RECORDS_AT_ONCE)
    for looked_at, (key, record) in enumerate(found, 1):
        size += len(record)
        task_id = keyspace.last_id(key)
        with alone(unreadable, task=task_id):
            task = records.decode_task(record)
            if task.tenant == asked.tenant:
                rows.append((task_id.encode(), task))
        full = len(rows) == asked.count or size >= BYTES_MAX
        if full or looked_at == LOOKED_AT_MAX:
            return ShardPage(tuple(rows), task_id.encode())
    return ShardPage(tuple(rows), END)


def browse_tags(store: StateStore, asked: BrowseTags, unreadable: Unreadable) -> ShardPage:
    """Return the tenant's next tasks with some tags, the newest first.

    At most `LEAPS_MAX` leaps are made, and about `BYTES_MAX` bytes read; tasks that have the tags
    and do not fit count, too.
    """
    rows: list[tuple[bytes, Task]] = []
    size, most = 0, steps_of(LEAPS_MAX, asked.tags)
    read = partial(next_keys, store)
    steps = walk(read, asked.tenant, asked.tags, only=asked.only, after=asked.after)
    for looked, (position, task_id) in enumerate(steps, 1):
        if task_id:
            with alone(unreadable, task=task_id):
                record = _record(store, task_id)
                size += len(record)
                task = records.decode_task(record)
                if asked.fits(task):
                    rows.append((position, task))
        if len(rows) == asked.count or size >= BYTES_MAX or looked == most:
            return ShardPage(tuple(rows), position)
    return ShardPage(tuple(rows), END)


def count_selected(store: StateStore, asked: CountSelected, unreadable: Unreadable) -> Counted:
    """Count the tasks that a bulk job would be about.

    It goes as far as `LEAPS_MAX` leaps lead, and about `BYTES_MAX` bytes.
    """
    select, action = asked.select, asked.action
    states: Counter[int] = Counter()
    errors: Counter[str] = Counter()
    looked = changes = size = 0
    edge = END
    read = partial(next_keys, store)
    for position, task_id in walk(
        read, asked.tenant, select.tags, only=select.only, after=asked.after
    ):
        looked += 1
        if task_id:
            with alone(unreadable, task=task_id):
                record = _record(store, task_id)
                size += len(record)
                task = records.decode_task(record)
                if task.tenant == asked.tenant and select.fits(task):
                    states[task.state] += 1
                    changes += action.applies(task)
                    if task.error:
                        count_error(errors, task.error)
        if size >= BYTES_MAX or looked == steps_of(LEAPS_MAX, select.tags):
            edge = position
            break
    return Counted(
        edge=edge,
        looked=looked,
        selected=states.total(),
        changes=changes,
        by_state=dict(states),
        by_error=dict(errors),
    )


def list_items(store: StateStore, asked: ListItems, unreadable: Unreadable) -> ItemPage:
    """Return the tenant's next items: by id, or in the order of an index; see `ListItems`."""
    prefix = keyspace.item_prefix(asked.kind, asked.tenant) + asked.prefix.encode()
    if asked.dead_only:
        prefix = keyspace.dead_prefix(asked.tenant)
    elif asked.kind is ItemKind.GROUP:
        prefix = groups_prefix(asked.tenant)
    is_index = not prefix.startswith(keyspace.ITEM_PREFIX)
    start, end = keyspace.prefix_range(prefix)
    if asked.after:
        start = prefix + asked.after + b"\0"
    count = min(asked.count, LOOKED_AT_MAX)
    rows: list[tuple[bytes, Item]] = []
    size = 0
    found = every_row(store, start, end, page=RECORDS_AT_ONCE)
    for looked_at, (key, value) in enumerate(found, 1):
        position = key[len(prefix) :]
        with alone(unreadable, kind=asked.kind.value, item=keyspace.last_id(key)):
            record = _item(store, asked, key) if is_index else value
            size += len(record)
            item = records.decode_item(record)
            is_others = isinstance(item, Schedule) and item.plan.owner != asked.owner
            if not (asked.owner and is_others):
                rows.append((position, item))
        if looked_at == count or size >= BYTES_MAX:
            return ItemPage(tuple(rows), position)
    return ItemPage(tuple(rows), END)


def list_keys(store: StateStore, asked: ListKeys, unreadable: Unreadable) -> ItemPage:
    """Return the busiest keys of a queue, of `LOOKED_AT_MAX` of them."""
    prefix = keyspace.item_prefix(ItemKind.LANE, asked.tenant) + lane_id(asked.queue, "").encode()
    page = store.scan(*keyspace.prefix_range(prefix), LOOKED_AT_MAX)
    rows: list[tuple[bytes, Lane]] = []
    for key, value in page:
        with alone(unreadable, kind=ItemKind.LANE.value, item=keyspace.last_id(key)):
            lane = records.decode_item(value)
            assert isinstance(lane, Lane)
            if not lane.is_idle or lane.own is not None:
                rows.append((key[len(prefix) :], lane))
    busiest = heapq.nsmallest(asked.count, rows, key=lambda row: by_work(row[1]))
    is_all = len(page) < LOOKED_AT_MAX
    return ItemPage(tuple(busiest), END if is_all else page[-1][0][len(prefix) :])


def oldest_ready_ms(store: StateStore, queue: str, tenant: str) -> int:
    """Return when the queue's longest-waiting ready task became ready; 0 if there is none."""
    start, end = keyspace.pending_range(queue, tenant)
    oldest = 0
    for _ in range(PRIORITY_MAX + 1):
        page = store.scan(start, end, 1)
        if not page:
            break
        priority, seq, _task_id = keyspace.pending_parts(page[0][0])
        oldest = min(oldest or seq, seq)
        if priority == 0:
            break
        start = keyspace.pending_prefix(queue, tenant, priority - 1)
    return seq_ms(oldest)


def oldest_held_ms(store: StateStore, queue: str, tenant: str) -> int:
    """Return since when the first held task waits for its key, of some of the queue's keys."""
    start, end = keyspace.prefix_range(keyspace.place_prefix(QueuePlace.HELD, queue, tenant))
    oldest = 0
    for _ in range(LANES_MAX):
        page = store.scan(start, end, 1)
        if not page:
            break
        start, seq = lane_keys.held_lane(page[0][0])
        oldest = min(oldest or seq, seq)
    return seq_ms(oldest)


def _places(queues: Iterable[str], asked: Browse) -> Iterator[tuple[str, QueuePlace]]:
    """Yield the places to read, in the order of the list."""
    first = asked.after.split(b"\0", 1)[0]
    wanted = (asked.queue,) if asked.queue else queues
    for queue in sorted(queue for queue in wanted if queue.encode() >= first):
        for place in _ORDER:
            if place in asked.places:
                yield queue, place


def _delays(store: StateStore, queue: str, asked: BrowseDelayed) -> Iterator[tuple[bytes, bytes]]:
    """Yield (position, key) of a queue's delayed tasks, in pages that grow."""
    prefix = keyspace.place_prefix(QueuePlace.DELAYED, queue, asked.tenant)
    start, end = keyspace.prefix_range(prefix)
    if asked.after:
        start = prefix + asked.after + b"\0"
    # Most queues give at most one task to a page, so the first read is small.
    count = 2
    while page := store.scan(start, end, count):
        for key, _ in page:
            yield key[len(prefix) :], key
        if len(page) < count:
            return
        start = page[-1][0] + b"\0"
        count = min(4 * count, LOOKED_AT_MAX)


def _position(queue: str, place: QueuePlace, suffix: bytes) -> bytes:
    """Return a row's position in the list, comparable between shards."""
    return b"%b\0%c\0%b" % (queue.encode(), _ORDER.index(place), suffix)


def _beyond(queue: str, place: QueuePlace) -> bytes:
    """Return a position after every row of a place and before those of the next."""
    return b"%b\0%c\1" % (queue.encode(), _ORDER.index(place))


def _record(store: StateStore, task_id: str) -> bytes:
    record = store.get(keyspace.task(task_id))
    assert record is not None, "a task is in its queue and not there"
    return record


def _item(store: StateStore, asked: ListItems, key: bytes) -> bytes:
    record = store.get(keyspace.item(asked.kind, asked.tenant, keyspace.last_id(key)))
    assert record is not None, "an item is listed and not there"
    return record


_OF_ROWS: dict[type, Callable[[StateStore, Any, Unreadable], Answer]] = {
    BrowseIds: browse_ids,
    BrowseTags: browse_tags,
    CountSelected: count_selected,
    ListItems: list_items,
    ListKeys: list_keys,
}
