"""Noted: items of one shard that are asked for so often that they are kept in memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.scanning import every_row
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.bulk import BulkJob
from codeq_cluster.core.gate import Gate
from codeq_cluster.core.lane import Flow
from codeq_cluster.core.limit import is_limits, scope_of_limit
from codeq_cluster.core.stored_item import ItemKind

_ASIDES = keyspace.item_prefix(ItemKind.ASIDE)
_FLOWS = keyspace.item_prefix(ItemKind.FLOW)
_GATES = keyspace.item_prefix(ItemKind.GATE)
_BULK = keyspace.item_prefix(ItemKind.BULK)


class Noted:
    """What is set aside, and the rules of queues and of limits; see `core.view.View`.

    Attributes:
        flows: The rules of every queue and limit that has any or is pinned, by tenant and scope.
        ruled: By tenant, the scopes of these, and of those whose rules have ended.
        bulk: The tenant and the id of every bulk job that goes on.
    """

    def __init__(self, store: StateStore, *, opened: Callable[[str, str], None]) -> None:
        """Read them.

        Args:
            opened: Called with a tenant and a queue or a limit whose gate has changed.
        """
        self.asides: set[tuple[str, str]] = set()
        self.flows: dict[tuple[str, str], Flow] = {}
        self.ruled: dict[str, set[str]] = {}
        self.pins: dict[tuple[str, str], str] = {}
        self.sharers: dict[tuple[str, str], set[str]] = {}
        self.gates: dict[tuple[str, str], Gate] = {}
        self.bulk: set[tuple[str, str]] = set()
        self._opened = opened
        for prefix in (_ASIDES, _FLOWS, _GATES, _BULK):
            for key, value in every_row(store, *keyspace.prefix_range(prefix)):
                with suppress(records.RecordInvalid):  # Whoever needs it reads it, and says so.
                    self.row(key, value)

    def row(self, key: bytes, value: bytes | None) -> None:
        """Take in a row of an item."""
        if key.startswith(_ASIDES):
            change = self.asides.discard if value is None else self.asides.add
            change(keyspace.item_parts(key)[1:])
        elif key.startswith(_FLOWS):
            _, tenant, scope = keyspace.item_parts(key)
            self._note_ruled(tenant, scope, is_ruled=value is not None)
            flow = None if value is None else records.decode_item(value)
            if isinstance(flow, Flow):
                self._flow(flow)
            else:
                self.flows.pop((tenant, scope), None)
        elif key.startswith(_GATES):
            _, tenant, scope = keyspace.item_parts(key)
            gate = None if value is None else records.decode_item(value)
            if isinstance(gate, Gate):
                self.gates[tenant, scope] = gate
            else:
                self.gates.pop((tenant, scope), None)
            self._opened(tenant, scope)
        elif key.startswith(_BULK):
            job = None if value is None else records.decode_item(value)
            goes_on = isinstance(job, BulkJob) and not job.ended_ms
            change = self.bulk.add if goes_on else self.bulk.discard
            change(keyspace.item_parts(key)[1:])

    def _note_ruled(self, tenant: str, scope: str, *, is_ruled: bool) -> None:
        scopes = self.ruled.setdefault(tenant, set())
        if is_ruled:
            scopes.add(scope)
        else:
            scopes.discard(scope)
        if not scopes:
            del self.ruled[tenant]

    def _flow(self, flow: Flow) -> None:
        """Take in the rules of a queue or a limit."""
        tenant, before = flow.tenant, self.flows.pop((flow.tenant, flow.id), None)
        if flow.per_key or flow.per_queue or flow.pinned:
            self.flows[tenant, flow.id] = flow
        if is_limits(flow.id):
            self._opened(tenant, flow.id)
            return
        if flow.pinned:
            self.pins[tenant, flow.id] = flow.pinned
        if before is not None and before.limit and before.limit != flow.limit:
            left = tenant, scope_of_limit(before.limit)
            self.sharers[left].discard(flow.id)
            if not self.sharers[left]:
                del self.sharers[left]
            self._opened(*left)  # Its tasks count there no more.
        if flow.limit:
            self.sharers.setdefault((tenant, scope_of_limit(flow.limit)), set()).add(flow.id)
