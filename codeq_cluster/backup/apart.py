"""Apart: tasks of a backup whose keys belong on another shard than they, in a new cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from codeq_cluster.backup.rows import Row
from codeq_cluster.codec import keyspace, records
from codeq_cluster.codec.keyspace import Family
from codeq_cluster.core.groups import NewMember
from codeq_cluster.core.placing import is_apart, keyless, placing_key
from codeq_cluster.core.relays import Relay, RelayedTask
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.errors import BackupFailed

RELAYS = keyspace.item_prefix(ItemKind.RELAY)


def all_fit(old: int, new: int) -> bool:
    """Return whether every key of `old` shards belongs where its task does, of `new` ones."""
    return old % new == 0


def carries_apart(relay: Relay, shards: int) -> bool:
    """Return whether a relay carries a new task whose keys belong on another shard than its id."""
    effect = relay.effect
    return isinstance(effect, RelayedTask | NewMember) and is_apart(effect.create, shards)


def without_its_keys(relay: Relay) -> Relay:
    """Return a relay whose new task keeps its id, which others may know, and has no keys."""
    assert isinstance(relay.effect, RelayedTask | NewMember)
    return replace(relay, effect=replace(relay.effect, create=keyless(relay.effect.create)))


def refuse_apart(rows: Iterable[Row], *, old: int, new: int) -> None:
    """Refuse a backup of `old` shards that has keys which `new` ones would not find again.

    Raises:
        BackupFailed: Keys would be apart.
        BackupDamaged: The backup is damaged.
    """
    if all_fit(old, new):
        return
    apart = Counter(kind for row in rows if (kind := _key_apart(row, new)))
    if apart:
        fitting = [str(count) for count in range(1, old + 1) if all_fit(old, count)]
        said = " and ".join(f"{number} {kind}" for kind, number in sorted(apart.items()))
        raise BackupFailed(
            f"{said} cannot be kept with {new} shards: restore "
            f"with {', '.join(fitting)}, or leave these keys out with restore --forget-keys"
        )


def _key_apart(row: Row, shards: int) -> str:
    """Return what a row has that belongs on another shard, in words, or ""."""
    key, value = row
    try:
        if key.startswith(RELAYS):
            relay = records.decode_item(value)
            apart = isinstance(relay, Relay) and carries_apart(relay, shards)
            return "tasks with keys on their way" if apart else ""
        if keyspace.family(key) is not Family.TASK:
            return ""
        task = records.decode_task(value)
        kind = "tasks with keys" if placing_key(task) else "idempotency keys"
        return kind if is_apart(task, shards) else ""
    except records.UNREADABLE_ROW:
        return ""  # It is left out.
