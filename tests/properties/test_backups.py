"""Backups: a restore gives back every row, after any history and on any number of shards."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from codeq_cluster.backup.catalogue import chosen, found, verify
from codeq_cluster.backup.create import write_manifest
from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import Restored, RestoreSource, Wanted, restore
from codeq_cluster.backup.tenant_export import export
from codeq_cluster.backup.tenant_reader import TenantReader
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.codec.levels import LEVEL
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.changes import ItemChange
from codeq_cluster.core.items import Aside, Audit
from codeq_cluster.core.sharding import home_shard, shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import BackupFailed, DataDirectoryRefused
from codeq_cluster.raft.journal import Journal
from codeq_cluster.settings import StoreSettings
from codeq_cluster.storage.directory import open_directory
from codeq_cluster.storage.rocks import RocksShard
from codeq_cluster.storage.rocks_options import new_cache
from codeq_cluster.storage.stored_shard import StoredShard

from .backup_worlds import NOW_MS, TENANTS, NewerWorld, PoisonedWorld, World, all_rows, back_up
from .rows import Rows

seeds = st.integers(0, 2**32)
lengths = st.integers(0, 60)
examples = settings(max_examples=25, deadline=None)


def restored_rows(into: Path, shards: int) -> list[Rows]:
    """Return the rows of every shard of a data directory."""
    return [all_rows(into / f"shard-{shard}") for shard in range(shards)]


def compared(shards: list[Rows]) -> dict[bytes, bytes | Counter[str]]:
    """Return all shards' rows as one, with summed counters and audit records by content."""
    together: dict[bytes, bytes | Counter[str]] = {}
    for rows in shards:
        for key, value in rows.items():
            match keyspace.family(key):
                case Family.META:
                    continue
                case Family.STATS:
                    numbers = Counter(asdict(records.decode_counters(value)))
                    before = together.get(key, Counter())
                    assert isinstance(before, Counter)
                    together[key] = before + numbers
                case Family.ITEM if isinstance(item := records.decode_item(value), Audit):
                    bare = records.encode(replace(item, id="-".join(item.id.split("-")[:1])))
                    together[bare] = b""
                case Family.EXPIRY if keyspace.item_parts(key)[0] == "audit":
                    continue
                case _:
                    assert key not in together, f"on two shards: {key!r}"
                    together[key] = value
    return together


def test_no_row_is_forgotten_and_none_is_new(tmp_path: Path) -> None:
    """Restored to any divisor of the old number of shards, rows and counters are the same."""

    @examples
    @given(seeds, lengths, st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1), (6, 3), (3, 3)]))
    def check(seed: int, length: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = World(before, seed)
            world.live(length)
            place = BackupDirectory(Path(home, "backups"))
            manifest = back_up(world, place, Path(home))
            verify(place, chosen(place))
            wanted = Wanted(cluster_id="new", shards=after)
            into = Path(home, "data")
            done = restore(
                [RestoreSource(place=place, manifest=manifest)], wanted, into=into, node_id="a"
            )
            found = restored_rows(into, after)

            assert compared(found) == compared(world.rows())
            assert len(world.tasks()) == done.tasks
            assert 0 == done.forgotten_keys
            check_places(found)

    check()


def test_more_shards_keep_every_task_and_every_key_that_can_be(tmp_path: Path) -> None:
    """Restored to other numbers, keys that would lose their tasks are refused or left out."""

    @examples
    @given(seeds, lengths, st.sampled_from([(1, 2), (2, 3), (4, 3), (2, 5)]))
    def check(seed: int, length: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = World(before, seed)
            world.live(length)
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(place=place, manifest=back_up(world, place, Path(home)))
            apart = [
                task.id
                for task in world.tasks().values()
                if (key := task.idempotency_key)
                and shard_of(f"{task.tenant}/{key}", after) != shard_of(task.id, after)
            ]
            into = Path(home, "data")
            if apart:
                wanted = Wanted(cluster_id="new", shards=after)
                with pytest.raises(BackupFailed, match=f"^{len(apart)} idempotency keys cannot"):
                    restore([source], wanted, into=into, node_id="a")
                assert not into.exists()
            wanted = Wanted(cluster_id="new", shards=after, forget_keys=True)
            done = restore([source], wanted, into=into, node_id="a")
            found = restored_rows(into, after)

            assert len(apart) == done.forgotten_keys
            check_places(found)
            expected = {
                task.id: replace(task, idempotency_key="") if task.id in apart else task
                for task in world.tasks().values()
            }
            assert expected == {task.id: task for task in tasks_of(found)}
            keys = sum(keyspace.family(key) is Family.IDEMPOTENCY for rows in found for key in rows)
            assert sum(bool(task.idempotency_key) for task in expected.values()) == keys

    check()


def test_every_node_gets_the_same_data_and_each_command_makes_other_data(tmp_path: Path) -> None:
    """Rows, index, term and digest do not depend on the node; the digest depends on the cluster."""
    world = World(4, seed=7)
    world.live(60)
    place = BackupDirectory(tmp_path / "backups")
    source = RestoreSource(place=place, manifest=back_up(world, place, tmp_path))

    def made(node: str, **wanted: object) -> tuple[Restored, list[tuple[int, bytes, Rows]]]:
        into = tmp_path / f"{node}-{len(wanted)}-{wanted.get('shards')}"
        given = {"cluster_id": "new", "shards": 2} | wanted
        done = restore([source], Wanted(**given), into=into, node_id=node)  # type: ignore[arg-type]
        shards = []
        for shard in range(done_shards := int(str(given["shards"]))):
            with StoredShard(into / f"shard-{shard}") as stored:
                shards.append((stored.index, stored.digest))
        assert done_shards == len(set(shards))
        rows = restored_rows(into, done_shards)
        return done, [(*place, rows[n]) for n, place in enumerate(shards)]

    first, second = made("a"), made("b")

    assert second == first
    assert first[0].index > max(part.index for part in source.manifest.parts)
    assert 4 == first[0].term
    forgetful = made("a", forget_keys=True)
    assert [rows for *_, rows in first[1]] == [rows for *_, rows in forgetful[1]]
    assert {digest for _, digest, _ in forgetful[1]}.isdisjoint(d for _, d, _ in first[1])


def test_a_node_starts_from_a_restored_directory(tmp_path: Path) -> None:
    """The directory has an identity, and each log loads at the state's own entry."""
    world = World(2, seed=1)
    world.live(20)
    place = BackupDirectory(tmp_path / "backups")
    source = RestoreSource(place=place, manifest=back_up(world, place, tmp_path))
    into = tmp_path / "data"
    done = restore([source], Wanted(cluster_id="new", shards=2), into=into, node_id="n7")

    with open_directory(into, cluster_id="new", node_id="n7", shards=2) as directory:
        for shard in range(2):
            settings = StoreSettings()
            store = RocksShard(
                directory.shard_path(shard), settings=settings, cache=new_cache(settings)
            )
            journal = Journal(store.log, cache_bytes_max=2**20)
            journal.load(applied=store.state.applied_index)
            store.close()

            assert (
                done.index,
                done.index,
                done.term,
            ) == (journal.first, journal.last, journal.last_term)
            assert (done.term, None) == (journal.term, journal.voted_for)
    with pytest.raises(DataDirectoryRefused, match="a node's already"):
        restore([source], Wanted(cluster_id="new", shards=2), into=into, node_id="n7")


@pytest.mark.parametrize("tenant", TENANTS)
def test_an_export_is_all_of_one_tenant_and_nothing_of_another(tmp_path: Path, tenant: str) -> None:
    """All exports together make up the whole again, in another cluster."""
    world = World(4, seed=11)
    world.live(150)
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(world, place, tmp_path)
    exports = BackupDirectory(tmp_path / "exports")
    exported = {
        each: export(place, manifest, tenant=each or "_", into=exports, now_ms=NOW_MS)
        for each in TENANTS
    }
    one = exported.pop(tenant)
    verify(exports, one)
    sources = [RestoreSource(place=exports, manifest=one)]
    alone = tmp_path / "alone"
    restore(sources, Wanted(cluster_id="new", shards=4), into=alone, node_id="a")
    filtered = tmp_path / "filtered"
    wanted = Wanted(cluster_id="new", shards=4, tenant=tenant or "_")
    restore([RestoreSource(place=place, manifest=manifest)], wanted, into=filtered, node_id="a")
    sources += [RestoreSource(place=exports, manifest=each) for each in exported.values()]
    together = tmp_path / "together"
    restore(sources, Wanted(cluster_id="new", shards=4), into=together, node_id="a")

    own = [task for task in world.tasks().values() if task.tenant == tenant]
    assert own
    assert sorted(task.id for task in own) == sorted(
        task.id for task in tasks_of(restored_rows(alone, 4))
    )
    assert restored_rows(filtered, 4) == restored_rows(alone, 4)
    assert compared(world.rows()) == compared(restored_rows(together, 4))
    both = [
        RestoreSource(place=place, manifest=manifest),
        RestoreSource(place=exports, manifest=one),
    ]
    with pytest.raises(BackupFailed, match="is in more than one of the backups"):
        restore(both, Wanted(cluster_id="new", shards=4), into=tmp_path / "both", node_id="a")


class _Changed(World):
    """A world of one shard whose rows were changed."""

    def __init__(self, world: World, rows: Rows) -> None:
        super().__init__(1, seed=0)
        self.views = world.views
        self._rows = rows

    def rows(self) -> list[Rows]:
        """Return the changed rows."""
        return [self._rows]


def test_what_is_set_aside_is_due_again_after_a_restore(tmp_path: Path) -> None:
    """A backup has the task and not the aside; its timer is made again like every other."""
    world = World(1, seed=5)
    world.live(60)
    rows = world.rows()[0]
    changed = dict(rows)
    timer = next(key for key in rows if key.startswith(keyspace.TTL_PREFIX))
    task_id = keyspace.last_id(timer)
    aside = Aside(tenant="acme", id=f"task.{task_id}", timer=timer, reason="", since_ms=1)
    change = ItemChange(before=None, after=aside)
    for key, value in mutations([change], {}).items():
        if value is None:
            del changed[key]
        else:
            changed[key] = value
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(_Changed(world, changed), place, tmp_path)
    into = tmp_path / "data"
    source = RestoreSource(place=place, manifest=manifest)
    restore([source], Wanted(cluster_id="new", shards=1), into=into, node_id="a")

    assert keyspace.item(ItemKind.ASIDE, "acme", aside.id) in changed
    assert rows.keys() == restored_rows(into, 1)[0].keys()


def test_one_record_that_cannot_be_read_keeps_nothing_else_back(tmp_path: Path) -> None:
    """A backup and an export have all others; a restore leaves it out with its rows, and says so.

    The task that is lost has a key, and a subscription is lost as well.
    """
    world = PoisonedWorld(2, seed=5)
    world.live(150)
    lost = world.poison()
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(world, place, tmp_path)
    assert 2 == verify(place, manifest)
    into = tmp_path / "data"
    source = RestoreSource(place=place, manifest=manifest)
    done = restore([source], Wanted(cluster_id="new", shards=2), into=into, node_id="a")
    rows = restored_rows(into, 2)
    exports = BackupDirectory(tmp_path / "exports")
    exported = export(place, manifest, tenant=lost.tenant or "_", into=exports, now_ms=NOW_MS)
    reader = TenantReader(place=place, manifest=manifest, tenant=lost.tenant)
    imported = [each.task.id for part in manifest.parts for each in reader.tasks(part)]

    own = {task.id for task in world.tasks().values() if task.tenant == lost.tenant} - {lost.id}
    assert (2, len(world.tasks()) - 1) == (done.unreadable, done.tasks)
    assert set(world.tasks()) - {lost.id} == {task.id for task in tasks_of(rows)}
    assert keyspace.payload(lost.id) not in rows[0] | rows[1]
    assert keyspace.idempotency(lost.tenant, lost.idempotency_key) not in rows[0] | rows[1]
    assert own
    assert own == set(imported)
    assert len(own) == exported.tasks
    verify(exports, exported)


def test_rows_of_a_later_version_are_kept_and_not_interpreted(tmp_path: Path) -> None:
    """An older node's backup during an upgrade is complete; its release cannot restore it."""
    world = NewerWorld(2, seed=1)
    world.live(20)
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(world, place, tmp_path)
    verify(place, manifest)
    source = RestoreSource(place=place, manifest=manifest)
    wanted = Wanted(cluster_id="new", shards=2)

    assert manifest.parts[0].counts.items > world_items(world)
    with pytest.raises(BackupFailed, match="use the newest release"):
        restore([source], wanted, into=tmp_path / "data", node_id="a")
    with pytest.raises(BackupFailed, match="use the newest release"):
        export(place, manifest, tenant="acme", into=place, now_ms=NOW_MS)
    assert [manifest] == [each.manifest for each in found(place) if each.manifest is not None]


def test_a_backup_of_newer_formats_is_refused_before_a_row_is_read(tmp_path: Path) -> None:
    """It is listed as complete, but no older release reads it or makes a directory from it."""
    world = World(2, seed=1)
    world.live(20)
    place = BackupDirectory(tmp_path / "backups")
    manifest = replace(back_up(world, place, tmp_path), level=LEVEL + 1)
    write_manifest(place, manifest)
    source = RestoreSource(place=place, manifest=manifest)
    wanted = Wanted(cluster_id="new", shards=2)

    says = rf"formats of level {LEVEL + 1}, and this release knows those up to level {LEVEL}: use"
    with pytest.raises(BackupFailed, match=says):
        restore([source], wanted, into=tmp_path / "data", node_id="a")
    with pytest.raises(BackupFailed, match=says):
        verify(place, manifest)
    with pytest.raises(BackupFailed, match=says):
        export(place, manifest, tenant="acme", into=place, now_ms=NOW_MS)
    assert not (tmp_path / "data").exists()
    assert [manifest] == [each.manifest for each in found(place) if each.manifest is not None]


def world_items(world: World) -> int:
    """Return the number of items on a world's first shard."""
    return len(world.views[0].items)


def tasks_of(shards: list[Rows]) -> list:
    """Return every task, decoded."""
    return [
        records.decode_task(value)
        for rows in shards
        for key, value in rows.items()
        if keyspace.family(key) is Family.TASK
    ]


def check_places(found: list[Rows]) -> None:
    """Check that every row is on the shard where the broker looks for it."""
    count = len(found)
    for shard, rows in enumerate(found):
        for key, value in rows.items():
            match keyspace.family(key):
                case Family.TASK | Family.PAYLOAD | Family.RESULT:
                    assert shard == shard_of(key.decode().rsplit("/", 1)[1], count)
                case Family.IDEMPOTENCY:
                    tenant, name = key.decode().removeprefix("codeq/idempo/").split("/", 1)
                    assert shard == shard_of(f"{'' if tenant == '_' else tenant}/{name}", count)
                    assert keyspace.task(records.decode_key_row(value).task_id) in rows
                case Family.ITEM:
                    kind, tenant, item_id = keyspace.item_parts(key)
                    if kind in ("topic", "pause", "sub"):
                        assert shard == home_shard(tenant, count)
                    elif kind != "audit":
                        assert shard == shard_of(item_id.split(".")[0], count)
                case Family.BODY:
                    delivery = keyspace.last_id(key)
                    assert shard == shard_of(delivery.split(".")[0], count)
