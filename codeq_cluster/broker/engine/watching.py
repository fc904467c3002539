"""Watching: holders of leases that wait at a shard's leader to hear of what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from codeq_cluster.broker.ports import StateStore
from codeq_cluster.broker.questions import Watch, Watched
from codeq_cluster.codec import keyspace, records
from codeq_cluster.core.changes import Change, TaskChange
from codeq_cluster.core.holding import refusal_of
from codeq_cluster.core.operations import Heartbeat
from codeq_cluster.core.outcomes import Rejection
from codeq_cluster.core.task import AttemptOutcome, State, Task, cancelling_of
from codeq_cluster.core.transitions import HELD_BACK
from codeq_cluster.errors import NotLeader, Overloaded

WATCHED_MAX = 100_000  # Leases of one shard, about 200 bytes each.
# The holder itself has ended its lease so; nobody has to tell it.
_OWN = frozenset((
    AttemptOutcome.COMPLETED,
    AttemptOutcome.FAILED,
    AttemptOutcome.ABANDONED,
    AttemptOutcome.NACKED,
    *HELD_BACK,
))  # fmt: skip


class _Wait:
    """One waiting holder: its leases by task, and those of them that it has to hear of."""

    __slots__ = ("asked", "leases", "over", "touched")

    def __init__(self, asked: Watch) -> None:
        self.asked = asked
        self.leases = dict(asked.leases)
        self.touched: list[str] = []
        self.over: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def end(self, *, leads: bool = True) -> None:
        """End it; False if this node does not lead any more."""
        if not self.over.done():
            self.over.set_result(leads)


class Watches:
    """The leases of one shard that are watched, while this node leads it.

    A lease is watched once: its holder's next request takes it over from the one before, whose
    client may have gone.

    Attributes:
        of: The waits, by task; asked with every batch, so without a call.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.of: dict[str, _Wait] = {}

    async def wait(self, asked: Watch) -> Watched:
        """Return the watched leases that are lost as soon as there is one, or none in time.

        Those of tasks that are to end are news too, unless the holder knows it.

        The caller has confirmed that this node leads.

        Raises:
            NotLeader: The leadership has ended meanwhile.
            Overloaded: Too many leases are watched.
        """
        if len(self.of) + len(asked.leases) > WATCHED_MAX:
            raise Overloaded("the list of watched leases")
        wait = _Wait(asked)
        found = self._looked_at(wait, list(wait.leases))
        if found.is_news or asked.wait_ms <= 0:
            return found
        for task_id in wait.leases:
            self._let_go(task_id)
            self.of[task_id] = wait
        try:
            async with asyncio.timeout(asked.wait_ms / 1000):
                leads = await wait.over
        except TimeoutError:
            return Watched()
        finally:
            for task_id in wait.leases:
                del self.of[task_id]
        if not leads:
            raise NotLeader
        return self._looked_at(wait, wait.touched)

    def changed(self, changes: Iterable[Change]) -> None:
        """Tell holders of durable changes of their tasks."""
        for change in changes:
            if not isinstance(change, TaskChange) or change.before is None:
                continue
            wait = self.of.get(change.before.id)
            if wait is None or _goes_on(change.before, change.after, wait.asked):
                continue
            if _ended_by_holder(change.after):
                self._let_go(change.before.id)
                continue
            wait.touched.append(change.before.id)
            wait.end()

    def end(self) -> None:
        """End all waits: this node does not lead any more."""
        for wait in set(self.of.values()):
            wait.end(leads=False)

    def _let_go(self, task_id: str) -> None:
        """Watch a lease no more; a wait without leases is over."""
        wait = self.of.pop(task_id, None)
        if wait is not None:
            del wait.leases[task_id]
            if not wait.leases:
                wait.end()

    def _looked_at(self, wait: _Wait, ids: Sequence[str]) -> Watched:
        """Return those of these tasks whose leases are lost, or that are to end."""
        asked, lost, ending = wait.asked, [], []
        keys = [keyspace.task(task_id) for task_id in ids]
        for task_id, row in zip(ids, self._store.get_many(keys), strict=True):
            task = None if row is None else records.decode_task(row)
            held = Heartbeat(
                id=task_id,
                tenant=asked.tenant,
                worker=asked.worker,
                extend_ms=1,
                token=wait.leases.get(task_id, 0),
            )
            if task is None or task.tenant != asked.tenant:
                lost.append((task_id, Rejection.NOT_FOUND))
            elif refusal := refusal_of(task, held):
                lost.append((task_id, refusal))
            elif (cancelling := cancelling_of(task)) is not None and task_id not in asked.known:
                ending.append((task_id, cancelling))
        return Watched(tuple(lost), tuple(ending))


def _goes_on(before: Task, after: Task | None, asked: Watch) -> bool:
    """Return whether a change leaves the holder of a lease nothing to hear of."""
    if after is None or after.state is not State.LEASED or after.lease_token != before.lease_token:
        return False
    return cancelling_of(after) is None or after.id in asked.known


def _ended_by_holder(after: Task | None) -> bool:
    if after is None or after.state is State.LEASED:
        return False  # Its history is of earlier deliveries.
    is_told = bool(after.history) and after.history[-1].outcome in _OWN
    return is_told or bool(after.parked_at)
