"""Claims: hands tasks out, from whichever shard has work, and waits for work.

A claim that fails says what is known of it. Once a shard may have leased it a task that it has not
got, no later failure says that nothing was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import compress, groupby

from msgspec import Struct
from msgspec.structs import replace

from codeq_cluster.broker.background import Background
from codeq_cluster.broker.deadlines import deadline_in
from codeq_cluster.broker.engine.view import seq_ms
from codeq_cluster.broker.ports import Head, Shards
from codeq_cluster.broker.requests.producer import on_their_shards, over_budget
from codeq_cluster.broker.values import new_request
from codeq_cluster.broker.waiters import Place, Ticket, Waiters
from codeq_cluster.core.dependencies import Input
from codeq_cluster.core.durable import Step
from codeq_cluster.core.operations import Abandon, Claim
from codeq_cluster.core.outcomes import Claimed, Rejected
from codeq_cluster.core.sharding import shard_of
from codeq_cluster.core.task import Task
from codeq_cluster.errors import CodeqError, OutcomeUnknown

RELEASE_TIMEOUT_S = 10.0  # After it, only the lease's end gives a vanished client's tasks back.
# A leader that gives nothing where this node sees work is slightly behind this node, or ahead of
# it. Ask it again, soon at first, because perhaps no event on this node tells when the two agree.
AGAIN_S = 0.02
AGAIN_S_MAX = 1.0
# An older task elsewhere may wait this much longer, so that a claim can take a younger one from a
# shard led here.
NEAR_MS = 100

_NOTHING = Claimed((), ())


class _Asked(Struct):
    """One claim of a caller.

    Attributes:
        claim: What is asked of each shard, but for its request and count.
        timeout_s: One look for work must end within it.
        latest: All of them must end by then.
        lost: A shard has or may have leased it tasks that the caller does not get.
    """

    claim: Claim
    timeout_s: float
    latest: float
    lost: bool = False

    def look_until(self) -> float:
        """Return the deadline of a look that begins now."""
        return min(asyncio.get_running_loop().time() + self.timeout_s, self.latest)


class Claims:
    """Claims tasks."""

    def __init__(self, shards: Shards, waiters: Waiters, background: Background) -> None:
        self._shards = shards
        self._replicas = tuple(map(shards.local, range(shards.count)))
        self._waiters = waiters
        self._background = background

    async def claim(
        self,
        tenant: str,
        worker: str,
        *,
        commands: tuple[str, ...],
        count: int,
        lease_ms: int,
        wait_s: float,
        timeout_s: float,
        worker_name: str = "",
        place: Place = nullcontext,
    ) -> Claimed:
        """Lease up to `count` tasks; wait up to `wait_s` for the first one, in a place of its own.

        It ends within `wait_s + timeout_s`, and each of its looks for work within `timeout_s`.
        It takes the place only once it has looked in vain: until then it is a request in progress.
        A claim that finds nothing at first asks every leader before it returns nothing. Later,
        woken by entries applied here, it trusts this node's replicas. A leader may go by an older
        policy than this node, so it is asked again while the replicas show work that it does not
        give. All leaders are asked again while a replica of this node is out of service.
        """
        waits_until = asyncio.get_running_loop().time() + wait_s
        queues = tuple(dict.fromkeys(map(str.lower, commands)))
        asked = _Asked(
            Claim(
                request="",
                tenant=tenant,
                worker=worker,
                commands=commands,
                count=count,
                lease_ms=lease_ms,
                worker_name=worker_name,
            ),
            timeout_s,
            latest=waits_until + timeout_s,
        )
        self._waiters.claiming()
        try:
            if wait_s <= 0:
                return await self._take(asked, queues, ask_leaders=True)
            if known := self._known(tenant, queues):
                # Usually there is work: a claim that finds some at once need not join the queue of
                # waiters.
                claimed = await self._take_from(known, asked, deadline=asked.look_until())
                if claimed.tasks:
                    return claimed
            with ExitStack() as waiting, self._in_line(tenant, queues) as ticket:
                return await self._take_when_woken(
                    ticket,
                    asked,
                    queues,
                    waits_until=waits_until,
                    begin_wait=lambda: waiting.enter_context(place()),
                )
        except OutcomeUnknown:
            raise
        except CodeqError as error:
            if not asked.lost:
                raise
            raise OutcomeUnknown("a shard may have leased a task to the claim before") from error

    @contextmanager
    def _in_line(self, tenant: str, queues: tuple[str, ...]) -> Iterator[Ticket]:
        """Wait in line for work; if it is left unclaimed at the end, wake the next one in line."""
        ticket = self._waiters.for_work(tenant, queues)
        try:
            with ticket:
                yield ticket
        finally:
            if ticket.owes or ticket.event.is_set():
                self._pass_on(tenant, (ticket.queue,) if ticket.queue else queues)

    async def _take_when_woken(
        self,
        ticket: Ticket,
        asked: _Asked,
        queues: tuple[str, ...],
        *,
        waits_until: float,
        begin_wait: Callable[[], None],
    ) -> Claimed:
        """Claim at once and whenever there may be work, until there are tasks or time is up."""
        loop = asyncio.get_running_loop()
        waits, ask_leaders = False, True
        again_s = AGAIN_S
        while True:
            ticket.begin_look()
            claimed = await self._take(asked, queues, ask_leaders=ask_leaders)
            ask_leaders = self._shards.isolated
            # If it took tasks of another queue, the work that woke it may still be there.
            ticket.owes = ticket.owes and _of_another_queue(claimed, ticket.queue)
            remaining_s = waits_until - loop.time()
            if claimed.tasks or remaining_s <= 0:
                return claimed
            if not waits:
                begin_wait()
                waits = True
            if self._known(asked.claim.tenant, queues):
                await ticket.wait(min(remaining_s, again_s))
                again_s = min(2 * again_s, AGAIN_S_MAX)
            elif self._shards.isolated:
                await ticket.wait(min(remaining_s, AGAIN_S_MAX))
            elif await ticket.wait(remaining_s):
                again_s = AGAIN_S
            else:
                return claimed

    async def _take(self, asked: _Asked, queues: tuple[str, ...], *, ask_leaders: bool) -> Claimed:
        """Claim from the shards that have work, the oldest highest-priority head first."""
        deadline = asked.look_until()
        claimed = _NOTHING
        if known := self._known(asked.claim.tenant, queues):
            claimed = await self._take_from(known, asked, deadline=deadline)
        if not claimed.tasks and ask_leaders:
            heads = await self._shards.heads(asked.claim.tenant, queues, deadline=deadline)
            claimed = await self._take_from(heads, asked, deadline=deadline)
        return claimed

    async def _take_from(self, heads: Sequence[Head], asked: _Asked, *, deadline: float) -> Claimed:
        """Claim from shards in the order of their heads; ask shards of equal priority at once."""
        taken: list[tuple[Task, str]] = []
        inputs: dict[str, tuple[Input, ...]] = {}
        steps: dict[str, tuple[Step, ...]] = {}
        checkpoints: dict[str, str] = {}
        failures: list[CodeqError] = []

        async def take(shard: int, count: int) -> bool:
            """Claim on one shard; return whether it may have more."""
            try:
                part = await self._claim_on(shard, asked, count, deadline=deadline)
            except CodeqError as error:
                failures.append(error)  # Keep going: another shard may have work and a leader.
                return False
            taken.extend(zip(part.tasks, part.payloads, strict=True))
            inputs.update(part.inputs)
            steps.update(part.steps)
            checkpoints.update(part.checkpoints)
            return len(part.tasks) == count

        ordered = sorted(heads, key=self._order) if len(heads) > 1 else heads
        if asked.claim.count == 1:
            return await self._take_one(ordered, asked, deadline=deadline)
        by_priority = groupby(ordered, key=lambda head: head.priority)
        try:
            for _, group in by_priority:
                shards = [head.shard for head in group]
                while shards and (missing := asked.claim.count - len(taken)):
                    first, shards = shards[:missing], shards[missing:]
                    shares = _shares(missing, len(first))
                    if len(first) == 1:
                        more = [await take(first[0], shares[0])]
                    else:
                        more = await asyncio.gather(*map(take, first, shares))
                    shards += compress(first, more)
                    if not taken:
                        _say_unknown(failures)
        except asyncio.CancelledError:
            self._give_back(asked.claim, [task for task, _ in taken])
            raise
        if failures and not taken:
            raise failures[0]
        taken.sort(key=lambda pair: (-pair[0].priority, pair[0].ready_ms))
        tasks, payloads = (tuple(each) for each in zip(*taken, strict=True)) if taken else ((), ())
        return Claimed(tasks, payloads, inputs, steps, checkpoints)

    async def _take_one(self, heads: Sequence[Head], asked: _Asked, *, deadline: float) -> Claimed:
        """Claim one task from the first shard that gives one."""
        failure: CodeqError | None = None
        for head in heads:
            try:
                claimed = await self._claim_on(head.shard, asked, 1, deadline=deadline)
            except OutcomeUnknown:
                raise  # It may have leased a task that nobody receives: more would hide it.
            except CodeqError as error:
                failure = failure or error  # Another shard may have work and a leader.
                continue
            if claimed.tasks:
                return claimed
        if failure is not None:
            raise failure
        return _NOTHING

    async def _claim_on(self, shard: int, asked: _Asked, count: int, *, deadline: float) -> Claimed:
        """Claim on one shard; leave nothing leased if the caller goes away meanwhile."""
        claim = replace(asked.claim, request=new_request(), count=count)
        try:
            [outcome] = await self._shards.operate(shard, [claim], deadline=deadline)
        except asyncio.CancelledError:
            self._background.spawn(self._give_back_what(shard, claim))
            raise
        if isinstance(outcome, Rejected):
            raise over_budget(outcome, "claim")
        assert isinstance(outcome, Claimed)
        asked.lost = asked.lost or outcome.lost
        return outcome

    async def _give_back_what(self, shard: int, claim: Claim) -> None:
        """Give back the tasks that a claim leased after its caller went away.

        Sending the same claim again returns those tasks. If the first claim never arrived, the
        retry itself leases tasks; they are given back the same way.
        """
        again = replace(claim, retry=True)
        deadline = deadline_in(RELEASE_TIMEOUT_S)
        try:
            [outcome] = await self._shards.operate(shard, [again], deadline=deadline)
        except CodeqError:
            return  # No lease is known; if one exists, it expires by itself.
        if isinstance(outcome, Claimed):
            self._give_back(claim, outcome.tasks)

    def _give_back(self, claim: Claim, tasks: Sequence[Task]) -> None:
        """Undo deliveries that no worker received, as if the tasks had not been claimed."""
        placed = [
            (
                shard_of(task.id, self._shards.count),
                Abandon(
                    request=new_request(),
                    id=task.id,
                    tenant=claim.tenant,
                    worker=claim.worker,
                    token=task.lease_token,
                    undelivered=True,
                ),
            )
            for task in tasks
        ]
        if placed:
            self._background.spawn(
                on_their_shards(self._shards, placed, timeout_s=RELEASE_TIMEOUT_S)
            )

    def _order(self, head: Head) -> tuple[int, int]:
        """Return the sort key of a shard's head: priority, then age.

        A shard led here goes before one whose head is only slightly older, which saves a network
        hop.
        """
        led = self._replicas[head.shard].leads
        return -head.priority, seq_ms(head.seq) - (NEAR_MS if led else 0)

    def _known(self, tenant: str, queues: tuple[str, ...]) -> list[Head]:
        """Return the first ready task of every shard that has one, as far as this node knows."""
        return [
            head for replica in self._replicas if (head := replica.head(tenant, queues)) is not None
        ]

    def _pass_on(self, tenant: str, queues: tuple[str, ...]) -> None:
        if self._known(tenant, queues):
            for queue in queues or ("",):
                self._waiters.work(tenant, queue, 1)


def _say_unknown(failures: Sequence[CodeqError]) -> None:
    """Fail a claim that may have leased tasks nobody receives; claiming more would hide that."""
    for failure in failures:
        if isinstance(failure, OutcomeUnknown):
            raise failure


def _of_another_queue(claimed: Claimed, queue: str) -> bool:
    """Return whether tasks were claimed and none is of the queue; an empty name is any queue."""
    return bool(queue and claimed.tasks) and all(
        task.command.lower() != queue for task in claimed.tasks
    )


def _shares(count: int, parts: int) -> list[int]:
    """Divide `count` into `parts`; the first ones get the remainder."""
    each, rest = divmod(count, parts)
    return [each + (part < rest) for part in range(parts)]
