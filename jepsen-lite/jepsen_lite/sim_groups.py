"""Simulated groups: what the routes of groups do, without HTTP."""

from __future__ import annotations

from hashlib import blake2b

from codeq_cluster.api.routes.task_views import task_view
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.requests.producer import fingerprint_of
from codeq_cluster.broker.service import Broker
from codeq_cluster.broker.values import Caller
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.groups import CreateGroup, Group, status_of
from codeq_cluster.core.new_task import Create
from codeq_cluster.core.outcomes import GroupStands, Rejected
from codeq_cluster.core.task import State, Task
from jepsen_lite.groups import ATTEMPTS_MAX, MEMBER_COMMAND, THEN_COMMAND
from jepsen_lite.history import Args, F, Out, Part, Tally
from jepsen_lite.taken import taken
from tests.simulator.brokers import SimBrokers

TENANT = ""


class SimGroups:
    """Operations on the groups of a simulated cluster."""

    def __init__(self, brokers: SimBrokers, *, timeout_s: float) -> None:
        self._brokers = brokers
        self._timeout_s = timeout_s

    async def serve(self, broker: Broker, f: F, args: Args, node: str) -> Out:
        """Call the node as the route does, and return what a client reads in the answer."""
        caller, groups = Caller(TENANT, "producer", deadline_in(self._timeout_s)), broker.groups
        match f:
            case F.BEGIN_GROUP:
                new = CreateGroup(
                    tenant=TENANT,
                    id=args.group,
                    digest=_digest(args),
                    then=Create(command=THEN_COMMAND, payload=f'{{"group":"{args.group}"}}'),
                    tasks=_tasks(args),
                )
                return _stands(await groups.create(caller, new))
            case F.ADD_MEMBERS:
                name = blake2b(args.idempotency_key.encode(), digest_size=16).hexdigest()
                return _stands(await groups.add(caller, args.group, _tasks(args), name=name))
            case F.SEAL_GROUP:
                return _stands(await groups.seal(caller, args.group))
            case F.GROUP:
                found = await groups.get(caller, args.group)
                return Out(http=404, absent=True) if found is None else _shown(found)
            case _:
                return Out(http=200, parts=tuple(self._parts(node, args.command)))

    def _parts(self, node: str, command: str) -> list[Part]:
        """Return all tasks of a command, as the node has them: it is asked at rest alone."""
        states = self._brokers.nodes[node].states
        prefix = keyspace.prefix_range(keyspace.TASK_PREFIX)
        rows = [
            (state, records.decode_task(value))
            for state in states
            for _, value in state.scan(*prefix, 100_000)
        ]
        return [
            _part(task, (state.get(keyspace.payload(task.id)) or b"").decode(), len(states))
            for state, task in rows
            if task.command == command
        ]


def _part(task: Task, payload: str, shards: int) -> Part:
    view = task_view(task, payload, shards=shards)
    counts = None
    if task.more is not None and task.more.completes is not None:
        of = task.more.completes
        counts = (of.total, of.completed, of.failed, of.cancelled, of.dead)
        group = of.id
    else:
        group = view.group_id or view.unique_key
    return Part(
        task=task.id,
        group=group,
        content=payload,
        status=str(view.status),
        dead=task.state is State.DEAD,
        error=task.error,
        created_ms=task.created_ms,
        changed_ms=task.updated_ms,
        counts=counts,
        attempts=task.attempts,
    )


def _tasks(args: Args) -> tuple[Create, ...]:
    return tuple(
        Create(
            command=MEMBER_COMMAND,
            payload=each.content,
            max_attempts=ATTEMPTS_MAX,
            idempotency_key=each.key,
            fingerprint=fingerprint_of(MEMBER_COMMAND, each.content) if each.key else "",
        )
        for each in args.next
    )


def _digest(args: Args) -> str:
    said = "\n".join(f"{each.key} {each.content}" for each in args.next)
    return blake2b(f"{args.group}\n{said}".encode(), digest_size=16).hexdigest()


def _stands(outcome: GroupStands | Rejected) -> Out:
    return _shown(taken(outcome).group)


def _shown(at: Group) -> Out:
    counts = (at.total, at.completed, at.failed, at.cancelled, at.dead)
    return Out(http=200, tally=Tally(status=status_of(at), counts=counts, then=at.then_id))
