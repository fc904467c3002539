"""Hostile records: an import or a restore refuses one by name, or nobody ever notices it."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Iterator, Sequence
from copy import deepcopy
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.api.http.errors import ApiError
from codeq_cluster.api.routes.imports import decoded, faults
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.engine.batch import weigh
from codeq_cluster.broker.requests.importer import Importer
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.arrivals import Arrivals
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.bounds import EFFECTS_BYTES_MAX, NUMBER_MAX
from codeq_cluster.core.changes import Decision
from codeq_cluster.core.decide import decide
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Delivery, Governing, Mode, Pause, Subscription, Sweep, Topic
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import (
    Abandon,
    Advance,
    Cancel,
    Claim,
    Delete,
    Heartbeat,
    Import,
    Operation,
    Purge,
    RenewSubscription,
    Replay,
    Requeue,
    Revise,
    Staging,
    Submit,
    Swept,
    Undelivered,
    UndoRequeue,
)
from codeq_cluster.core.outcomes import Outcome
from codeq_cluster.core.sharding import with_shard
from codeq_cluster.core.task import AttemptOutcome, State, Task
from codeq_cluster.core.task_ids import task_id
from codeq_cluster.errors import BackupFailed, OperationTooLarge

from .backup_worlds import RULES, World, back_up
from .rows import Rows, counters_in
from .test_backups import compared, restored_rows
from .test_imports import Target

HOSTILE, INNOCENT = "acme", "zeta"
SHARDS = 2
ENTRY_BYTES = 3 * 2**20
SPANS_MS = (1, 2_000, 2_000, 2_000, 3_600_000, 30 * 24 * 3_600_000, 20 * 366 * 24 * 3_600_000)
NAMED = re.compile(
    r"400 invalid-body (the body is none that this release imports: )?"
    r"(a task|an item|(task|topic|pause|sub) .*): .+",
    re.DOTALL,
)

ALL_TEXTS: tuple[object, ...] = (
    *("", ".", "..", "/", "a/b", "a\0b", "a\r\nX-Evil: 1", " ", "A", "zeta", "_", "\x7f"),
    *("\U0001f4a9", "a.b", "t.1", "http://", "ftp://x/", "http://a@b/", "{", "null"),
    *("é" * 600, "x" * 200, "x" * 5000, "[" * 1000 + "]" * 1000, f"https://x/{'x' * 3000}"),
)
ALL_NUMBERS: tuple[object, ...] = (
    *(-(2**63), -1, 0, 1, 9, 10, 100, 101, 10**6, 10**6 + 1, 2**31, 2**53),
    *(NUMBER_MAX, NUMBER_MAX + 1, 2**63 - 1, 2**63, 2**64 - 1),
)
ALL_TUPLES: tuple[object, ...] = (
    *((), ("a", "a"), tuple(map(str, range(101))), tuple(map(str, range(5000)))),
    *((value,) for value in (*ALL_TEXTS, *ALL_NUMBERS)),
)
ALL_MEMBERS: tuple[object, ...] = (*State, *Mode, *AttemptOutcome)
texts, numbers = st.sampled_from(ALL_TEXTS), st.sampled_from(ALL_NUMBERS)
tuples, members = st.sampled_from(ALL_TUPLES), st.sampled_from(ALL_MEMBERS)
anything = st.one_of(texts, numbers, tuples, members, st.none(), st.booleans())


def fitting(value: object) -> st.SearchStrategy[object]:
    """Return hostile values, mostly of the type of a value."""
    match value:
        case State() | Mode() | AttemptOutcome():
            return st.one_of(members, anything)
        case bool():
            return st.one_of(st.booleans(), anything)
        case int():
            return st.one_of(numbers, numbers, numbers, anything)
        case str():
            return st.one_of(texts, texts, texts, anything)
        case tuple():
            doubled = st.just((*value, *value))
            return st.one_of(tuples, st.just(()), doubled, st.just(value * 150), anything)
        case _:
            return anything


Path_ = tuple[str | int, ...]


def places(value: object, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the path of every field and entry within a record."""
    names: Sequence[str | int] = ()
    if isinstance(value, Struct):
        names = value.__struct_fields__
    elif isinstance(value, tuple):
        names = range(len(value))
    for name in names:
        yield (*path, name)
        yield from places(at(value, (name,)), (*path, name))


def at(value: object, path: Path_) -> object:
    """Return the value at a path."""
    for name in path:
        value = getattr(value, name) if isinstance(name, str) else value[name]  # type: ignore[index]
    return value


def changed(data: st.DataObject, record: object) -> object:
    """Return a record with one hostile field; each field is as likely as any other."""
    by_field: dict[str, list[Path_]] = {}
    for path in places(record):
        names = [name for name in path if isinstance(name, str)]
        by_field.setdefault("/".join(names) or "-", []).append(path)
    field = data.draw(st.sampled_from(sorted(by_field)))
    path = data.draw(st.sampled_from(by_field[field]))
    return put(record, path, data.draw(fitting(at(record, path))))


def put(value: object, path: Path_, new: object) -> object:
    """Return a record with another value at a path."""
    if not path:
        return new
    name, rest = path[0], path[1:]
    inner = put(at(value, (name,)), rest, new)
    if isinstance(name, str):
        assert isinstance(value, Struct)
        return replace(value, **{name: inner})
    assert isinstance(value, tuple)
    return (*value[:name], inner, *value[name + 1 :])


def valid(seed: int) -> list[Arrival | Governing]:
    """Return up to two tasks in each state, and up to two items of each kind, of one history."""
    world = World(1, seed)
    world.live(120)
    [view] = world.views
    tasks: dict[State, list[Arrival]] = {}
    for task in view.tasks.values():
        deliveries = tuple(
            (item, view.bodies[task.tenant, item.id])
            for item in view.items.values()
            if isinstance(item, Delivery) and item.task_id == task.id
        )
        arrival = Arrival(
            task=replace(task, max_attempts=2),
            payload="{}",
            result=view.result(task.id),
            deliveries=deliveries,
        )
        tasks.setdefault(task.state, []).append(arrival)
    items: dict[type, list[Governing]] = {}
    for item in view.items.values():
        if isinstance(item, Topic | Pause | Subscription):
            items.setdefault(type(item), []).append(item)
    # The last are the youngest: their callbacks are pending.
    return [each for some in (*tasks.values(), *items.values()) for each in some[-2:]]


class Beside(Target):
    """Two tenants on one cluster, and the entries' bound."""

    @property
    def count(self) -> int:
        """Return the number of shards."""
        return self.shards

    def decide(self, shard: int, operation: Operation) -> Decision:
        """Let a shard decide, and check that what it writes fits."""
        counters = counters_in(dict(self.kept[shard]))
        decision = super().decide(shard, operation)
        rows = mutations(decision.changes, counters)
        if not isinstance(operation, Import):
            assert weigh(rows) <= EFFECTS_BYTES_MAX, operation
        return decision

    async def operate(
        self, shard: int, operations: Sequence[Operation], *, deadline: float
    ) -> list[Outcome]:
        """Decide as a shard's leader, for the importer."""
        del deadline
        decision = decide(self.views[shard], operations[0], RULES)
        if weigh(mutations(decision.changes, counters_in(self.kept[shard]))) > ENTRY_BYTES:
            raise OperationTooLarge("more than an entry")
        return [self.decide(shard, operations[0]).outcome]


def innocent(world: Beside) -> None:
    """Give each shard an innocent tenant's tasks: delayed, ready, mortal and leased."""
    for shard in range(SHARDS):
        for n, fields in enumerate(
            ({"delay_ms": 1000}, {}, {"ttl_ms": 1000}, {"webhook": "https://example.com/x"})
        ):
            made = task_id(INNOCENT, bytes([shard, n]) * 8)
            made = with_shard(made, shards=SHARDS, wanted=shard)
            create = Create(id=made, tenant=INNOCENT, command="calm", payload="{}", **fields)
            world.decide(shard, create)


def drive(world: Beside) -> None:
    """Lead both tenants' tasks through everything that can happen to one."""
    for turn, span_ms in enumerate(SPANS_MS):
        for shard, view in enumerate(world.views):
            for tenant in (HOSTILE, INNOCENT):
                for operation in _work(world, shard, tenant, turn):
                    world.decide(shard, operation)
            view.now_ms += span_ms
            while world.decide(shard, Advance(count=7)).changes:
                pass
        world.assert_exact()


def _work(world: Beside, shard: int, tenant: str, turn: int) -> Iterator[Operation]:
    view, request = world.views[shard], f"r{turn}"
    yield Claim(request=request, tenant=tenant, worker="w", commands=(), count=50, lease_ms=1000)
    for task in sorted(_own(world, shard, tenant), key=lambda each: each.id):
        yield from _fate(task, request, crc32(task.id.encode()) % 7)
    for item in [each for each in view.items.values() if each.tenant == tenant]:
        match item:
            case Delivery() if item.died_ms:
                yield Replay(request=request, tenant=tenant, ids=(item.id,), by="op")
            case Delivery():
                yield Undelivered(tenant=tenant, id=item.id, attempt=item.attempts + 1, error="no")
            case Sweep():
                yield Swept(tenant=tenant, id=item.id, attempt=item.attempts + 1)
            case Subscription():
                yield RenewSubscription(id=item.id, tenant=tenant)


def _fate(task: Task, request: str, kind: int) -> Iterator[Operation]:
    """Yield what happens to a task in one turn; most that are claimed die of it in the end."""
    held: dict[str, Any] = {"id": task.id, "tenant": task.tenant, "worker": task.worker}
    one: dict[str, Any] = {"tenant": task.tenant, "by": "op", "ids": (task.id,)}
    match task.state:
        case State.LEASED:
            yield Heartbeat(**held, extend_ms=500)
            yield Staging(**held, upload=request)
            if kind < 4:
                yield Nack(request=request, **held, delay_ms=100, reason="no")
            elif kind == 4:
                yield Abandon(request=request, **held)
            elif kind == 5:
                yield Submit(request=request, **held, status="FAILED", error="bad")
        case State.READY | State.DELAYED if kind == 5 and request == "r1":
            yield Cancel(request=request, id=task.id, tenant=task.tenant)
        case State.READY | State.DELAYED if kind == 6 and request == "r1":
            yield Purge(request=request, **one, queue=task.command.lower())
        case State.DEAD if kind < 2:
            yield Requeue(request=request, **one)
            yield UndoRequeue(request=f"{request}b", **one, requeue=request)
        case State.DEAD if kind < 4:
            yield Revise(
                request=request,
                tenant=task.tenant,
                id=task.id,
                by="op",
                payload="{}",
                endings=task.endings,
            )
        case State.DONE | State.FAILED | State.DEAD if kind == 4:
            yield Delete(request=request, **one)
        case _:
            pass


def _own(world: Beside, shard: int, tenant: str) -> list[Task]:
    return [task for task in world.views[shard].tasks.values() if task.tenant == tenant]


def seen(world: Beside) -> list[object]:
    """Return all that the innocent tenant can see: its tasks and items, on every shard."""
    return [
        (
            {task.id: replace(task, seq=0) for task in _own(world, shard, INNOCENT)},
            {key: item for key, item in view.items.items() if key[1] == INNOCENT},
        )
        for shard, view in enumerate(world.views)
    ]


def read(body: bytes) -> Arrivals | str:
    """Return what the route reads in a body, or its refusal."""
    try:
        arrivals = decoded(body)
        for _ in faults(arrivals):
            pass
    except ApiError as refused:
        return f"{refused.status} {refused.code} {refused.text}"
    return arrivals


def sent(world: Beside, body: bytes) -> str:
    """Import as the route does; return the refusal, if it is one."""
    arrivals = read(body)
    if isinstance(arrivals, str):
        return arrivals
    importer = Importer(world)  # type: ignore[arg-type]

    async def ask() -> None:
        caller = Caller(HOSTILE, "op", deadline_in(60))
        await importer.take(
            caller, arrivals, source="b", record="r", forget_keys=True, dry_run=False
        )

    asyncio.run(ask())
    return ""


def renamed(record: Arrival | Governing, n: int) -> Arrival | Governing:
    """Return a task under an id of its own, so that many fit into one import."""
    if not isinstance(record, Arrival):
        return record
    new = task_id(HOSTILE, n.to_bytes(16))
    return replace(
        record,
        task=replace(record.task, id=new, idempotency_key=""),
        result=None if record.result is None else replace(record.result, task_id=new),
        deliveries=tuple(
            (
                replace(delivery, id=f"{new}.{delivery.id.rpartition('.')[2]}", task_id=new),
                replace(body, task_id=new),
            )
            for delivery, body in record.deliveries
        ),
    )


def is_taken(record: Arrival | Governing) -> bool:
    """Return whether the route takes a record that is alone in its request."""
    of_task = isinstance(record, Arrival)
    body = msgspec.msgpack.encode([[record], []] if of_task else [[], [record]])
    refused = read(b"\x01" + body)
    assert isinstance(refused, Arrivals) or NAMED.match(refused), refused
    return isinstance(refused, Arrivals)


def variants(seed: int) -> Iterator[Arrival | Governing]:
    """Yield every record of a history with every hostile value in every field, if it is taken."""
    numbered = count(1)
    for record in valid(seed):
        fields = {re.sub(r"\d+", "", str(path)): path for path in places(record)}
        for path in fields.values():
            for value in ALL_TEXTS + ALL_NUMBERS + ALL_TUPLES + ALL_MEMBERS:
                if type(value) is type(at(record, path)):
                    changed = put(renamed(record, next(numbered)), path, value)
                    assert isinstance(changed, Arrival | Governing)
                    if is_taken(changed):
                        yield changed


def test_whatever_is_taken_does_no_harm() -> None:
    """Each field of each record gets each hostile value; those that pass live side by side."""
    taken = list(variants(5))
    tasks = [each for each in taken if isinstance(each, Arrival)]
    items: dict[tuple[type, str], list[Governing]] = {}
    for each in taken:
        if not isinstance(each, Arrival):
            items.setdefault((type(each), each.id), []).append(each)
    world = Beside(SHARDS, 0)
    world.settle()
    innocent(world)
    alone = deepcopy(world)
    drive(alone)
    worlds = max(map(len, items.values()))
    assert len(tasks) > worlds > 5
    for n in range(worlds):
        one = deepcopy(world)
        own = tuple(some[n % len(some)] for some in items.values())
        body = msgspec.msgpack.encode(Arrivals(tuple(tasks[n::worlds]), own))
        assert "" == sent(one, b"\x01" + body)
        drive(one)

        assert seen(alone) == seen(one)


def test_a_record_is_refused_by_name_or_nobody_notices_it(tmp_path: Path) -> None:
    """Whatever is imported, a neighbour's tasks go on as without it, and a restore takes it."""

    @settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.integers(0, 30))
    def check(data: st.DataObject, seed: int) -> None:
        given_records = valid(seed)
        # A task has many times the fields of an item.
        kinds = {type(each).__name__ for each in given_records}
        kind = data.draw(st.sampled_from(["Arrival", "Arrival", *sorted(kinds)]))
        of_kind = [n for n, each in enumerate(given_records) if type(each).__name__ == kind]
        which = data.draw(st.sampled_from(of_kind))
        record = given_records[which]
        for _ in range(data.draw(st.sampled_from([1, 1, 1, 2]))):
            record = changed(data, record)
        others = [each for n, each in enumerate(given_records) if n != which]
        chosen = [record, *others, record]
        arrivals = Arrivals(
            tuple(each for each in chosen if isinstance(each, Arrival)),
            tuple(each for each in chosen if not isinstance(each, Arrival)),  # type: ignore[misc]
        )
        body = b"\x01" + msgspec.msgpack.encode(arrivals)
        world = Beside(SHARDS, seed)
        world.settle()
        innocent(world)
        alone = deepcopy(world)
        rows = deepcopy(world.kept)
        refused = sent(world, body)
        event(f"{kind} {'refused' if refused else 'taken'}")
        world.assert_exact()
        if refused:
            assert NAMED.match(refused), refused
            assert rows == world.kept
            return
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(place=place, manifest=back_up(world, place, Path(home)))
            into = Path(home, "data")
            restore([source], Wanted(cluster_id="new", shards=SHARDS), into=into, node_id="a")
            assert compared(restored_rows(into, SHARDS)) == compared(world.rows())
        drive(world)
        drive(alone)

        assert seen(alone) == seen(world)

    check()


class Tampered(World):
    """A world of whose rows one was changed in its backup."""

    def __init__(self, rows: list[Rows]) -> None:
        super().__init__(len(rows), 0)
        self._rows = rows

    def rows(self) -> list[Rows]:
        """Return the changed rows."""
        return self._rows


def test_a_tampered_backup_is_refused_by_name_or_restored_as_it_is(tmp_path: Path) -> None:
    """A restored record is one that an operation could have made; the backup stays as it was."""

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.integers(0, 30))
    def check(data: st.DataObject, seed: int) -> None:
        world = World(1, seed)
        world.live(30)
        [rows] = world.rows()
        primary = [
            key
            for key in rows
            if keyspace.family(key) in (keyspace.Family.TASK, keyspace.Family.ITEM)
        ]
        key = data.draw(st.sampled_from(sorted(primary)))
        of_task = keyspace.family(key) is keyspace.Family.TASK
        record: object = (records.decode_task if of_task else records.decode_item)(rows[key])
        record = changed(data, record)
        rows[key] = b"\x01" + msgspec.msgpack.encode(record)
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(
                place=place, manifest=back_up(Tampered([rows]), place, Path(home))
            )
            into = Path(home, "data")
            files = {each: each.read_bytes() for each in Path(home).rglob("*.rows")}
            try:
                wanted = Wanted(cluster_id="new", shards=1, forget_keys=True)
                restore([source], wanted, into=into, node_id="a")
            except BackupFailed as refused:
                why = str(refused)
            else:
                why = ""
                [found] = restored_rows(into, 1)
                assert found.get(key) in (None, rows[key])
            unchanged = files == {each: each.read_bytes() for each in files}

        assert unchanged
        assert not why or f"{source.manifest.id}/shard-0000.rows: " in why

    check()
