"""The rows written for changes of items, and the index that an entry adds to audit records."""

from __future__ import annotations

from msgspec.structs import replace

from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.mutations import mutations, number_audit_rows
from codeq_cluster.core.changes import Change, ItemChange
from codeq_cluster.core.items import Audit, Delivery, Item, Subscription, Topic
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Result

DELIVERY = Delivery(
    tenant="acme",
    id="t.1",
    task_id="t",
    command="render",
    url="https://hooks.example/",
    created_ms=1,
    due_ms=5,
)
BODY = Result(task_id="t", status="COMPLETED", body="{}")
ITEM_KEY = keyspace.item(ItemKind.DELIVERY, "acme", "t.1")
BODY_KEY = keyspace.body("acme", "t.1")
AUDIT = Audit(tenant="acme", id="1-r", at_ms=1, actor="ops", action="a", target="t", expires_ms=9)


def test_a_new_delivery_adds_its_outbox_job_and_its_body() -> None:
    """All its rows are one write."""
    [outbox_job] = keyspace.item_index_keys(DELIVERY)

    assert {
        ITEM_KEY: records.encode(DELIVERY),
        outbox_job: b"",
        BODY_KEY: records.encode(BODY),
    } == _rows(ItemChange(before=None, after=DELIVERY, body=BODY))


def test_an_attempt_moves_the_outbox_job_and_keeps_the_body() -> None:
    """The old due time is deleted in the write that adds the new one."""
    later = replace(DELIVERY, attempts=1, due_ms=7)
    [outbox_job] = keyspace.item_index_keys(DELIVERY)
    [next_outbox_job] = keyspace.item_index_keys(later)

    assert {
        ITEM_KEY: records.encode(later),
        outbox_job: None,
        next_outbox_job: b"",
    } == _rows(ItemChange(before=DELIVERY, after=later))


def test_a_change_that_keeps_its_instant_leaves_its_row_alone() -> None:
    """Who keeps the first rows in memory would have it twice, and once too often after it goes."""
    same, later = replace(DELIVERY, error="503"), replace(DELIVERY, due_ms=7)
    [outbox_job] = keyspace.item_index_keys(DELIVERY)
    stays = ItemChange(before=DELIVERY, after=same)
    there = ItemChange(before=DELIVERY, after=later)

    assert outbox_job not in _rows(stays)
    assert _rows(stays) == _rows(there, ItemChange(before=later, after=same))
    assert _rows(there)[outbox_job] is None
    assert _rows(stays, ItemChange(before=same, after=None))[outbox_job] is None


def test_a_dead_delivery_is_listed_and_has_an_end_instead_of_a_job() -> None:
    """No attempt is due until it is replayed."""
    dead = replace(DELIVERY, attempts=5, due_ms=0, died_ms=8, expires_ms=9)
    [outbox_job] = keyspace.item_index_keys(DELIVERY)
    listed, expiry = keyspace.item_index_keys(dead)
    rows = _rows(ItemChange(before=DELIVERY, after=dead))
    revived = _rows(ItemChange(before=dead, after=DELIVERY))

    assert (None, b"", b"") == (rows[outbox_job], rows[listed], rows[expiry])
    assert (b"", None, None) == (revived[outbox_job], revived[listed], revived[expiry])


def test_a_delivered_delivery_takes_everything_along() -> None:
    """Item, outbox job and body go in one write."""
    [outbox_job] = keyspace.item_index_keys(DELIVERY)

    assert dict.fromkeys((ITEM_KEY, outbox_job, BODY_KEY)) == _rows(
        ItemChange(before=DELIVERY, after=None)
    )


def test_the_last_of_several_changes_in_one_batch_wins() -> None:
    """An item created, moved and deleted leaves nothing; one deleted and created again stays."""
    later = replace(DELIVERY, attempts=1, due_ms=7)
    made = ItemChange(before=None, after=DELIVERY, body=BODY)
    moved = ItemChange(before=DELIVERY, after=later)
    gone = ItemChange(before=later, after=None)

    assert {} == _rows(made, moved, gone)
    assert _rows(made) == _rows(made, moved, gone, made)


def test_a_topic_is_one_row() -> None:
    """A topic has no timer and no body."""
    topic = Topic(tenant="", id="q", name="Q")
    key = keyspace.item(ItemKind.TOPIC, "", "q")

    assert {key: records.encode(topic)} == _rows(ItemChange(before=None, after=topic))
    assert {key: None} == _rows(ItemChange(before=topic, after=None))


def test_records_of_operators_get_the_index_of_their_entry() -> None:
    """Only audit records in the write are numbered."""
    subscription = Subscription(
        tenant="acme", id="s", worker="ann", callback_url="https://w.example/", expires_ms=6
    )
    other = replace(AUDIT, tenant="", id="2-r", expires_ms=8)
    rows = _rows(*(_made(each) for each in (AUDIT, other, subscription, DELIVERY)))
    rows |= _rows(ItemChange(before=replace(AUDIT, id="0-r"), after=None))
    before = dict(rows)
    number_audit_rows(rows, 70_000)

    changed = {key: value for key, value in rows.items() if value != before[key]}
    assert {
        keyspace.item(ItemKind.AUDIT, each.tenant, each.id): records.encode(
            replace(each, index=70_000)
        )
        for each in (AUDIT, other)
    } == changed
    assert before.keys() == rows.keys()


def test_a_record_applied_again_is_numbered_alike() -> None:
    """A replayed entry writes the same rows."""
    rows = _rows(_made(AUDIT))
    number_audit_rows(rows, 7)
    once = dict(rows)
    number_audit_rows(rows, 7)

    assert once == rows


def _made(item: Item) -> ItemChange:
    return ItemChange(before=None, after=item)


def _rows(*changes: Change) -> dict[bytes, bytes | None]:
    return mutations(changes, {})
