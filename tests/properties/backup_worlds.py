"""Worlds: clusters of several shards after a random history, as rows and on disk."""

from __future__ import annotations

from pathlib import Path
from random import Random

from codeq_cluster.backup.catalogue import new_id
from codeq_cluster.backup.create import Cut, Pace, write_manifest, write_part
from codeq_cluster.backup.manifest import BackupManifest
from codeq_cluster.backup.rows import CLOCK, SEQ
from codeq_cluster.backup.target import BackupTarget
from codeq_cluster.codec import keyspace
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.core.checkpoint import Report
from codeq_cluster.core.decide import decide
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Mode
from codeq_cluster.core.new_task import Create, CreateTagged
from codeq_cluster.core.operations import (
    Advance,
    Claim,
    Operation,
    PauseQueue,
    PutTopic,
    Record,
    Requeue,
    Staging,
    Submit,
    Subscribe,
    Undelivered,
)
from codeq_cluster.core.progress import Progress
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import home_shard, shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import State, Task
from codeq_cluster.raft.journal_rows import rows_after_snapshot
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.stored_shard import StoredShard
from tests.fakes.dict_view import DictView
from tests.fakes.spilled_shard import put

from .rows import Rows, recomputed

RULES = LifetimeRules(delivery_attempts_max=2, max_attempts_default=2)
TENANTS = ("", "acme", "zeta")
NOW_MS = 1_700_000_000_000
SETTINGS = StoreSettings(block_cache_bytes=2**20, memtable_bytes=2**18)
INDEX = 100


class World:
    """The shards of one cluster, each a view; `seed` determines everything that happens."""

    def __init__(self, shards: int, seed: int) -> None:
        self.random = Random(seed)
        self.views = [DictView(now_ms=NOW_MS) for _ in range(shards)]

    @property
    def shards(self) -> int:
        """Return the number of shards."""
        return len(self.views)

    def live(self, steps: int) -> None:
        """Run random operations."""
        for step in range(steps):
            self.random.choice(
                [
                    *(self._create, self._create, self._claim, self._end, self._end, self._wait),
                    *(self._govern, self._record, self._requeue, self._stage, self._undeliver),
                ]
            )(str(step))

    def rows(self) -> list[Rows]:
        """Return every row of each shard, including those about the shard itself."""
        return [
            recomputed(view)
            | {
                CLOCK: view.now_ms.to_bytes(8),
                SEQ: max((task.seq for task in view.tasks.values()), default=1).to_bytes(8),
            }
            for view in self.views
        ]

    def tasks(self) -> dict[str, Task]:
        """Return all tasks by id."""
        return {task.id: task for view in self.views for task in view.tasks.values()}

    def _create(self, name: str) -> None:
        random = self.random
        tenant = random.choice(TENANTS)
        key = random.choice(["", f"order/{name}", f"key {random.randrange(5)}"])
        task_id = self._id()
        shard = shard_of(task_id, self.shards)
        if key:
            shard = shard_of(f"{tenant}/{key}", self.shards)
            while shard_of(task_id, self.shards) != shard:
                task_id = self._id()
        tagged = sum(name.encode()) % 3 == 0
        create = Create(
            id=task_id,
            tenant=tenant,
            command=random.choice(["render", "Render", "scan"]),
            payload='{"n":' + "1" * random.choice([1, 1, 3, 300_000]) + "}",
            priority=random.randrange(10),
            idempotency_key=key,
            fingerprint="f" if key else "",
            webhook=random.choice(["", "https://example.com/hook"]),
            delay_ms=random.choice([0, 0, 500, 90_000]),
            ttl_ms=random.choice([0, 0, 700]),
            tags=(("env", "größe"), ("step", name)) if tagged else (),
            metadata='{"page":7}' if tagged else "",
        )
        self._ask(shard, CreateTagged(create) if tagged else create)

    def _claim(self, name: str) -> None:
        shard = self.random.randrange(self.shards)
        tenant = self.random.choice(TENANTS)
        claim = Claim(
            request=f"claim-{name}",
            tenant=tenant,
            worker="ann",
            commands=("render", "scan"),
            count=2,
            lease_ms=self.random.choice([300, 60_000]),
        )
        self._ask(shard, claim)

    def _end(self, name: str) -> None:
        for shard, task in self._held():
            operation: Operation = Nack(
                request=name, id=task.id, tenant=task.tenant, worker=task.worker, reason="no"
            )
            if self.random.random() < 0.6:
                operation = Submit(
                    request=name,
                    id=task.id,
                    tenant=task.tenant,
                    worker=task.worker,
                    status=self.random.choice(["COMPLETED", "FAILED"]),
                    body='{"ok":true}',
                )
            self._ask(shard, operation)

    def _stage(self, name: str) -> None:
        for shard, task in self._held():
            upload = f"u{name}"
            stage = Staging(id=task.id, tenant=task.tenant, worker=task.worker, upload=upload)
            self._ask(shard, stage)

    def _report(self, name: str) -> None:
        for shard, task in self._held():
            report = Report(
                id=task.id,
                tenant=task.tenant,
                worker=task.worker,
                extend_ms=60_000,
                progress=self.random.choice([None, Progress(done=int(name), total=9, note="ü")]),
                checkpoint=self.random.choice(["", f'{{"at":{name}}}', '"ü"', '["ü", 1]']),
                log=("ü", name, "")[: self.random.randrange(4)],
            )
            self._ask(shard, report)

    def _held(self) -> list[tuple[int, Task]]:
        held = [
            (shard, task)
            for shard, view in enumerate(self.views)
            for task in view.tasks.values()
            if task.state is State.LEASED
        ]
        return self.random.sample(held, 1) if held else []

    def _wait(self, name: str) -> None:
        del name
        span_ms = self.random.choice([1, 400, 5_000])
        for shard, view in enumerate(self.views):
            view.now_ms += span_ms
            self._ask(shard, Advance(count=100))

    def _govern(self, name: str) -> None:
        tenant = self.random.choice(TENANTS)
        operation = self.random.choice(
            [
                PutTopic(request=name, tenant=tenant, name="Render", by="op", weight=3),
                PutTopic(request=name, tenant=tenant, name="scan", by="op", dead_letter="morgue"),
                PauseQueue(request=name, tenant=tenant, queue="scan", by="op"),
                Subscribe(
                    id=f"s{name}",
                    tenant=tenant,
                    worker="ann",
                    callback_url="https://example.com/",
                    event_types=("render",),
                    mode=Mode.FANOUT,
                    group_id="",
                    ttl_ms=60_000,
                    min_interval_ms=10,
                ),
            ]
        )
        self._ask(home_shard(tenant, self.shards), operation)

    def _record(self, name: str) -> None:
        """Make one request that leaves an audit record on every shard, as a bulk action does."""
        tenant = self.random.choice(TENANTS)
        for shard in range(self.shards):
            operation = Record(
                request=name, tenant=tenant, by="op", action="dlq.delete", target=f"shard {shard}"
            )
            self._ask(shard, operation)

    def _requeue(self, name: str) -> None:
        for shard, view in enumerate(self.views):
            dead = [task for task in view.tasks.values() if task.state is State.DEAD]
            for task in dead[:1]:
                operation = Requeue(request=name, tenant=task.tenant, ids=(task.id,), by="op")
                self._ask(shard, operation)

    def _undeliver(self, name: str) -> None:
        del name
        for shard, view in enumerate(self.views):
            there = [key for key in view.items if key[0] is ItemKind.DELIVERY]
            for kind, tenant, item_id in there[:1]:
                item = view.item(kind, tenant, item_id)
                attempt = getattr(item, "attempts", 0) + 1
                self._ask(shard, Undelivered(tenant=tenant, id=item_id, attempt=attempt))

    def _ask(self, shard: int, operation: Operation) -> None:
        view = self.views[shard]
        view.advance(decide(view, operation, RULES).changes)

    def _id(self) -> str:
        text = f"{self.random.getrandbits(128):032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


class NewerWorld(World):
    """A world in which a node of a later version has stored an item of a new kind."""

    def rows(self) -> list[Rows]:
        """Return every row, including that item's."""
        first, *others = super().rows()
        return [first | {keyspace.ITEM_PREFIX + b"newer/_/x": b"\x01\x91\xa5newer"}, *others]


class PoisonedWorld(World):
    """A world in which the records of one task and one subscription cannot be read."""

    def poison(self) -> Task:
        """Choose both; return the task, which has an idempotency key."""
        lost = next(task for task in self.tasks().values() if task.idempotency_key)
        item = keyspace.item_prefix(ItemKind.SUBSCRIPTION)
        keys = (key for shard in super().rows() for key in shard if key.startswith(item))
        self._poisoned = (keyspace.task(lost.id), next(keys))
        return lost

    def rows(self) -> list[Rows]:
        """Return every row of each shard."""
        return [
            {key: b"\x07" if key in self._poisoned else value for key, value in shard.items()}
            for shard in super().rows()
        ]


def store(rows: Rows, path: Path, *, index: int = INDEX, term: int = 3) -> None:
    """Write a shard's rows into a directory, with a log that begins at `index`."""
    shard = RocksShard(path, settings=SETTINGS, cache=new_cache(SETTINGS))
    log_rows, _ = rows_after_snapshot(index, term, vote_term=term, voted_for="n1")
    put(shard, rows, index=index, digest=bytes(16), log_rows=log_rows)
    shard.close()


def back_up(world: World, place: BackupTarget, scratch: Path) -> BackupManifest:
    """Take a backup of the world as it is."""
    backup = new_id(NOW_MS)
    parts = []
    for shard, rows in enumerate(world.rows()):
        path = scratch / f"{backup}-{shard}"
        store(rows, path, index=INDEX + shard)
        with StoredShard(path) as stored:
            cut = Cut(shard=shard, index=stored.index, term=3, digest=stored.digest, stored=stored)
            parts.append(write_part(place, backup, cut, pace=Pace(0), passed=lambda _size: None))
    manifest = BackupManifest(
        id=backup,
        cluster_id="old",
        node_id="n1",
        created_ms=NOW_MS,
        release="0",
        parts=tuple(parts),
        level=LEVEL,
    )
    write_manifest(place, manifest)
    return manifest


def all_rows(path: Path) -> Rows:
    """Return every row of a shard's state except its position."""
    with StoredShard(path) as stored:
        rows = dict(stored.rows(*keyspace.prefix_range(b"codeq/")))
    rows.pop(keyspace.meta("applied"))
    return rows
