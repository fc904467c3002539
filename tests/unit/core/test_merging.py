"""Merging: bounds, budgets and keys of creates with a unique key, and their way elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from codeq_cluster.core import merging
from codeq_cluster.core.arrival import Arrival
from codeq_cluster.core.budget import Budget
from codeq_cluster.core.dependencies import CreateDependent, Need, Node
from codeq_cluster.core.explaining import Facts, Reason, explain
from codeq_cluster.core.faults import task_fault
from codeq_cluster.core.holds import Nack
from codeq_cluster.core.items import Item
from codeq_cluster.core.merging import MERGES_MAX, REPEATED_MS
from codeq_cluster.core.new_task import CreateUnique
from codeq_cluster.core.operations import Abandon, Cancel, Delete, Import, PutTopic, Submit
from codeq_cluster.core.outcomes import Created, Imported, Rejected, Rejection
from codeq_cluster.core.placing import (
    is_apart,
    once_name,
    placed_again,
    placed_by_key,
    without_keys,
)
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.sharding import shard_of_key, shard_of_lane
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Role, State, Task, Unique, Until
from codeq_cluster.core.unique import Holder, Merged, On, UniqueTerms, scope_of, unique_of
from codeq_cluster.core.uniques import restored

from .shard import NOW_MS, Shard, create

HOUR_MS = 3_600_000
_HELD: dict[str, Any] = {"id": "t", "tenant": "acme", "worker": "ann"}
NACK = Nack(**_HELD, request="n", delay_ms=60_000)
DONE = Submit(**_HELD, request="s", status="COMPLETED", body="{}")


class Keyed(Shard):
    """A shard whose creates have the unique key `u`."""

    def add(self, task_id: str, on: On = On.REPLACE, **fields: Any) -> Created | Rejected:
        """Create a task, or do with the one that is there what the terms say."""
        said = {
            name: fields.pop(name)
            for name in ("until", "throttle_ms", "debounce_ms", "max_wait_ms")
            if name in fields
        }
        terms = UniqueTerms(key="u", on=on, **said)
        outcome = self.ask(CreateUnique(create(task_id, unique=terms, **fields)))
        assert isinstance(outcome, Created | Rejected)
        return outcome

    def unique(self, task_id: str = "t") -> Unique:
        """Return the unique key of a task that has one."""
        found = unique_of(self.task(task_id))
        assert found is not None
        return found


def test_a_debounce_moves_the_start_to_its_latest_and_no_further() -> None:
    """Each create moves it; after that it stays ready, and says what was said last."""
    shard = Keyed()
    begun = shard.view.now_ms
    wait = {"debounce_ms": 5000, "max_wait_ms": 12_000}
    starts = []
    for number in range(4):
        shard.add(f"t{number}", **wait)
        starts.append(max(0, shard.task("t0").due_ms - begun))
        shard.wait(4000)

    assert [5000, 9000, 12_000, 0] == starts
    assert State.READY is shard.task("t0").state
    assert ["t0"] == shard.claim()
    assert 3 == shard.unique("t0").revision


def test_a_backoff_is_not_shortened_by_a_replacement() -> None:
    """The payload is new, and the start is that of the backoff."""
    shard = Keyed()
    shard.add("t")
    shard.claim()
    shard.ask(NACK)
    due_ms = shard.task().due_ms
    answer = shard.add("v", payload="[2]")
    later = shard.add("w", payload="[3]", delay_ms=HOUR_MS)

    assert isinstance(answer, Created)
    assert isinstance(later, Created)
    assert (State.DELAYED, due_ms) == (answer.task.state, answer.task.due_ms)
    assert due_ms < later.task.due_ms
    assert "[3]" == shard.view.payload("t")


def test_a_throttle_outlives_its_task_and_keeps_its_record() -> None:
    """Until is over first if it is said, and an ended task stays for as long as its throttle."""
    rules = LifetimeRules(retention_ms=1000, key_retention_ms=1000)
    shard = Keyed(rules)
    shard.add("t", until=Until.THROTTLE, throttle_ms=HOUR_MS)
    shard.ask(Cancel(request="x", id="t", tenant="acme"))
    shard.wait(HOUR_MS - 1)
    returned = shard.add("v", On.RETURN)
    shard.wait(1)
    fresh = shard.add("w", On.RETURN, throttle_ms=HOUR_MS)
    shard.ask(Cancel(request="x", id="w", tenant="acme"))
    ended = shard.add("y", On.RETURN)

    assert isinstance(returned, Created)
    assert ("returned", "t") == (returned.unique, returned.task.id)
    assert isinstance(fresh, Created)
    assert ("created", "w") == (fresh.unique, fresh.task.id)
    assert isinstance(ended, Created)
    assert "created" == ended.unique


def test_the_last_of_a_throttle_follows_when_it_is_over() -> None:
    """With keepLast, what came within it waits, and its own throttle begins with it."""
    shard = Keyed()
    throttle = {"until": Until.THROTTLE, "throttle_ms": 60_000}
    shard.add("t", On.KEEP_LAST, **throttle)
    shard.claim()
    shard.ask(DONE)
    queued = shard.add("v", On.KEEP_LAST, payload="[1]", **throttle)
    shard.add("w", On.KEEP_LAST, payload="[2]", **throttle)
    before = shard.claim()
    told = explain(shard.task("v"), Facts(now_ms=0, before="t", throttled_until_ms=9))
    shard.wait(60_000)

    assert isinstance(queued, Created)
    assert "queued" == queued.unique
    assert [] == before
    assert (Reason.KEY_BUSY, 9) == (told.reason, told.until_ms)
    assert ["v"] == shard.claim()
    assert "[2]" == shard.view.payload("v")
    assert shard.view.now_ms + 60_000 == shard.unique("v").held_until_ms


@pytest.mark.parametrize("last", [On.KEEP_LAST, On.REPLACE])
def test_the_last_payload_is_worked_on_last_although_the_holder_waits_again(last: On) -> None:
    """The one that is next gets it, because it is worked on after the holder."""
    shard = Keyed()
    shard.add("t", On.KEEP_LAST, payload="[1]")
    shard.claim()
    shard.add("v", On.KEEP_LAST, payload="[2]")
    shard.ask(Abandon(**_HELD, request="a"))
    answer = shard.add("w", last, payload="[3]")
    worked_on = []
    for number in range(2):
        [task_id] = shard.claim(request=f"c{number}")
        worked_on.append((task_id, shard.view.payload(task_id)))
        shard.ask(replace(DONE, id=task_id, request=f"s{number}"))

    assert isinstance(answer, Created)
    assert ("replaced", "v") == (answer.unique, answer.task.id)
    assert [("t", "[1]"), ("v", "[3]")] == worked_on
    assert [] == shard.claim(request="c2")


def test_so_many_idempotency_keys_lead_to_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next is refused, one that was there before is answered, and no key is no key."""
    monkeypatch.setattr(merging, "MERGES_MAX", 2)
    shard = Keyed()
    keyed = {"idempotency_key": "a", "fingerprint": "f"}
    shard.add("t", **keyed)
    for name in ("b", "c"):
        shard.add(f"t{name}", On.RETURN, **keyed | {"idempotency_key": name})
    refused = shard.add("v", **keyed | {"idempotency_key": "d"})
    again = shard.add("w", **keyed | {"idempotency_key": "c"})
    keyless = shard.add("x", payload="[9]")

    assert 1000 == MERGES_MAX
    assert Rejected(Rejection.TOO_MANY_MERGES, "2") == refused
    assert isinstance(again, Created)
    assert (True, "t", "returned") == (again.replay, again.task.id, again.unique)
    assert isinstance(keyless, Created)
    assert "replaced" == keyless.unique
    assert ["{}", "[9]"] == [again.payload, shard.view.payload("t")]


def test_a_merged_key_is_kept_as_long_as_one_that_has_made_a_task() -> None:
    """The task stays for as long, and the key is free when both are gone."""
    rules = LifetimeRules(retention_ms=1000, key_retention_ms=HOUR_MS)
    shard = Keyed(rules)
    shard.add("t")
    shard.wait(HOUR_MS // 2)
    keyed = {"idempotency_key": "a", "fingerprint": "f"}
    shard.add("v", **keyed)
    shard.claim()
    shard.ask(DONE)
    shard.wait(HOUR_MS - 1)
    replayed = shard.add("w", **keyed)
    shard.wait(1)

    assert isinstance(replayed, Created)
    assert (True, "t") == (replayed.replay, replayed.task.id)
    assert [] == [*shard.items(ItemKind.MERGED), *shard.view.tasks]
    fresh = shard.add("x", **keyed)
    assert isinstance(fresh, Created)
    assert ("created", "x") == (fresh.unique, fresh.task.id)


def test_a_merged_key_of_a_deleted_task_is_free() -> None:
    """As that of a task which it has made."""
    shard = Keyed()
    shard.add("t")
    keyed = {"idempotency_key": "a", "fingerprint": "f"}
    shard.add("v", **keyed)
    shard.ask(Cancel(request="x", id="t", tenant="acme"))
    shard.ask(Delete(request="d", tenant="acme", ids=("t",), by="ops"))
    fresh = shard.add("w", **keyed | {"fingerprint": "g"})

    assert isinstance(fresh, Created)
    assert ("created", "w", False) == (fresh.unique, fresh.task.id, fresh.replay)


def test_a_create_is_repeated_for_as_long_as_a_node_may_repeat_it() -> None:
    """Its own row is then forgotten."""
    shard = Keyed()
    shard.add("t")
    shard.add("v", payload="[1]")
    shard.add("w", payload="[2]")
    shard.wait(REPEATED_MS - 1)
    again = shard.add("v", payload="[1]")
    rows = len(shard.items(ItemKind.MERGED))
    shard.wait(1)

    assert isinstance(again, Created)
    assert ("replaced", "[2]") == (again.unique, again.payload)
    assert 1 == shard.unique().revision - 1
    assert (2, 0) == (rows, len(shard.items(ItemKind.MERGED)))


def test_a_replacement_keeps_to_tiers_and_bytes() -> None:
    """It is refused as a create is, and a smaller payload is taken beyond the budget."""
    shard = Keyed(LifetimeRules(budget=Budget(waiting_max=1, bytes_max=30)))
    shard.ask(PutTopic(request="p", tenant="acme", name="render", by="ops", priority_tiers=(3,)))
    shard.add("t", payload='"12345678901234567890"', priority=3)
    tier = shard.add("v", priority=4)
    large = shard.add("w", payload='"1234567890123456789012345678901"', priority=3)
    small = shard.add("x", priority=3)
    following = shard.ask(CreateUnique(create("y", priority=3, unique=UniqueTerms(key="other"))))

    assert Rejected(Rejection.INVALID_PRIORITY, "3") == tier
    assert Rejected(Rejection.BUDGET_EXCEEDED, "storedBytes") == large
    assert isinstance(small, Created)
    assert ("replaced", 2) == (small.unique, small.task.payload_bytes)
    assert Rejected(Rejection.BUDGET_EXCEEDED, "readyTasks") == following


def test_a_unique_key_decides_the_shard_unless_another_key_does() -> None:
    """An idempotency key is known among its tasks, and one without them is bare."""
    bare = create("t", unique=UniqueTerms(key="u"), idempotency_key="i")
    keyed = replace(bare, key="k")
    by_unique = shard_of_lane("acme", "render", "u", 7)

    assert by_unique == placed_by_key(bare, "acme", 7)
    assert shard_of_lane("acme", "render", "k", 7) == placed_by_key(keyed, "acme", 7)
    assert once_name(bare) == f"\0{scope_of(bare)}/i"
    assert scope_of(bare) != scope_of(keyed)

    shard = Keyed()
    shard.add("t", On.KEEP_LAST)
    shard.claim()
    shard.add("v", On.KEEP_LAST, idempotency_key="i", fingerprint="f")
    freed = without_keys(shard.task("v"))
    assert (State.READY, None) == (freed.state, unique_of(freed))
    assert not freed.more or not freed.more.waits
    assert not is_apart(freed, 7)


def test_a_task_without_its_keys_waits_for_its_start_and_its_dependencies() -> None:
    """An import or a restore that forgets keys starts nothing before its time."""
    shard = Keyed()
    shard.add("t", On.KEEP_LAST)
    shard.claim()
    shard.add("v", On.KEEP_LAST, run_at_ms=NOW_MS + 60_000)
    shard.create("parent")
    needs = (Need(parent="parent", name="parent"),)
    shard.ask(CreateDependent(Node(create("child", key="k"), needs)))
    later, child = (without_keys(shard.task(name)) for name in ("v", "child"))

    assert (State.DELAYED, NOW_MS + 60_000) == (later.state, later.due_ms)
    assert (State.HELD, True) == (child.state, child.waits_for_others)
    assert ["", ""] == [task_fault(each) for each in (later, child)]


def _arrive(shard: Shard, *tasks: Task, forget_keys: bool = False) -> Imported:
    outcome = shard.ask(
        Import(
            request="i",
            tenant="acme",
            by="ops",
            source="b",
            shards=1,
            tasks=tuple(Arrival(task=each, payload="{}") for each in tasks),
            forget_keys=forget_keys,
        )
    )
    assert isinstance(outcome, Imported)
    return outcome


def test_an_import_brings_the_holder_and_what_is_next() -> None:
    """A key that is held here is reported; without its keys a task comes all the same."""
    there, here = Keyed(), Keyed()
    there.add("t", On.KEEP_LAST)
    there.claim()
    there.add("v", On.KEEP_LAST)
    both = [there.task("t"), there.task("v")]
    first = _arrive(here, *both)
    again = _arrive(here, *both)
    others = [replace(each, id=f"o{each.id}") for each in both]
    taken = _arrive(here, *others)
    forgotten = _arrive(here, *others, forget_keys=True)

    assert (2, 0, 2) == (first.imported, again.imported, again.present)
    assert ("ot", "ov") == taken.keys_taken
    assert (2, 2) == (forgotten.imported, forgotten.forgotten_keys)
    assert there.items(ItemKind.UNIQUE) == here.items(ItemKind.UNIQUE)
    assert State.READY is here.task("ov").state
    assert State.HELD is here.task("v").state


def test_what_is_next_goes_first_if_nobody_holds_its_key_here() -> None:
    """Its holder then finds the key taken."""
    there, here = Keyed(), Keyed()
    there.add("t", On.KEEP_LAST)
    there.claim()
    there.add("v", On.KEEP_LAST)
    first = _arrive(here, there.task("v"))
    holder = _arrive(here, there.task("t"))

    assert 1 == first.imported
    assert (State.READY, Role.HOLDER) == (here.task("v").state, here.unique("v").role)
    assert ("t",) == holder.keys_taken


def test_a_restore_that_has_lost_the_holder_lets_the_next_one_go() -> None:
    """Its row ends at once, and the task that was next gets the key."""
    shard = Keyed()
    shard.add("t", On.KEEP_LAST)
    shard.claim()
    shard.add("v", On.KEEP_LAST)
    [row] = shard.items(ItemKind.UNIQUE)
    assert isinstance(row, Holder)
    del shard.view.tasks["t"]
    lost: Item = restored(replace(row, task_id=""))
    shard.view.items[ItemKind.UNIQUE, "acme", row.id] = lost
    shard.wait(0)

    assert row == restored(row)
    assert (State.READY, Role.HOLDER) == (shard.task("v").state, shard.unique("v").role)
    [after] = shard.items(ItemKind.UNIQUE)
    assert replace(row, task_id="v", next_id="") == after


def test_a_merged_create_is_where_its_task_is() -> None:
    """A restore on other shards takes it along."""
    shard = Keyed()
    shard.add("t")
    shard.add("v")
    [row] = shard.items(ItemKind.MERGED)

    assert isinstance(row, Merged)
    assert shard_of_key("acme", row.shard_name, 7) == placed_again(shard.task("t"), "acme", 7)
