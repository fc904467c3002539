"""Operations: a history's events, paired and grouped for the checkers."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

import msgspec
from msgspec import Struct, field

from jepsen_lite.history import (
    HAPPENINGS,
    HOSTILE,
    OF_BULK,
    OF_GRACES,
    OF_GRAPHS,
    OF_GROUPS,
    OF_ORDERS,
    OF_REJECTS,
    OF_SCHEDULES,
    OF_UNIQUES,
    Args,
    Event,
    F,
    Follow,
    Out,
    Type,
)

# The instant of an answer that never came; it is later than any other.
NEVER_NS = 2**62

MS = 1_000_000
SECOND = 1_000_000_000

TERMINAL = frozenset({"COMPLETED", "FAILED"})


class Op(Struct, frozen=True, kw_only=True):
    """One operation of a client.

    Attributes:
        i: Number of the event that invoked it.
        call_ns: Before this instant it had no effect.
        ret_ns: By this instant its effect, if any, was complete; `NEVER_NS` if that is unknown.
        done_ns: When the client had its answer or gave up; `NEVER_NS` if the history ends before.
        done_i: Number of the event of its answer, or else of the invocation.
    """

    i: int
    done_i: int
    p: str
    node: str
    f: F
    type: Type
    call_ns: int
    ret_ns: int
    done_ns: int
    args: Args
    out: Out

    @property
    def ok(self) -> bool:
        """Whether it certainly took effect."""
        return self.type is Type.OK

    @property
    def possible(self) -> bool:
        """Whether it may have taken effect."""
        return self.type is not Type.FAIL

    @property
    def events(self) -> tuple[int, ...]:
        """Numbers of its events."""
        return (self.i,) if self.i == self.done_i else (self.i, self.done_i)


class Fault(Struct, frozen=True, kw_only=True):
    """A fault from its beginning to its end, or to the history's.

    Attributes:
        applied: Targets that were seen to be struck, at its beginning or at its end.
        amount_ms: The largest shift of a clock.
        took_ms: How long a node fetched a snapshot after it.
    """

    name: str
    nodes: tuple[str, ...]
    detail: str
    begun_ns: int
    ended_ns: int
    applied: int
    amount_ms: int
    took_ms: int
    i: int


class TaskOps(Struct, kw_only=True):
    """All operations on one task.

    Attributes:
        creates: All creates that sent its payload, acknowledged or not; see `History.creates`.
        claims: Acknowledged, in order of their tokens.
        heartbeats, results, releases, cancels, requeues: In order of invocation; releases are
            nacks and abandons.
        reads: Answered ones, in order of invocation.
        final: The last of the reads at rest, or None.
    """

    id: str
    creates: list[Op] = field(default_factory=list)
    claims: list[Op] = field(default_factory=list)
    heartbeats: list[Op] = field(default_factory=list)
    results: list[Op] = field(default_factory=list)
    releases: list[Op] = field(default_factory=list)
    cancels: list[Op] = field(default_factory=list)
    requeues: list[Op] = field(default_factory=list)
    reads: list[Op] = field(default_factory=list)
    final: Op | None = None

    @property
    def args(self) -> Args:
        """The arguments of its create; defaults if they are unknown."""
        return self.creates[0].args if self.creates else Args()

    @property
    def created_call_ns(self) -> int:
        """The instant before which it did not exist."""
        return min((op.call_ns for op in self.creates if op.possible), default=0)

    @property
    def created_ret_ns(self) -> int:
        """The instant from which it certainly existed, by the answers to its creates."""
        return min((op.ret_ns for op in self.creates if op.ok), default=NEVER_NS)

    @property
    def acknowledged(self) -> Op | None:
        """The first create that returned this task."""
        return min(
            (op for op in self.creates if op.ok and op.out.task == self.id),
            key=lambda op: op.ret_ns,
            default=None,
        )

    @property
    def first_claim(self) -> Op | None:
        """Its first delivery, if a client certainly had it."""
        if self.claims and self.claims[0].out.attempt == 1 and not self.requeues:
            return self.claims[0]
        return None


class History:
    """A history as operations, faults, observations and phases."""

    def __init__(self, events: Sequence[Event]) -> None:
        """Pair the events; an operation without an answer may have taken effect at any time."""
        self.events = events
        self.end_ns = events[-1].t_ns if events else 0
        self.ops = _paired(events)
        self.by_f: dict[F, list[Op]] = defaultdict(list)
        for op in self.ops:
            self.by_f[op.f].append(op)
        self.statuses = [event for event in events if event.f is F.STATUS]
        self.deliveries = [event for event in events if event.f is F.DELIVERY]
        self.phases = {event.args.name: event for event in events if event.f is F.PHASE}

    @cached_property
    def faults(self) -> list[Fault]:
        """Every fault, in order of its beginning."""
        return sorted(_faults(self.events, self.end_ns), key=lambda fault: fault.begun_ns)

    @cached_property
    def clock_ns(self) -> int:
        """The largest possible difference between two nodes' clocks, or of one clock over time.

        A leader reads the time of day once, so a jump has no effect until the next leader. A drift
        has an effect at once.
        """
        # The largest shifts of both kinds add up, because a jumping clock may also drift.
        by_kind: dict[str, int] = {}
        for fault in self.faults:
            if fault.name == "clock" and not self._led_again_since(fault.begun_ns):
                continue
            by_kind[fault.name] = max(by_kind.get(fault.name, 0), fault.amount_ms)
        moved_ms = sum(by_kind.values())
        # The broker truncates instants to whole milliseconds, and each span has two instants.
        return 2 * moved_ms * MS + 5 * MS

    def _led_again_since(self, begun_ns: int) -> bool:
        """Return whether any shard may have got another leader after an instant."""
        leaderships: dict[int, set[tuple[str, int]]] = defaultdict(set)
        for event in self.statuses:
            for group in event.out.groups:
                if not group.leads:
                    continue
                leadership = (event.node, group.term)
                if event.t_ns > begun_ns and leadership not in leaderships[group.shard]:
                    return True
                leaderships[group.shard].add(leadership)
        return not leaderships

    @cached_property
    def creates(self) -> list[Op]:
        """Every create, and every result as a create of each task that it makes.

        A task with a key may be made later than its result is answered, on another shard, or have
        been made by another request: of those, a result proves nothing.
        """
        following = (made for op in self.by_f[F.RESULT] for made in _following(op))
        return [*self.by_f[F.CREATE], *following]

    @cached_property
    def tasks(self) -> dict[str, TaskOps]:
        """Operations by task id."""
        return _by_task(self.ops, self.creates)

    @cached_property
    def calm(self) -> list[tuple[int, int]]:
        """Spans of time without any fault, in order; from, to.

        A hostile tenant breaks no calm: beside it, all that holds in calm must hold.
        """
        found = []
        begun = 0
        for fault in self.faults:
            if fault.name == HOSTILE:
                continue
            if fault.begun_ns > begun:
                found.append((begun, fault.begun_ns))
            begun = max(begun, fault.ended_ns)
        if begun < self.end_ns:
            found.append((begun, self.end_ns))
        return found

    def calm_since(self, begun_ns: int, ended_ns: int) -> int | None:
        """Return the start of the calm that covers the span; None if a fault touches the span."""
        spot = bisect.bisect_right(self.calm, (begun_ns, NEVER_NS)) - 1
        if spot < 0:
            return None
        since, until = self.calm[spot]
        return since if ended_ns <= until else None


def _paired(events: Sequence[Event]) -> list[Op]:
    pending: dict[str, Event] = {}
    ops = []
    for event in events:
        if event.f in HAPPENINGS:
            continue
        if event.type is Type.INVOKE:
            if event.p in pending:
                raise ValueError(f"event {event.i}: {event.p} has an operation under way already")
            pending[event.p] = event
            continue
        asked = pending.pop(event.p, None)
        if asked is None or asked.f is not event.f:
            raise ValueError(f"event {event.i}: {event.p} is answered what it did not ask")
        ops.append(_op(asked, event))
    ops.extend(_op(asked, None) for asked in pending.values())
    ops.sort(key=lambda op: (op.call_ns, op.i))
    return ops


def _op(asked: Event, answer: Event | None) -> Op:
    known = answer is not None and answer.type is not Type.INFO
    return Op(
        i=asked.i,
        done_i=asked.i if answer is None else answer.i,
        p=asked.p,
        node=asked.node,
        f=asked.f,
        type=Type.INFO if answer is None else answer.type,
        call_ns=asked.t_ns,
        ret_ns=answer.t_ns if answer is not None and known else NEVER_NS,
        done_ns=NEVER_NS if answer is None else answer.t_ns,
        args=asked.args,
        out=Out() if answer is None else answer.out,
    )


def _faults(events: Sequence[Event], end_ns: int) -> Iterable[Fault]:
    begun: dict[tuple[str, tuple[str, ...]], Event] = {}
    for event in events:
        if event.f is not F.FAULT:
            continue
        key = (event.args.name, event.args.nodes)
        if event.args.on:
            begun.setdefault(key, event)
        elif key in begun:
            yield _fault(begun.pop(key), event.t_ns, seen=event.out)
    for event in begun.values():
        # A fault without an end lasts beyond the history, so that no calm follows it.
        yield _fault(event, end_ns + 1, seen=Out())


def _fault(event: Event, ended_ns: int, *, seen: Out) -> Fault:
    return Fault(
        name=event.args.name,
        nodes=event.args.nodes,
        detail=event.args.detail,
        begun_ns=event.t_ns,
        ended_ns=ended_ns,
        applied=max(event.out.applied, seen.applied),
        amount_ms=event.args.amount_ms,
        took_ms=seen.took_ms,
        i=event.i,
    )


def _following(op: Op) -> Iterable[Op]:
    names = op.out.next or (Follow(),) * len(op.args.next)
    for asked, named in zip(op.args.next, names, strict=False):
        by_key = bool(asked.key)
        yield msgspec.structs.replace(
            op,
            f=F.CREATE,
            type=Type.INFO if by_key and op.possible else op.type,
            ret_ns=NEVER_NS if by_key else op.ret_ns,
            args=Args(content=asked.content, command=op.args.command, idempotency_key=asked.key),
            out=Out(task=named.task),
        )


def _by_task(ops: Sequence[Op], creates: Sequence[Op]) -> dict[str, TaskOps]:
    grouping = _Grouping(creates)
    for op in ops:
        grouping.add(op)
    return grouping.tasks()


class _Grouping:
    """Assigns operations to tasks; a create without an answer is matched by its payload."""

    def __init__(self, creates: Sequence[Op]) -> None:
        self._tasks: dict[str, TaskOps] = {}
        self._shown: dict[str, set[str]] = defaultdict(set)
        self._creates = creates
        for op in creates:
            if op.ok:
                self._show(op.args.content, op.out.task)

    def add(self, op: Op) -> None:
        others = OF_SCHEDULES | OF_GROUPS | OF_GRAPHS | OF_UNIQUES | OF_ORDERS
        others |= OF_BULK | OF_GRACES | OF_REJECTS
        if op.f in (F.CREATE, F.SET_KEY, F.WATCH) or op.f in others:
            return
        if op.f is F.CLAIM:
            if op.ok and op.out.task:
                self._show(op.out.content, op.out.task).claims.append(op)
        elif op.f is F.READ:
            if op.ok:
                self._read(op)
        else:
            _acted(self._of(op.args.task), op)

    def tasks(self) -> dict[str, TaskOps]:
        for op in self._creates:
            for task_id in self._shown.get(op.args.content, ()):
                self._tasks[task_id].creates.append(op)
        for task in self._tasks.values():
            task.claims.sort(key=lambda op: (op.out.token, op.call_ns))
        return self._tasks

    def _read(self, op: Op) -> None:
        task = self._of(op.args.task)
        task.reads.append(op)
        if op.args.final:
            task.final = op
        if op.out.payload:
            self._show(op.out.payload, op.args.task)

    def _show(self, content: str, task_id: str) -> TaskOps:
        self._shown[content].add(task_id)
        return self._of(task_id)

    def _of(self, task_id: str) -> TaskOps:
        found = self._tasks.get(task_id)
        if found is None:
            found = self._tasks[task_id] = TaskOps(id=task_id)
        return found


def _acted(task: TaskOps, op: Op) -> None:
    match op.f:
        case F.HEARTBEAT:
            task.heartbeats.append(op)
        case F.RESULT:
            task.results.append(op)
        case F.NACK | F.ABANDON:
            task.releases.append(op)
        case F.CANCEL:
            task.cancels.append(op)
        case F.REQUEUE:
            task.requeues.append(op)
        case _:
            raise AssertionError(op.f)
