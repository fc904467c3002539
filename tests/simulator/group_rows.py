"""Group rows: the groups of a simulated shard and their members, checked by entry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.groups import Group, Member
from codeq_cluster.core.stored_item import ItemKind

_Name = tuple[str, str]


class GroupFault(AssertionError):
    """A group says something else than the rows of its members."""


class GroupRows:
    """The groups of a shard, as its first replica applies its entries."""

    def __init__(self) -> None:
        self._groups: dict[_Name, Group] = {}
        self._members: dict[bytes, Member] = {}
        self._states: dict[_Name, Counter[str]] = defaultdict(Counter)

    def written(self, rows: Mapping[bytes, bytes | None]) -> None:
        """Follow an entry's rows.

        Raises:
            GroupFault: The rows contradict each other.
        """
        touched: set[_Name] = set()
        for key, value in rows.items():
            if not key.startswith(keyspace.ITEM_PREFIX):
                continue
            kind, tenant, item_id = keyspace.item_parts(key)
            if kind is ItemKind.GROUP:
                name = tenant, item_id
                self._groups.pop(name, None)
                if value is not None:
                    group = records.decode_item(value)
                    assert isinstance(group, Group)
                    self._groups[name] = group
                touched.add(name)
            elif kind is ItemKind.MEMBER:
                touched.add((tenant, item_id.partition(":")[0]))
                self._follow(key, value)
        for name in touched & self._groups.keys():
            _check(self._groups[name], self._states[name])

    def _follow(self, key: bytes, value: bytes | None) -> None:
        before = self._members.pop(key, None)
        if before is not None:
            self._states[before.tenant, before.group][before.status] -= 1
        if value is None:
            return
        after = records.decode_item(value)
        assert isinstance(after, Member)
        if before is not None and before.status and before.status != after.status:
            raise GroupFault(f"{after.id} was {before.status}, and is {after.status or 'live'}")
        self._members[key] = after
        self._states[after.tenant, after.group][after.status] += 1


def _check(group: Group, states: Counter[str]) -> None:
    if group.sealed_ms and not group.live and not group.ended_ms:
        raise GroupFault(f"{group.id} is sealed and has no live member, and goes on")
    rows = states.total()
    if group.ended_ms and rows < group.rows:
        return  # Its rows are being deleted, some at a time.
    said = (group.rows, group.live, group.completed, group.failed, group.cancelled, group.dead)
    names = ("", "COMPLETED", "FAILED", "CANCELLED", "DEAD")
    recount = (rows, *(states[name] for name in names))
    if said != recount:
        raise GroupFault(f"{group.id} says {said} of its members, and their rows {recount}")
