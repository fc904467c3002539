"""Graphs: requests for tasks that depend on others, and questions after their neighbours."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.search import task_of
from codeq_cluster.broker.questions import ListItems
from codeq_cluster.broker.requests.pins import Pins
from codeq_cluster.broker.requests.producer import fingerprint_of, on_its_shard
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core import task_ids
from codeq_cluster.core.dependencies import (
    EDGES_MAX,
    WALKED_BYTES_MAX,
    CreateDependent,
    CreateGraph,
    Dependencies,
    Edge,
    Ended,
    Need,
    Node,
    Terms,
    edge_id,
    graph_key,
    graph_shard,
)
from codeq_cluster.core.depending import ended_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import Created, GraphStands, Rejected, Rejection
from codeq_cluster.core.placing import once_name, placed_by_key
from codeq_cluster.core.sharding import shard_of, with_shard
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Task

NEIGHBOURS_MAX = 200  # Tasks of one answer.


class Asked(Struct, frozen=True):
    """A dependency as a request says it.

    Attributes:
        name: A ref of the same request, or a task's id.
        position: Of the task with this ref in the request; None for an id.
    """

    name: str
    terms: Terms = Terms()
    position: int | None = None


class AskedNode(Struct, frozen=True):
    """A task as a request says it, without id and tenant."""

    create: Create
    of: tuple[Asked, ...] = ()


class Neighbour(Struct, frozen=True):
    """A task near another one in its graph, and the edges that lead to it.

    Attributes:
        task: None if it is deleted.
        row: What it waits for; None for a task without dependencies.
    """

    id: str
    task: Task | None
    row: Dependencies | None


class Graphs:
    """Creates tasks that wait for others."""

    def __init__(self, shards: Shards, pins: Pins) -> None:
        self._pins = pins
        self._shards = shards
        self._count = shards.count

    async def create(
        self, caller: Caller, nodes: Sequence[AskedNode], *, key: str, digest: str
    ) -> GraphStands | Rejected:
        """Create a graph, all of it or nothing, by one entry; it may send tasks with keys on."""
        outcome = await self._created(caller, nodes, self._pins.known, key=key, digest=digest)
        if isinstance(outcome, Rejected) and outcome.rejection is Rejection.MISPLACED:
            pins = self._pins.told(caller.tenant, outcome)
            return await self._created(caller, nodes, pins, key=key, digest=digest)
        return outcome

    async def _created(
        self,
        caller: Caller,
        nodes: Sequence[AskedNode],
        pins: Mapping[tuple[str, str], str],
        *,
        key: str,
        digest: str,
    ) -> GraphStands | Rejected:
        key_id = graph_key(key) if key else ""
        by_key = [placed_by_key(node.create, caller.tenant, self._count, pins) for node in nodes]
        if key:
            shard = graph_shard(caller.tenant, key_id, self._count)
        elif by_key[0] is not None and None not in by_key:
            shard = by_key[0]  # Some task is of the graph's shard.
        else:
            shard = self._beside(nodes)
        ids = [self._id(caller.tenant, shard if each is None else each) for each in by_key]
        known: Mapping[str, Ended | None] | Rejected = {}
        if not key or await self._is_free(
            caller, shard, keyspace.item(ItemKind.GRAPH_KEY, caller.tenant, key_id)
        ):
            known = await self._known(caller, shard, chain.from_iterable(each.of for each in nodes))
        if isinstance(known, Rejected):
            return known
        of = _needs([node.of for node in nodes], ids, known)
        operation = CreateGraph(
            tenant=caller.tenant,
            shard=shard,
            key=key_id,
            digest=digest,
            nodes=tuple(
                Node(replace(node.create, id=task_id, tenant=caller.tenant), needs)
                for task_id, node, needs in zip(ids, nodes, of, strict=True)
            ),
        )
        outcome = await on_its_shard(
            self._shards, shard, operation, GraphStands, deadline=caller.deadline
        )
        if isinstance(outcome, GraphStands) and outcome.ids:
            return await self._with_others(caller, outcome)
        return outcome

    async def _with_others(self, caller: Caller, stands: GraphStands) -> GraphStands:
        """Return the tasks of a graph with those of other shards that are there."""
        found = {task.id: task for task in stands.tasks}
        others = [task_id for task_id in stands.ids if task_id not in found]
        read = (task_of(self._shards, caller, each) for each in others)
        for task in await asyncio.gather(*read):
            if task is not None:
                found[task.id] = task
        return replace(stands, tasks=tuple(found[each] for each in stands.ids if each in found))

    async def create_one(self, caller: Caller, asked: AskedNode) -> Created | Rejected:
        """Create one task that waits for others; it may have a key of its own.

        The shard that its idempotency key had before its queue was pinned is asked first.
        """
        outcome = await self._created_one(caller, asked, {})
        if isinstance(outcome, Rejected) and outcome.rejection is Rejection.MISPLACED:
            pins = self._pins.told(caller.tenant, outcome)
            return await self._created_one(caller, asked, pins)
        return outcome

    async def _created_one(
        self, caller: Caller, asked: AskedNode, pins: Mapping[tuple[str, str], str]
    ) -> Created | Rejected:
        create, key = asked.create, asked.create.idempotency_key
        placed = placed_by_key(create, caller.tenant, self._count, pins)
        shard = self._beside((asked,)) if placed is None else placed
        create = replace(create, id=self._id(caller.tenant, shard), tenant=caller.tenant)
        known: Mapping[str, Ended | None] | Rejected = {}
        if key:
            create = replace(create, fingerprint=fingerprint_of(create.command, create.payload))
        if not key or await self._is_free(
            caller, shard, keyspace.idempotency(caller.tenant, once_name(create))
        ):
            known = await self._known(caller, shard, asked.of)
        if isinstance(known, Rejected):
            return known
        [needs] = _needs([asked.of], (), known)
        dependent = CreateDependent(Node(create, needs))
        outcome = await on_its_shard(
            self._shards, shard, dependent, Created, deadline=caller.deadline
        )
        if isinstance(outcome, Rejected):
            return outcome
        return replace(outcome, payload=outcome.payload or create.payload)

    async def neighbours(self, caller: Caller, task_id: str) -> list[Neighbour] | None:
        """Return a task and those that its graph leads to, the nearest first; None for no task.

        At most `NEIGHBOURS_MAX`; of each task at most so many dependents are followed.
        """
        found: dict[str, Neighbour] = {}
        wanted = [task_id]
        while wanted and len(found) < NEIGHBOURS_MAX:
            wanted = wanted[: NEIGHBOURS_MAX - len(found)]
            looks = await asyncio.gather(*(self._look(caller, each) for each in wanted))
            found |= {neighbour.id: neighbour for neighbour, _ in looks}
            if found[task_id].task is None:
                return None
            near = chain.from_iterable(ids for _, ids in looks)
            wanted = [each for each in dict.fromkeys(near) if each not in found]
        return list(found.values())

    async def _look(self, caller: Caller, task_id: str) -> tuple[Neighbour, list[str]]:
        """Return a task with the ids that its edges lead to."""
        shard = shard_of(task_id, self._count)
        keys = (
            keyspace.task(task_id),
            keyspace.item(ItemKind.DEPENDENCIES, caller.tenant, task_id),
        )
        values = (await self._shards.read(shard, keys, deadline=caller.deadline)).values
        task = None if values[0] is None else records.decode_task(values[0])
        if task is None or task.tenant != caller.tenant:
            return Neighbour(task_id, None, None), []
        row = records.item_in(values[1], Dependencies)
        near = [each.parent for each in row.of] if row is not None else []
        if task.more is not None and task.more.dependents:
            asked = ListItems(
                tenant=caller.tenant,
                kind=ItemKind.EDGE,
                after=b"",
                count=NEIGHBOURS_MAX,
                prefix=edge_id(task_id, ""),
            )
            page = await self._shards.ask(shard, asked, deadline=caller.deadline)
            near += [edge.dependent for _, edge in page.rows if isinstance(edge, Edge)]
        return Neighbour(task_id, task, row), near

    def _beside(self, nodes: Iterable[AskedNode]) -> int:
        """Return the shard of the first parent that is there already, or any."""
        parents = (each.name for node in nodes for each in node.of if each.position is None)
        first = next(parents, None)
        return shard_of(first or os.urandom(8).hex(), self._count)

    def _id(self, tenant: str, shard: int) -> str:
        task_id = task_ids.task_id(tenant, os.urandom(16))
        return with_shard(task_id, shards=self._count, wanted=shard)

    async def _is_free(self, caller: Caller, shard: int, row: bytes) -> bool:
        """Return whether an idempotency key has made nothing yet."""
        read = await self._shards.read(shard, (row,), deadline=caller.deadline)
        return read.values[0] is None

    async def _known(
        self, caller: Caller, shard: int, of: Iterable[Asked]
    ) -> dict[str, Ended | None] | Rejected:
        """Ask for the parents of other shards: each must be there, and may have ended."""
        parents: dict[int, list[str]] = {}
        for each in of:
            home = shard_of(each.name, self._count)
            if each.position is None and home != shard:
                parents.setdefault(home, []).append(each.name)
        found: dict[str, Ended | None] = {}
        for home, ids in parents.items():
            keys = tuple(map(keyspace.task, ids))
            read = await self._shards.read(home, keys, deadline=caller.deadline)
            for parent, record in zip(ids, read.values, strict=True):
                task = None if record is None else records.decode_task(record)
                if task is None or task.tenant != caller.tenant:
                    return Rejected(Rejection.UNKNOWN_DEPENDENCY, parent)
                if task.more is not None and task.more.dependents >= EDGES_MAX:
                    return Rejected(Rejection.TOO_MANY, "dependents")
                found[parent] = None
                if task.state.terminal:
                    found[parent] = await self._ended(caller, home, task)
        return found

    async def _ended(self, caller: Caller, shard: int, task: Task) -> Ended:
        keys = (keyspace.result(task.id),)
        [record] = (await self._shards.read(shard, keys, deadline=caller.deadline)).values
        return ended_of(task, None if record is None else records.decode_result(record))


def _needs(
    of: Iterable[Sequence[Asked]], ids: Sequence[str], known: Mapping[str, Ended | None]
) -> list[tuple[Need, ...]]:
    """Return what each task waits for, with the ends that are known and fit an entry.

    Every task asks for its parents, so their shards tell it of the other ends.
    """
    bytes_left = WALKED_BYTES_MAX
    found: list[tuple[Need, ...]] = []
    for all_asked in of:
        needs: list[Need] = []
        for asked in all_asked:
            parent = asked.name if asked.position is None else ids[asked.position]
            ended = None if bytes_left <= 0 else known.get(parent)
            bytes_left -= 0 if ended is None else ended.size
            needs.append(Need(parent=parent, name=asked.name, terms=asked.terms, ended=ended))
        found.append(tuple(needs))
    return found
