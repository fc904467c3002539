"""Workers: the workers that poll, and the leases they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, Struct, UnsetType

from codeq_cluster.api.http.call import Call
from codeq_cluster.api.routes.listing import caller
from codeq_cluster.broker.polls import Poll
from codeq_cluster.broker.questions import Browse
from codeq_cluster.codec.keyspace import QueuePlace
from codeq_cluster.core.instants import rfc3339
from codeq_cluster.core.task import Task, worker_shown
from codeq_cluster.ui.sources import Sources

WORKERS_MAX = 200  # The workers shown, latest poll first. A row is about 300 bytes.
LEASES_MAX = 2000  # Leases read; about 40 ms of the leaders' time every five seconds.
COMMANDS_SHOWN = 10

_PAGE = 500
_LEASES_S = 5


class WorkerRow(Struct, rename="camel", kw_only=True):
    """A worker, over all nodes.

    Attributes:
        last_poll_at: Unset if it has not polled since the nodes started.
        waiting: Its claims that wait for a task now.
        commands: Of its last claim; empty for every command. `more_commands` counts those not
            shown.
        leases: The tasks it holds, among the leases read; `expired` of them are about to be
            returned.
        oldest_claim_at: The oldest claim among them.
    """

    worker: str
    last_poll_at: str | UnsetType = UNSET
    waiting: int
    nodes: list[str]
    commands: list[str]
    more_commands: int
    leases: int
    expired: int
    oldest_claim_at: str | UnsetType = UNSET


class Workers(Struct, rename="camel", kw_only=True):
    """The workers of a tenant.

    Attributes:
        all: How many workers there are, shown or not.
        leases: The number of leases read.
        leases_all: Whether these are all leases.
    """

    workers: list[WorkerRow]
    all: int
    leases: int
    leases_all: bool


@dataclass(slots=True)
class _Worker:
    last_ms: int = 0
    waiting: int = 0
    nodes: list[str] = field(default_factory=list)
    commands: tuple[str, ...] = ()
    held: list[Task] = field(default_factory=list)


async def look(call: Call, sources: Sources) -> Workers:
    """Return the tenant's workers, those with the latest poll first."""
    tenant = call.identity.tenant
    held, complete = await sources.shared.of(tenant, "leases", _LEASES_S, lambda: _leases(call))
    found = _merged(await sources.workers(tenant), held)
    now_ms = sources.now_ms()
    order = sorted(found.items(), key=lambda each: (-each[1].last_ms, each[0]))
    return Workers(
        workers=[_row(name, worker, now_ms) for name, worker in order[:WORKERS_MAX]],
        all=len(found),
        leases=len(held),
        leases_all=complete,
    )


async def _leases(call: Call) -> tuple[list[Task], bool]:
    """Return the tenant's leased tasks, up to a bound, and whether these are all."""
    held: list[Task] = []
    after = b""
    while len(held) < LEASES_MAX:
        asking = caller(call)
        leased = Browse(
            tenant=asking.tenant, queue="", places=(QueuePlace.INPROG,), after=after, count=_PAGE
        )
        tasks, after = await call.services.broker.searching.found(leased, deadline=asking.deadline)
        held += tasks
        if not after:
            return held, True
    return held, False


def _merged(polls: Mapping[str, Sequence[Poll]], held: Sequence[Task]) -> dict[str, _Worker]:
    found: dict[str, _Worker] = {}
    for node, of_node in polls.items():
        for poll in of_node:
            worker = found.setdefault(poll.worker, _Worker())
            worker.nodes.append(node)
            worker.waiting += poll.waiting
            if poll.last_ms >= worker.last_ms:
                worker.last_ms, worker.commands = poll.last_ms, poll.commands
    for task in held:
        found.setdefault(worker_shown(task), _Worker()).held.append(task)
    return found


def _row(name: str, worker: _Worker, now_ms: int) -> WorkerRow:
    claimed = [task.claimed_ms for task in worker.held]
    return WorkerRow(
        worker=name,
        last_poll_at=rfc3339(worker.last_ms) if worker.last_ms else UNSET,
        waiting=worker.waiting,
        nodes=sorted(worker.nodes),
        commands=list(worker.commands[:COMMANDS_SHOWN]),
        more_commands=max(0, len(worker.commands) - COMMANDS_SHOWN),
        leases=len(worker.held),
        expired=sum(task.lease_until_ms <= now_ms for task in worker.held),
        oldest_claim_at=rfc3339(min(claimed)) if claimed else UNSET,
    )
