"""Groups: requests for groups of tasks, each of which goes to the group's shard."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.ports import Shards
from codeq_cluster.broker.queries.search import item_of
from codeq_cluster.broker.questions import ListItems
from codeq_cluster.broker.requests.producer import on_its_shard
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.groups import (
    ADDED_MAX,
    AddMembers,
    CancelGroup,
    CreateGroup,
    Group,
    Member,
    SealGroup,
    group_shard,
    member_id,
)
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.operations import Operation
from codeq_cluster.core.outcomes import GroupStands, Rejected
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.stored_item import ItemKind
from codeq_cluster.core.task import Result
from codeq_cluster.portions import in_parts

# Members of one entry, unless a single one is larger.
_CHUNK_BYTES_MAX = 2**19
# Results read at once: one may be as large as a request.
_RESULTS_AT_ONCE = 8
_RESULTS_BYTES_MAX = 2**20


class MemberResult(Struct, frozen=True):
    """A member, and its result if it is kept."""

    member: Member
    result: Result | None


class Groups:
    """Changes and reads groups."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    async def create(self, caller: Caller, group: CreateGroup) -> GroupStands | Rejected:
        """Begin a group with its first members; a repeated request goes on where it stopped."""
        first, *others = _chunks(group.tasks)
        is_whole = not others
        begun = replace(group, tasks=first, seal=group.seal and is_whole)
        stands = await self._operate(caller, group.id, begun)
        if isinstance(stands, Rejected) or is_whole:
            return stands
        # Their names follow from the group, so that those of a repeated request are the same.
        more = await self._add(caller, group.id, others, name="", seal=group.seal)
        if isinstance(more, Rejected):
            return more
        return replace(more, made=stands.made, names=stands.names + more.names)

    async def add(
        self, caller: Caller, group_id: str, tasks: Sequence[Create], *, name: str
    ) -> GroupStands | Rejected:
        """Add tasks; of more than `ADDED_MAX`, an error may leave some of them added."""
        return await self._add(caller, group_id, list(_chunks(tasks)), name=f"{name}.", seal=False)

    async def seal(self, caller: Caller, group_id: str) -> GroupStands | Rejected:
        """Let nobody but live members add to it."""
        return await self._operate(caller, group_id, SealGroup(tenant=caller.tenant, id=group_id))

    async def cancel(self, caller: Caller, group_id: str) -> GroupStands | Rejected:
        """Seal it and cancel its members, step by step."""
        return await self._operate(caller, group_id, CancelGroup(tenant=caller.tenant, id=group_id))

    async def get(self, caller: Caller, group_id: str) -> Group | None:
        """Return a group, or None."""
        shard = group_shard(caller.tenant, group_id, self._shards.count)
        return await item_of(self._shards, shard, Group, caller, group_id)

    async def results(
        self, caller: Caller, group_id: str, *, after: bytes, count: int
    ) -> tuple[list[MemberResult], bytes]:
        """Return the next members by id with their results, and where to go on.

        The page is short if the results are large.
        """
        asked = ListItems(
            tenant=caller.tenant,
            kind=ItemKind.MEMBER,
            after=after,
            count=count,
            prefix=member_id(group_id, ""),
        )
        shard = group_shard(caller.tenant, group_id, self._shards.count)
        page = await self._shards.ask(shard, asked, deadline=caller.deadline)
        found: list[MemberResult] = []
        edge, size = page.edge, 0
        rows = [(position, item) for position, item in page.rows if isinstance(item, Member)]
        for start in range(0, len(rows), _RESULTS_AT_ONCE):
            some = rows[start : start + _RESULTS_AT_ONCE]
            results = await self._results_of(caller, [member for _, member in some])
            found += [MemberResult(member, results.get(member.task_id)) for _, member in some]
            size += sum(len(each.body) for each in results.values())
            if size > _RESULTS_BYTES_MAX and len(found) < len(rows):
                return found, some[-1][0]
        return found, edge

    async def _results_of(self, caller: Caller, members: Sequence[Member]) -> dict[str, Result]:
        def shard_of_member(member: Member) -> int:
            return shard_of(member.task_id, self._shards.count)

        found: dict[str, Result] = {}
        ended = sorted((each for each in members if each.status), key=shard_of_member)
        for shard, some in groupby(ended, key=shard_of_member):
            keys = tuple(keyspace.result(each.task_id) for each in some)
            read = await self._shards.read(shard, keys, deadline=caller.deadline)
            results = (records.decode_result(each) for each in read.values if each is not None)
            found |= {result.task_id: result for result in results}
        return found

    async def _add(
        self,
        caller: Caller,
        group_id: str,
        chunks: Sequence[tuple[Create, ...]],
        *,
        name: str,
        seal: bool,
    ) -> GroupStands | Rejected:
        stands: GroupStands | None = None
        for number, tasks in enumerate(chunks, 1):
            operation = AddMembers(
                tenant=caller.tenant,
                id=group_id,
                name=f"{name}{number}",
                tasks=tasks,
                seal=seal and number == len(chunks),
            )
            added = await self._operate(caller, group_id, operation)
            if isinstance(added, Rejected):
                return added
            names = (stands.names if stands is not None else ()) + added.names
            stands = replace(added, names=names)
        assert stands is not None
        return stands

    async def _operate(
        self, caller: Caller, group_id: str, operation: Operation
    ) -> GroupStands | Rejected:
        shard = group_shard(caller.tenant, group_id, self._shards.count)
        return await on_its_shard(
            self._shards, shard, operation, GroupStands, deadline=caller.deadline
        )


def _chunks(tasks: Sequence[Create]) -> Iterable[tuple[Create, ...]]:
    """Return tasks as entries take them; one empty part if there are none."""
    size_max = _CHUNK_BYTES_MAX
    parts = in_parts(tasks, lambda task: len(task.payload), size_max=size_max, count_max=ADDED_MAX)
    return parts if tasks else ((),)
