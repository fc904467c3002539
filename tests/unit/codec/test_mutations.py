"""The rows written for a batch of changes: its net effect, without the states in between."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.codec.mutations import mutations
from codeq_cluster.core.changes import Change, TaskChange
from codeq_cluster.core.decide import decide
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Advance, Cancel, Claim, Operation, PutTopic, Requeue
from codeq_cluster.core.rules import LifetimeRules
from codeq_cluster.core.task import Counters, State
from codeq_cluster.core.view import KeyRow
from tests.fakes.dict_view import DictView

RULES = LifetimeRules(retention_ms=10, key_retention_ms=10)
CREATE = Create(id="t", tenant="acme", command="Render", payload='"ü"')
KEYED = replace(CREATE, idempotency_key="k", fingerprint="print")
CLAIM = Claim(request="r", tenant="acme", worker="ann", commands=("render",), count=1, lease_ms=100)
CANCEL = Cancel(request="c", id="t", tenant="acme")
PAYLOAD_BYTES = len(CREATE.payload.encode())
ONE_CANCELLED = Counters(failed=1, stored_bytes=PAYLOAD_BYTES + len("CANCELLED"))
_ONE_CANCELLED = {("render", "acme"): ONE_CANCELLED}


def test_a_created_task_brings_record_payload_place_and_count() -> None:
    """All rows of a create are one write."""
    view = DictView()
    (change,) = _changes(view, CREATE)
    task = view.task("t")

    assert task is not None
    assert {
        keyspace.task("t"): records.encode(task),
        keyspace.payload("t"): '"ü"'.encode(),
        keyspace.pending("render", "acme", priority=0, seq=task.seq, task_id="t"): b"",
        keyspace.stats("render", "acme"): records.encode(
            Counters(ready=1, stored_bytes=PAYLOAD_BYTES)
        ),
    } == mutations([change], {})


def test_a_place_left_within_the_batch_is_never_written() -> None:
    """A task created and claimed in one entry leaves no pending row and no tombstone for one."""
    rows = mutations(_changes(DictView(), CREATE, CLAIM), {})

    families = {keyspace.family(key) for key in rows}

    assert keyspace.Family.PENDING not in families
    assert b"" == rows[keyspace.inprog("render", "acme", task_id="t")]
    counted = Counters(leased=1, stored_bytes=PAYLOAD_BYTES)
    assert records.encode(counted) == rows[keyspace.stats("render", "acme")]


def test_a_move_touches_only_the_rows_that_differ() -> None:
    """A heartbeat leaves the in-progress row and the counters alone."""
    view = DictView()
    _changes(view, CREATE)
    changes = _changes(view, CLAIM)
    task = changes[0].after
    assert task is not None
    longer = replace(task, lease_until_ms=999)

    assert {
        keyspace.task("t"): records.encode(longer),
        keyspace.lease(task.lease_until_ms, "t"): None,
        keyspace.lease(999, "t"): b"",
    } == mutations([TaskChange(before=task, after=longer)], {})


def test_a_queue_with_no_task_left_has_no_counters() -> None:
    """Names of queues do not pile up in the store."""
    view = DictView()
    _changes(view, CREATE, CANCEL)
    view.now_ms += 10
    rows = mutations(_changes(view, Advance(count=1)), _ONE_CANCELLED)

    assert rows[keyspace.stats("render", "acme")] is None


def test_an_ended_task_is_counted_with_its_result() -> None:
    """A result's bytes count against the tenant, like a payload's."""
    view = DictView()
    _changes(view, CREATE)
    before = Counters(ready=1, stored_bytes=PAYLOAD_BYTES)
    rows = mutations(_changes(view, CANCEL), {("render", "acme"): before})

    assert records.encode(ONE_CANCELLED) == rows[keyspace.stats("render", "acme")]


def test_a_dead_letter_is_counted_where_it_is_kept_and_its_bytes_with_its_queue() -> None:
    """Operators look for it in the target queue; its bytes count in its own queue."""
    view = DictView()
    target = PutTopic(request="p", tenant="acme", name="render", by="op", dead_letter="graves")
    _changes(view, target, replace(CREATE, ttl_ms=5))
    view.now_ms += 5
    before = {("render", "acme"): Counters(ready=1, stored_bytes=PAYLOAD_BYTES)}
    rows = mutations(_changes(view, Advance(count=1)), before)

    bytes_now = PAYLOAD_BYTES + len("MESSAGE_EXPIRED")
    counted = Counters(stored_bytes=bytes_now)
    assert records.encode(counted) == rows[keyspace.stats("render", "acme")]
    assert records.encode(Counters(dead=1)) == rows[keyspace.stats("graves", "acme")]
    assert (
        keyspace.ended(QueuePlace.DLQ, "graves", "acme", ended_ms=view.now_ms, task_id="t") in rows
    )


def test_a_deleted_task_takes_everything_along() -> None:
    """Record, payload, result, key and timer go in one write."""
    view = DictView()
    _changes(view, KEYED, CANCEL)
    view.now_ms += 10
    rows = mutations(_changes(view, Advance(count=1)), _ONE_CANCELLED)

    assert (
        dict.fromkeys(
            (
                keyspace.ended(QueuePlace.FAILED, "render", "acme", ended_ms=1, task_id="t"),
                keyspace.stats("render", "acme"),
                keyspace.task("t"),
                keyspace.payload("t"),
                keyspace.result("t"),
                keyspace.idempotency("acme", "k"),
                keyspace.ttl(11, "t"),
            )
        )
        == rows
    )


def test_a_key_freed_and_taken_again_in_one_batch_names_the_new_task() -> None:
    """The old task's deletion does not remove the new one's row."""
    view = DictView()
    _changes(view, KEYED, CANCEL)
    view.now_ms += 10
    changes = _changes(view, Advance(count=1), replace(KEYED, id="u"))
    rows = mutations(changes, _ONE_CANCELLED)

    row = rows[keyspace.idempotency("acme", "k")]

    assert records.encode(KeyRow("u", "print")) == row


def test_an_id_freed_and_taken_again_in_one_batch_starts_clean() -> None:
    """Nothing of the deleted task is left under the id."""
    view = DictView()
    _changes(view, KEYED, CANCEL)
    view.now_ms += 10
    rows = mutations(_changes(view, Advance(count=1), CREATE), _ONE_CANCELLED)

    assert rows[keyspace.result("t")] is None
    assert rows[keyspace.idempotency("acme", "k")] is None
    assert '"ü"'.encode() == rows[keyspace.payload("t")]


def test_a_task_that_came_and_went_within_the_batch_leaves_nothing() -> None:
    """Rows that never existed leave no tombstones."""
    view = DictView()
    changes = _changes(view, KEYED, CANCEL)
    view.now_ms += 10
    changes += _changes(view, Advance(count=1))

    assert {} == mutations(changes, {})


def test_a_task_that_died_and_was_revived_within_the_batch_has_no_result() -> None:
    """No caller gets the result of a death that was undone."""
    view = DictView()
    _changes(view, replace(CREATE, ttl_ms=5))
    view.now_ms += 5
    requeue = Requeue(request="q", tenant="acme", ids=("t",), by="op")
    changes = _changes(view, Advance(count=1), requeue)
    rows = mutations(changes, {("render", "acme"): Counters(ready=1, stored_bytes=PAYLOAD_BYTES)})

    assert keyspace.result("t") not in rows
    assert keyspace.stats("render", "acme") not in rows


def test_counters_below_zero_stop_the_node() -> None:
    """A wrong count is a bug and must not be committed."""
    view = DictView()
    _changes(view, CREATE)
    changes = _changes(view, CLAIM)

    with pytest.raises(AssertionError):
        mutations(changes, {})


def test_changes_that_do_not_follow_each_other_stop_the_node() -> None:
    """A change must start from the result of the task's last one."""
    changes = _changes(DictView(), CREATE, CLAIM)
    task = changes[1].after
    assert task is not None
    stray = TaskChange(before=replace(task, state=State.READY), after=task)

    with pytest.raises(AssertionError):
        mutations([changes[0], stray], {})


def _changes(view: DictView, *operations: Operation) -> list[Change]:
    changes: list[Change] = []
    for operation in operations:
        decision = decide(view, operation, RULES)
        assert decision.changes
        view.advance(decision.changes)
        changes += decision.changes
    return changes
