"""Row faults: why a row of a backup can be none that a cluster wrote.

Whoever may write to the place of backups can change one and its checksums with it. A restored row
that no operation could have written would stop the timers of its whole shard.
"""

from __future__ import annotations

from codeq_cluster.backup.rows import Row, tenant_key
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.bounds import ID, KEY_BYTES_MAX, OWNER, is_json, text
from codeq_cluster.core.faults import item_fault, result_fault, task_fault
from codeq_cluster.core.items import KIND_OF, Aside, Item

_KEY = text(KEY_BYTES_MAX, empty=False)
_TIMERS = (Family.LEASE, Family.TTL, Family.OUTBOX, Family.EXPIRY)
_NOT_ITS_KEY = "its key is another record's"


def row_fault(row: Row) -> str:
    """Return the record and the field that make a row impossible, or "" for a possible row.

    Raises:
        ValueError: The row cannot be read at all; IndexError as well.
    """
    key, value = row
    match keyspace.family(key):
        case Family.TASK:
            task = records.decode_task(value)
            why = task_fault(task) or _other(key, keyspace.TASK_PREFIX, task.id)
            name = f"task {task.id[:128]}"
        case Family.RESULT:
            result = records.decode_result(value)
            why = result_fault(result) or _other(key, keyspace.RESULT_PREFIX, result.task_id)
            name = f"result of task {result.task_id[:128]}"
        case Family.PAYLOAD:
            task_id = key.removeprefix(keyspace.PAYLOAD_PREFIX).decode()
            name, why = f"payload of task {task_id[:128]}", ID(task_id)
            if not why and not is_json(value.decode()):
                why = "must be JSON"
        case Family.IDEMPOTENCY:
            tenant, text_of_key = tenant_key(key)
            task_id = records.decode_key_row(value).task_id
            name = f"idempotency key of task {task_id[:128]}"
            why = ID(task_id) or OWNER(tenant) or _KEY(text_of_key)
        case Family.ITEM:
            return _item_fault(key, records.decode_item(value))
        case Family.BODY:
            tenant, delivery_id = tenant_key(key)
            body = records.decode_result(value)
            name = f"body of delivery {delivery_id[:256]}"
            why = OWNER(tenant) or result_fault(body)
            if not why and delivery_id.split(".", 1)[0] != body.task_id:
                why = _NOT_ITS_KEY
        case _:
            return ""  # `rows_of` yields no other family.
    return f"{name}: {why}" if why else ""


def _item_fault(key: bytes, item: Item) -> str:
    kind, why = KIND_OF[type(item)], item_fault(item)
    if not why and key != keyspace.item(kind, item.tenant, item.id):
        why = _NOT_ITS_KEY
    if not why and isinstance(item, Aside) and keyspace.family(item.timer) not in _TIMERS:
        why = "timer: must be the key of a timer"
    return f"{kind.value} {item.id[:256]}: {why}" if why else ""


def _other(key: bytes, prefix: bytes, name: str) -> str:
    return "" if key == prefix + name.encode() else _NOT_ITS_KEY
