"""Backups of relays: what one shard's copy lacks is sent again from another one's."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codeq_cluster.backup.directory import BackupDirectory
from codeq_cluster.backup.restore import RestoreSource, Wanted, restore
from codeq_cluster.backup.tenant_reader import TenantReader
from codeq_cluster.codec import keyspace, line_keys, records
from codeq_cluster.core.bounds import SEQ_MAX
from codeq_cluster.core.decide import decide
from codeq_cluster.core.faults import fault
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Finish, Import, Submit
from codeq_cluster.core.placing import is_apart
from codeq_cluster.core.relays import Relay, RelayLink
from codeq_cluster.core.sharding import shard_of, shard_of_key
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import BackupFailed
from tests.fakes.dict_view import DictView

from .backup_worlds import NOW_MS, RULES, TENANTS, all_rows, back_up
from .copied_worlds import CopiedWorld
from .rows import Rows

seeds = st.integers(0, 2**32)


class RelayingWorld(CopiedWorld):
    """A world whose results have follow-ups with keys."""

    def live(self, steps: int) -> None:
        """Run random operations."""
        for _ in range(steps):
            name = f"{self.random.getrandbits(64):x}"
            self.random.choice([self._create, self._claim, self._finish, self.send])(name)

    def _finish(self, name: str) -> None:
        for shard, task in self._held():
            following = tuple(
                Create(
                    command="after",
                    payload="{}",
                    idempotency_key=f"{name}-{position}",
                    fingerprint="f",
                )
                for position in range(3)
            )
            ended = Submit(
                request=name,
                id=task.id,
                tenant=task.tenant,
                worker=task.worker,
                status="COMPLETED",
                body="{}",
            )
            self.ask(shard, Finish(submit=ended, next=following, digest="", shards=self.shards))


def test_every_relay_of_a_copy_has_acted_or_is_sent_again(tmp_path: Path) -> None:
    """Whichever shard is copied first, and to whichever divisor of their number it is restored."""

    @settings(max_examples=15, deadline=None)
    @given(seeds, st.sampled_from([(2, 2), (4, 4), (4, 2), (3, 1)]))
    def check(seed: int, numbers: tuple[int, int]) -> None:
        before, after = numbers
        with tempfile.TemporaryDirectory(dir=tmp_path) as home:
            world = RelayingWorld(before, seed)
            world.live_through_a_backup(40)
            place = BackupDirectory(Path(home, "backups"))
            source = RestoreSource(place=place, manifest=back_up(world, place, Path(home)))
            into = Path(home, "data")
            restore([source], Wanted(cluster_id="new", shards=after), into=into, node_id="a")
            found = [all_rows(into / f"shard-{shard}") for shard in range(after)]
            copied = [
                item for rows in world.rows() for item in _items(rows) if isinstance(item, Relay)
            ]
            left = {
                item.id: (shard, item)
                for shard, rows in enumerate(found)
                for item in _items(rows)
                if isinstance(item, Relay)
            }
            for relay in copied:
                key = relay.effect.create.idempotency_key
                to = shard_of_key(relay.tenant, key, after)
                made = keyspace.idempotency(relay.tenant, key) in found[to]
                assert made != (relay.id in left), relay

            for shard, relay in left.values():
                assert relay.sent_as == (relay.to, relay.number)
                assert shard == shard_of(relay.task_id, after)
                assert (
                    relay.to
                    == shard_of_key(relay.tenant, relay.effect.create.idempotency_key, after)
                    == shard_of(relay.effect.create.id, after)
                )
                assert all(key in found[shard] for key in keyspace.item_index_keys(relay))
            for shard, rows in enumerate(found):
                assert not [item for item in _items(rows) if isinstance(item, RelayLink)]
                numbers: dict[int, set[int]] = {}
                for at, each in left.values():
                    if at == shard:
                        numbers.setdefault(each.to, set()).add(each.number)
                assert all(given == set(range(1, len(given) + 1)) for given in numbers.values())
                lines = sum(key.startswith(line_keys.FORWARD_PREFIX) for key in rows)
                assert sum(at == shard for at, _ in left.values()) == lines

    check()


def test_tasks_on_their_way_keep_their_ids_rather_than_their_keys(tmp_path: Path) -> None:
    """Dependents and results name the ids; keys that would be apart are refused, or left out."""
    world = RelayingWorld(2, seed=4)
    world.live_through_a_backup(120)
    place = BackupDirectory(tmp_path / "backups")
    sources = [RestoreSource(place=place, manifest=back_up(world, place, tmp_path))]
    wanted = Wanted(cluster_id="new", shards=3)
    with pytest.raises(BackupFailed, match="tasks with keys on their way cannot be kept"):
        restore(sources, wanted, into=tmp_path / "refused", node_id="a")
    into = tmp_path / "data"
    made = restore(sources, replace(wanted, forget_keys=True), into=into, node_id="a")
    stood = {task_id for rows in world.rows() for task_id in _task_ids(rows)}
    found = [all_rows(into / f"shard-{shard}") for shard in range(3)]
    sent = {
        item.effect.create.id: (item.to, item.effect.create)
        for rows in found
        for item in _items(rows)
        if isinstance(item, Relay)
    }
    copied = {
        item.effect.create.id: item.effect.create
        for rows in world.rows()
        for item in _items(rows)
        if isinstance(item, Relay)
    }
    keyless = {task_id for task_id, (_, create) in sent.items() if not create.idempotency_key}

    assert sent
    assert sent.keys() == copied.keys() - stood
    assert keyless == {each for each in sent if is_apart(copied[each], 3)}
    assert all(to == shard_of(task_id, 3) for task_id, (to, _) in sent.items())
    assert made.forgotten_keys >= len(keyless) > 0


def _task_ids(rows: Rows) -> list[str]:
    tasks = (each for each in rows.items() if keyspace.family(each[0]) is keyspace.Family.TASK)
    return [records.decode_task(value).id for _, value in tasks]


def _items(rows: Rows) -> list[object]:
    prefixes = tuple(map(keyspace.item_prefix, (ItemKind.RELAY, ItemKind.RELAY_LINK)))
    return [records.decode_item(value) for key, value in rows.items() if key.startswith(prefixes)]


def test_an_import_brings_what_no_shard_had_yet(tmp_path: Path) -> None:
    """A relay that was not taken arrives as the task that it carries, whole and sound."""
    world = RelayingWorld(2, seed=4)
    world.live_through_a_backup(120)
    place = BackupDirectory(tmp_path / "backups")
    manifest = back_up(world, place, tmp_path)
    copies = world.rows()
    made = {key for rows in copies for key in rows if key.startswith(keyspace.IDEMPOTENCY_PREFIX)}
    waiting = [
        item
        for rows in copies
        for item in _items(rows)
        if isinstance(item, Relay)
        and keyspace.idempotency(item.tenant, item.effect.create.idempotency_key) not in made
    ]
    arrivals = {
        arrival.task.id: arrival
        for tenant in TENANTS
        for arrival in TenantReader(place=place, manifest=manifest, tenant=tenant).on_their_way()
    }

    assert waiting
    assert {each.effect.create.id for each in waiting} == set(arrivals)
    for relay in waiting:
        arrival = arrivals[relay.effect.create.id]
        assert "" == fault(arrival)
        assert (relay.tenant, relay.effect.create.idempotency_key, relay.effect.more) == (
            arrival.task.tenant,
            arrival.task.idempotency_key,
            arrival.task.more,
        )
    [first, *_] = waiting
    view = DictView(now_ms=NOW_MS)
    operation = Import(
        request="i",
        tenant=first.tenant,
        by="op",
        source="backup",
        shards=1,
        tasks=(arrivals[first.effect.create.id],),
    )
    view.advance(decide(view, operation, RULES).changes)
    assert view.tasks[first.effect.create.id].seq
    assert 0 < view.tasks[first.effect.create.id].seq < SEQ_MAX
