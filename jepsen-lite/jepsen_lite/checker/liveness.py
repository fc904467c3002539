"""Liveness: work comes back (G9, G11), shards recover (G20), requests are answered (G22)."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from msgspec import Struct

from jepsen_lite.checker.verdict import Verdict, Violation, judged, unknown
from jepsen_lite.history import AND_CLIENTS, HELD, LOST, F
from jepsen_lite.keys import is_limited
from jepsen_lite.operations import MS, NEVER_NS, SECOND, Fault, History, Op, TaskOps

# The longest time from the end of a lease, or of the last fault, until the task can be claimed.
BACK_WITHIN_NS = 5 * SECOND
# The longest time from a task's acknowledgement, or its due time, until it can be claimed.
SEEN_WITHIN_NS = 2 * SECOND
# This long after its deadline, a request without an answer can no longer take effect.
DROPPED_WITHIN_NS = 5 * SECOND
# The longest time from the last fault until every shard takes writes: for all, for 99 of 100.
WRITES_WITHIN_NS = 15 * SECOND
WRITES_MOSTLY_WITHIN_NS = 5 * SECOND
RECOVERIES_FOR_P99 = 20
# Allowed beyond the deadline for transferring the answer on a busy machine.
ANSWERED_WITHIN_NS = 2 * SECOND

ATTEMPTS_DEFAULT = 5
# Faults of a node that excuse it from answering. A partition from its peers is not one: the node
# must refuse in time.
_SILENCING = frozenset(
    {
        "kill",
        "pause",
        "cut-off-clients",
        "restart",
        "power",
        "reset",
        "corrupt",
        "away",
        "install",
        "wipe",
        "membership",
    }
)


class _Open(Struct, frozen=True, kw_only=True):
    """A span in which a task could be claimed, ending when somebody may have claimed it."""

    task: TaskOps
    from_ns: int
    until_ns: int
    events: tuple[int, ...]


def abandoned_comes_back(history: History) -> Verdict:
    """G9: a claim finds a task that nobody holds, and no task is left over.

    An empty claim without faults around it contradicts every task that was ready throughout.
    """
    returned, fresh = (
        _of(history, _returned, BACK_WITHIN_NS),
        _of(history, _fresh, SEEN_WITHIN_NS),
    )
    spans = [*returned[0], *fresh[0]]
    found = list(_unseen(history, spans))
    if "drained" in history.phases:
        drained = history.phases["drained"]
        found.extend(
            Violation(
                text=f"{task.id} is ready, and the queue was found empty",
                events=(drained.i, *task.final.events),
                task=task.id,
            )
            for task in history.tasks.values()
            if task.final and task.final.out.location == "PENDING_LIST"
        )
    if "undrained" in history.phases:
        undrained = history.phases["undrained"]
        found.extend(
            Violation(
                text=f"{task.id} did not end, however long it was worked on in calm",
                events=(undrained.i, *task.final.events),
                task=task.id,
            )
            for task in history.tasks.values()
            if task.final and task.final.out.status in {"PENDING", "IN_PROGRESS"}
        )
    # Tasks that came back in time count as judged.
    return judged("G9", found, checked=returned[1] + fresh[1] if _empties(history) else 0)


def due_is_ready(history: History) -> Verdict:
    """G11: a delayed task can be claimed soon after it is due."""
    spans, waited = _of(history, _due, SEEN_WITHIN_NS)
    found = list(_unseen(history, spans))
    return judged("G11", found, checked=waited if _empties(history) else 0)


def writes_again(history: History) -> Verdict:
    """G20: after the last fault every shard soon takes writes again."""
    took: list[int] = []
    found: list[Violation] = []
    for shard, recovery_ns, tried in _recoveries(history):
        took.append(recovery_ns)
        if recovery_ns > WRITES_WITHIN_NS:
            waited_s = recovery_ns / SECOND
            text = f"shard {shard} took no write for {waited_s:.1f} s after the last fault"
            found.append(Violation(text=text, events=tried.events))
    if "died" in history.phases:
        died = history.phases["died"]
        text = f"a node ended by itself: {died.args.detail[:300]}"
        found.append(Violation(text=text, events=(died.i,)))
    note = f"recoveries: {len(took)}"
    if took:
        took.sort()
        worst = took[min(len(took) - 1, int(0.99 * len(took)))]
        note += f", p99 {worst / SECOND:.2f} s, longest {took[-1] / SECOND:.2f} s"
        if len(took) >= RECOVERIES_FOR_P99 and worst > WRITES_MOSTLY_WITHIN_NS:
            found.append(Violation(text=f"shards recover too slowly: {note}"))
    return judged("G20", found, checked=len(took), note=note)


def answered_in_time(history: History) -> Verdict:
    """G22: a running node answers every request by its deadline, even if with "outcome unknown".

    G1 and G15 judge whether an operation answered with 2xx happened.
    """
    silent = _by_node(history.faults)
    found = []
    checked = 0
    for op in history.ops:
        if not op.args.deadline_ms:
            continue
        latest_ns = (op.args.deadline_ms + op.args.wait_ms) * MS + ANSWERED_WITHIN_NS
        ended_ns = min(op.done_ns, history.end_ns)
        if any(f.begun_ns < ended_ns and f.ended_ns > op.call_ns for f in silent[op.node]):
            continue
        checked += 1
        if ended_ns - op.call_ns > latest_ns:
            took_s = (ended_ns - op.call_ns) / SECOND
            text = f"{op.node} took {took_s:.1f} s for a {op.f}: {op.out.http} {op.out.code}"
            found.append(Violation(text=text, events=op.events, task=op.args.task))
        elif op.done_ns != NEVER_NS and op.out.http == 500:
            text = f"{op.node} answered a {op.f} with 500"
            found.append(Violation(text=text, events=op.events, task=op.args.task))
    if not checked:
        return unknown("G22", "no operation has a deadline")
    return judged("G22", found, checked=checked)


def _by_node(faults: Iterable[Fault]) -> dict[str, list[Fault]]:
    found: dict[str, list[Fault]] = defaultdict(list)
    for fault in faults:
        if _silences(fault):
            for node in fault.nodes:
                found[node].append(fault)
    return found


def _silences(fault: Fault) -> bool:
    """Return whether a fault excuses its nodes from answering, or delays requests and answers.

    TCP sends a lost packet again after 0.2 s, and waits twice as long each further time.
    """
    delays = fault.name == "packets" and fault.detail.endswith(
        (HELD + AND_CLIENTS, LOST + AND_CLIENTS)
    )
    return delays or fault.name in _SILENCING


def _recoveries(history: History) -> Iterator[tuple[int, int, Op]]:
    """Yield how long each shard took no write after each fault, and the first one tried."""
    by_shard: dict[int, list[Op]] = defaultdict(list)
    for op in history.by_f[F.CREATE]:
        if op.args.shard >= 0:
            by_shard[op.args.shard].append(op)
    for since, until in history.calm:
        for shard, ops in by_shard.items() if since else ():
            found = _recovery(ops, since=since, until=until)
            if found is not None:
                yield shard, *found


def _recovery(ops: Sequence[Op], *, since: int, until: int) -> tuple[int, Op] | None:
    """Return how long a shard took no write, and the first that was tried; None if unknown."""
    tried = [op for op in ops if since <= op.call_ns < min(until, since + SECOND * 5)]
    if not tried:
        return None
    answers = [op.ret_ns for op in ops if op.ok and op.call_ns >= since]
    first_ns = min(answers, default=NEVER_NS)
    if first_ns < until:
        return first_ns - since, tried[0]
    # The shard took no write in this calm; that is a violation only if the calm was long enough.
    return (until - since, tried[0]) if until - since > WRITES_WITHIN_NS else None


def _empties(history: History) -> list[Op]:
    return [op for op in history.by_f[F.CLAIM] if op.ok and not op.out.task]


def _of(
    history: History,
    spans: Callable[[TaskOps], Iterator[tuple[int, int, tuple[int, ...]]]],
    within_ns: int,
) -> tuple[list[_Open], int]:
    """Return the spans in which a task was claimable for long enough, and how many there are.

    A task with a key may wait for its key, however long it is there.
    """
    found = []
    count = 0
    for task in history.tasks.values():
        limited = is_limited(key=task.args.key, command=task.args.command)
        alone = not task.args.ttl_ms and not limited
        if task.creates and alone and not task.requeues:
            for from_ns, until_ns, events in spans(task):
                count += from_ns < until_ns
                begins_ns = from_ns + within_ns + history.clock_ns
                if begins_ns < until_ns:
                    found.append(
                        _Open(task=task, from_ns=begins_ns, until_ns=until_ns, events=events)
                    )
    return found, count


def _ends_ns(task: TaskOps) -> int:
    """Return the earliest instant at which the task may have ended, for any reason."""
    ending = [op.call_ns for op in (*task.results, *task.cancels) if op.possible]
    return min(ending, default=NEVER_NS)


def _fresh(task: TaskOps) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the span from the acknowledgement to the first claim."""
    acknowledged = task.acknowledged
    if acknowledged is None or task.args.delay_ms:
        return
    yield acknowledged.ret_ns, _until_ns(task, None), acknowledged.events


def _due(task: TaskOps) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the spans from the end of a delay to the next claim."""
    acknowledged = task.acknowledged
    if acknowledged is not None and task.args.delay_ms:
        due_ns = acknowledged.ret_ns + task.args.delay_ms * MS
        yield due_ns, _until_ns(task, None), acknowledged.events
    for op in task.releases:
        if op.ok and op.f is F.NACK and op.args.delay_ms and not op.out.dead:
            due_ns = op.ret_ns + op.args.delay_ms * MS
            held = next((each for each in task.claims if each.out.token == op.args.token), None)
            if held is not None:
                yield due_ns, _until_ns(task, held), op.events


def _returned(task: TaskOps) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the spans from an abandon, or the end of a lease, to the next claim."""
    most = task.args.attempts_max or ATTEMPTS_DEFAULT
    for claim in task.claims:
        token = claim.out.token
        released = [op for op in task.releases if op.possible and op.args.token == token]
        if claim.out.attempt >= most or len(released) > 1:
            continue
        until_ns = _until_ns(task, claim)
        if not released:
            yield _expired_ns(task, claim), until_ns, claim.events
        elif released[0].ok and released[0].f is F.ABANDON:
            yield released[0].ret_ns, until_ns, released[0].events


def _until_ns(task: TaskOps, since: Op | None) -> int:
    """Return the end of the time without a holder after a claim, or ever; 0 if it is unknown."""
    token, attempt = (since.out.token, since.out.attempt) if since else (0, 0)
    following = next((each for each in task.claims if each.out.token > token), None)
    seen = following.out.attempt if following else _attempts(task) + 1
    if seen > attempt + 1:
        return 0  # A claim with a lost answer held the task in between.
    return min(following.call_ns if following else NEVER_NS, _ends_ns(task))


def _attempts(task: TaskOps) -> int:
    """Return the number of deliveries that reads have shown."""
    return max((read.out.attempt for read in task.reads), default=0)


def _expired_ns(task: TaskOps, claim: Op) -> int:
    """Return when a lease had certainly expired."""
    ends_ns = claim.ret_ns + claim.args.lease_ms * MS
    for beat in task.heartbeats:
        if beat.possible and beat.args.token == claim.out.token:
            served_ns = beat.ret_ns if beat.ok else _dropped_ns(beat)
            ends_ns = max(ends_ns, served_ns + beat.args.lease_ms * MS)
    return ends_ns


def _dropped_ns(op: Op) -> int:
    """Return when an unanswered request can no longer take effect."""
    return op.call_ns + (op.args.deadline_ms + op.args.wait_ms) * MS + DROPPED_WITHIN_NS


def _unseen(history: History, spans: Sequence[_Open]) -> Iterator[Violation]:
    """Yield claims that found nothing although a task was ready throughout and claimable."""
    by_command: dict[str, list[_Open]] = defaultdict(list)
    for span in spans:
        by_command[span.task.args.command].append(span)
    longest = {command: _Longest(each) for command, each in by_command.items()}
    shadows = _Shadows(history)
    for empty in _empties(history):
        there = longest.get(empty.args.command)
        since = history.calm_since(empty.call_ns, empty.ret_ns)
        if there is None or since is None:
            continue
        settled_ns = max(since + BACK_WITHIN_NS if since else 0, shadows.until_ns(empty.ret_ns))
        if empty.call_ns < settled_ns:
            continue
        missed = there.at(empty.call_ns)
        if missed is not None and missed.until_ns > empty.ret_ns:
            yield Violation(
                text=f"{missed.task.id} was there to be claimed, and a claim found nothing",
                events=(*missed.events, *empty.events),
                task=missed.task.id,
            )


class _Longest:
    """Spans sorted by start, to find the longest one that had started by an instant."""

    def __init__(self, spans: Sequence[_Open]) -> None:
        ranked = sorted(spans, key=lambda span: span.from_ns)
        self._from_ns = [span.from_ns for span in ranked]
        self._longest: list[_Open] = []
        for span in ranked:
            if self._longest and self._longest[-1].until_ns >= span.until_ns:
                self._longest.append(self._longest[-1])
            else:
                self._longest.append(span)

    def at(self, ns: int) -> _Open | None:
        begun = bisect.bisect_right(self._from_ns, ns)
        return self._longest[begun - 1] if begun else None


class _Shadows:
    """The instants until which claims with a lost answer may hold a task."""

    def __init__(self, history: History) -> None:
        lost = [op for op in history.by_f[F.CLAIM] if op.possible and not op.ok]
        self._called_ns = [op.call_ns for op in lost]
        self._until_ns: list[int] = []
        for op in lost:
            until_ns = _dropped_ns(op) + op.args.lease_ms * MS + BACK_WITHIN_NS
            self._until_ns.append(max([until_ns, *self._until_ns[-1:]]))

    def until_ns(self, ns: int) -> int:
        """Return the latest end among the claims sent before an instant."""
        thrown = bisect.bisect_left(self._called_ns, ns)
        return self._until_ns[thrown - 1] if thrown else 0
